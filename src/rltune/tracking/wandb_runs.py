"""Show a sweep in Weights & Biases: a group with runs for the sweep, its trials and its certification runs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from rltune.config.schema import TrackingConfig
from rltune.errors import ConfigError
from rltune.records import Report, RunKey, TrialRecord
from rltune.tracking.tracker import SweepDescription, Tracker, get_certified_score


class WandbTracker(Tracker):
    """The W&B runs of a sweep. W&B ignores steps that a run has passed, so repeated deliveries do no harm.

    wandb writes into the sweep's folder, also its own files with ``WANDB_MODE=offline``.
    """

    name = "wandb"

    def __init__(self, sweep: SweepDescription) -> None:
        super().__init__(sweep)
        self._runs: dict[str, Any] = {}

    @classmethod
    def check(cls, tracking: TrackingConfig) -> None:
        """Raise an error if the package wandb is not installed."""
        if find_spec("wandb") is None:
            raise ConfigError(
                "tracking.kinds", "wandb", ": wandb is not installed", "the extra wandb", "pip install 'rltune[wandb]'"
            )

    def open(self) -> None:
        """Import wandb, which takes seconds."""
        import wandb  # noqa: F401

        os.environ.setdefault("WANDB_SILENT", "true")  # W&B's output would clutter the sweep's console.

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        """Log reports of a trial; if the trial has ended, also log its state and reason, and finish its W&B run."""
        if not reports and trial.state == "RUNNING":
            return
        run = self._open_run(trial.run_key, trial)
        for report in reports:
            run.log(dict(report.numbers), step=report.nominal_steps)
        if trial.state == "RUNNING":
            return
        state = {"state": trial.state, "stop_reason": trial.stop_reason or ""}
        run.summary.update(state | get_certified_score(trial))
        run.finish(exit_code=int(trial.state == "FAIL" or trial.diverged))
        del self._runs[trial.run_key.name]

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add metrics to the summary of a W&B run."""
        if not metrics:
            return
        name = key.name if key else self.sweep.name
        was_open = name in self._runs
        run = self._open_run(key, None)
        run.summary.update(dict(metrics))
        if not was_open:
            self._runs.pop(name).finish()

    def close(self) -> None:
        """Finish the open W&B runs; a resumed sweep continues them."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def _open_run(self, key: RunKey | None, trial: TrialRecord | None) -> Any:
        name = key.name if key else self.sweep.name
        if name not in self._runs:
            import wandb

            self._runs[name] = wandb.init(
                project=self.sweep.experiment,
                group=self.sweep.name,
                name=name,
                id=f"{self.sweep.key}-{name if key else 'sweep'}",
                job_type="sweep" if key is None else "certify" if key.seed_index is not None else "trial",
                config=dict(trial.params) if trial else dict(self.sweep.params) if key is None else None,
                dir=str(self.sweep.folder),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
            )
        return self._runs[name]
