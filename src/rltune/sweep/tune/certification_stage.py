"""Run certification inside the search's Tune run, where the processes are warm: a second one would start its own.

The searcher proposes trials first and certification's runs after them; each of Tune's events goes to the recorder of
its stage. Runs in the driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ray.tune import Callback
from ray.tune.search import Searcher

from rltune.certification.retraining import Retraining
from rltune.config.schema import RunConfig
from rltune.formatting import first_line, format_objective
from rltune.reporting.console import Console
from rltune.study.checkpoints import CERTIFY
from rltune.study.study import Study
from rltune.sweep.stopper import SweepStopper
from rltune.sweep.tune.recorder import Recorder
from rltune.sweep.tune.scheduler import StoppingRuleScheduler
from rltune.sweep.tune.searcher import StudySearcher
from rltune.tracking.tracker import Tracker


class StagedSearcher(Searcher):
    """Proposes the search's trials, then the certification's runs.

    A slot that the search leaves free begins with the baseline's.

    Args:
        search: Proposes trials.
        retraining: Proposes runs.
        slots: Both together at once.
        is_stopping: Whether no more are wanted.
    """

    def __init__(
        self, search: StudySearcher, retraining: Retraining, slots: int, is_stopping: Callable[[], bool]
    ) -> None:
        super().__init__(metric="objective", mode="max")
        self._search, self._retraining, self._slots, self._is_stopping = search, retraining, slots, is_stopping
        self._live: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next config; None while all slots are taken, FINISHED when nothing is left."""
        if self._is_stopping():
            return str(Searcher.FINISHED)
        if self._search.num_live + len(self._live) >= self._slots:
            return None
        proposal = self._search.suggest(trial_id)
        if isinstance(proposal, dict):
            return proposal
        searched = self._search.trials() if proposal == Searcher.FINISHED else None
        run = self._retraining.propose(searched)
        if run is not None:
            self._live.add(trial_id)
            return self._retraining.assign(run).to_config()
        return None if self._live or searched is None else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot."""
        self._live.discard(trial_id)
        self._search.on_trial_complete(trial_id, result, error)

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its searcher for a restore that is never used."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Keep nothing: the studies hold it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Restore nothing: the studies hold it all."""


class RunTracker:
    """Shows runs by their names, where the sweep's tracker shows trials by their numbers: a `TrialTracker`.

    Args:
        tracker: The sweep's.
        study: The certification study, which holds the runs' names.
    """

    def __init__(self, tracker: Tracker, study: Study) -> None:
        self._tracker, self._study = tracker, study

    def _name(self, number: int) -> str:
        return self._study.trial(number).name

    @property
    def opening(self) -> bool:
        """Whether MLflow is still being imported."""
        return self._tracker.opening

    def warnings(self) -> list[str]:
        """Return nothing: the search's recorder shows what the sweep's tracker has to say."""
        return []

    def trial_started(
        self, number: int, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Create the run, or continue it."""
        self._tracker.trial_started(self._name(number), params, tags, run_id)

    def report(self, number: int, metrics: Mapping[str, float], env_steps: int) -> None:
        """Add a point to each curve."""
        self._tracker.report(self._name(number), metrics, env_steps)

    def progress(self, best: float, total_env_steps: int) -> None:
        """Leave the sweep's own curve alone: it is the search's."""

    def trial_ended(
        self,
        number: int,
        state: str,
        *,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        artifacts: Path | None,
    ) -> None:
        """End the run."""
        self._tracker.trial_ended(self._name(number), state, metrics=metrics, tags=tags, artifacts=artifacts)


class RunConsole:
    """Shows the certification on the sweep's console, as a count and a line per run: a `TrialConsole`.

    Args:
        console: The sweep's.
        retraining: The runs.
    """

    def __init__(self, console: Console, retraining: Retraining) -> None:
        self._console, self._retraining = console, retraining

    def trial_started(self, number: int, params: Mapping[str, Any]) -> None:
        """Show how far certification is."""
        self._console.stage(f"certifying: {self._retraining.describe_progress()} done")

    def report(self, number: int, objective: float | None, env_steps: int) -> None:
        """Draw: a run's curve is not shown."""
        self._console.tick()

    def trial_ended(self, number: int, state: str, objective: float | None = None, reason: str | None = None) -> None:
        """Show one line a run."""
        run = self._retraining.study.trial(number)
        progress = self._retraining.describe_progress()
        what = f"seed {run.seed_index + 1} of {run.configuration}"
        self._console.stage(f"certifying: {progress} done")
        if state == "COMPLETE":
            self._console.note(f"certified {what}: {format_objective(run.score)} ({progress})")
        elif state == "FAIL":
            self._console.note(f"certifying {what} failed, which counts against it: {first_line(reason)}")

    def note(self, text: str) -> None:
        """Show a line above the table."""
        self._console.note(text)

    def tick(self) -> None:
        """Draw if it is time to."""
        self._console.tick()


class RunRecorder(Recorder):
    """Records certification's runs as `Recorder` records the search's trials.

    Args:
        retraining: The runs.
        tracker: The sweep's.
        console: The sweep's.
        stopper: Ends the sweep.
        config: The request.
    """

    kind = CERTIFY
    gives_up = False  # a run that fails says nothing about the sweep

    def __init__(
        self, retraining: Retraining, tracker: Tracker, console: Console, stopper: SweepStopper, config: RunConfig
    ) -> None:
        super().__init__(
            retraining.study,
            RunTracker(tracker, retraining.study),
            RunConsole(console, retraining),
            StoppingRuleScheduler(None),
            stopper,
            config,
            retry=retraining.retry,
        )

    def charge_steps(self, env_steps: int) -> None:
        """Charge nothing: the sweep's budget of steps is the search's."""

    def report_progress(self, objective: float) -> None:
        """Report nothing: the sweep's best is the search's."""

    def end_trial(self, number: int, state: str, reason: str, result: dict[str, Any], where: str = "") -> None:
        """Record how a run ended; one whose policy played no episodes has failed."""
        returns = result.get("returns")
        if state == "COMPLETE" and returns and not math.isfinite(sum(returns)):
            state, reason = "FAIL", "its policy's return is not finite"  # a NaN has no place in any order
        elif state == "COMPLETE" and returns:
            self.study.note(number, returns=returns, score=sum(returns) / len(returns))
        elif state == "COMPLETE":
            state, reason = "FAIL", "its policy could not be evaluated"
        super().end_trial(number, state, reason, result, where)


class EventRouter(Callback):
    """Passes each of Tune's events to the recorder of its stage.

    Args:
        search: Records trials.
        make_runs: Makes what records runs; called at the first of them.
    """

    def __init__(self, search: Recorder, make_runs: Callable[[], Recorder]) -> None:
        self._search, self._make_runs = search, make_runs
        self._runs: Recorder | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its callbacks for a restore that is never used."""
        return {}

    def _recorder_of(self, trial: Any) -> Recorder:
        if trial.config["assignment"]["kind"] != CERTIFY:
            return self._search
        if self._runs is None:
            self._runs = self._make_runs()
        return self._runs

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Pass on to the search's recorder, once for all."""
        self._search.on_step_end(iteration, trials, **info)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Pass on that a trial or a run begins."""
        self._recorder_of(trial).on_trial_start(iteration, trials, trial, **info)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Pass on a report."""
        self._recorder_of(trial).on_trial_result(iteration, trials, trial, result, **info)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Pass on that it ended without losing its process."""
        self._recorder_of(trial).on_trial_complete(iteration, trials, trial, **info)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Pass on that it lost its process."""
        self._recorder_of(trial).on_trial_error(iteration, trials, trial, **info)
