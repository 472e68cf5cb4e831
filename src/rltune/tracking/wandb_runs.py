"""Show a sweep in Weights & Biases: a group for the sweep, a run in it for each trial."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltune.config.uris import redact
from rltune.records import CERTIFY, Report, RunKey, TrialRecord


class WandbRuns:
    """Runs of one project; a run takes no step that it has passed, so that one that is sent twice counts once.

    Args:
        project: The environment's name, as MLflow's experiment.
        folder: The sweep's, in which wandb makes one of its own name; of ``WANDB_MODE=offline``, too.
    """

    name = "wandb"

    def __init__(self, project: str, folder: Path) -> None:
        self._project, self._folder = project, folder
        self._sweep, self._key = "", ""
        self._params: Mapping[str, Any] = {}
        self._runs: dict[str, Any] = {}

    def open(self, sweep: str, key: str, params: Mapping[str, Any]) -> None:
        """Import wandb, which takes seconds."""
        import wandb  # noqa: F401

        os.environ.setdefault("WANDB_SILENT", "true")  # the console belongs to the sweep
        self._sweep, self._key, self._params = sweep, key, params

    def clear(self) -> None:
        """Begin other runs: those that are there may have steps that the ledger has lost."""
        self.close()
        self._key = f"{self._key}-again"

    def write(self, record: TrialRecord, reports: list[Report]) -> None:
        """Add reports."""
        run = self._find_run(record.run_key, record)
        for report in reports:
            run.log(dict(report.numbers), step=report.nominal_steps)

    def end(self, record: TrialRecord) -> None:
        """Add the score and why it ended, and finish the run."""
        run = self._find_run(record.run_key, record)
        about: dict[str, Any] = {"state": record.state, "stop_reason": redact(record.stop_reason or "")}
        if record.score is not None:
            about |= {"score": record.score} | ({"certified_score": record.score} if record.kind == CERTIFY else {})
        run.summary.update(about)
        run.finish(exit_code=int(record.state == "FAIL" or record.diverged))
        del self._runs[record.run_key.name]

    def describe(self, key: RunKey | None, metrics: Mapping[str, float]) -> None:
        """Add numbers to a run's summary."""
        name = key.name if key else self._sweep
        was_open = name in self._runs
        run = self._find_run(key, None)
        run.summary.update(dict(metrics))
        if not was_open:
            self._runs.pop(name).finish()

    def close(self) -> None:
        """Finish what is open; a resume goes on with it."""
        for run in self._runs.values():
            run.finish()
        self._runs.clear()

    def _find_run(self, key: RunKey | None, record: TrialRecord | None) -> Any:
        name = key.name if key else self._sweep
        if name not in self._runs:
            import wandb

            self._runs[name] = wandb.init(
                project=self._project,
                group=self._sweep,
                name=name,
                id=f"{self._key}-{name if key else 'sweep'}",
                job_type="sweep" if key is None else "certify" if key.seed_index is not None else "trial",
                config=dict(record.params) if record else dict(self._params) if key is None else None,
                dir=str(self._folder),
                resume="allow",
                reinit="create_new",
                settings=wandb.Settings(console="off", silent=True, x_disable_stats=True),
            )
        return self._runs[name]
