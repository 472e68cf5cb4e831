"""Certification's runs inside the search's Tune run, where the processes are warm: a second one would start its own.

Proposes trials first and runs after them, and tells Tune's events to the recorder of their stage. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ray.tune import Callback
from ray.tune.search import Searcher

from rltune.certification.retraining import Retraining
from rltune.formatting import first_line, format_objective
from rltune.reporting.console import Console
from rltune.study.checkpoints import CERTIFY
from rltune.study.study import Study
from rltune.sweep.tune.recorder import Recorder
from rltune.sweep.tune.scheduler import StoppingRuleScheduler
from rltune.sweep.tune.searcher import StudySearcher
from rltune.tracking.tracker import NoTracker, Tracker


class StagedSearcher(Searcher):
    """The search's proposals, then the certification's; a slot that the search leaves free begins with the control.

    Args:
        search: Proposes trials.
        retraining: Proposes runs.
        slots: Both together at once.
        stopping: Whether no more are wanted.
    """

    def __init__(self, search: StudySearcher, retraining: Retraining, slots: int, stopping: Callable[[], bool]) -> None:
        super().__init__(metric="objective", mode="max")
        self._search, self._retraining, self._slots, self._stopping = search, retraining, slots, stopping
        self._live: set[str] = set()

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """The next trial's config; None while all slots are taken, FINISHED when nothing is left."""
        if self._stopping():
            return str(Searcher.FINISHED)
        if self._search.num_live + len(self._live) >= self._slots:
            return None
        proposal = self._search.suggest(trial_id)
        if isinstance(proposal, dict):
            return proposal
        searched = self._search.entries() if proposal == Searcher.FINISHED else None
        entry = self._retraining.next(searched)
        if entry is not None:
            self._live.add(trial_id)
            return self._retraining.assignment(entry).to_config()
        return None if self._live or searched is None else str(Searcher.FINISHED)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Free the slot."""
        self._live.discard(trial_id)
        self._search.on_trial_complete(trial_id, result, error)

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its searcher for a restore that is never used: the ledgers hold it all."""
        return {}

    def save(self, checkpoint_path: str) -> None:
        """Nothing to keep: the ledgers hold it all."""

    def restore(self, checkpoint_path: str) -> None:
        """Nothing to restore."""


class RunTracker(NoTracker):
    """The sweep's tracker under the runs' names instead of trials' numbers; curves of the whole sweep are left alone.

    Args:
        tracker: The sweep's.
        books: Where a run's name is.
    """

    def __init__(self, tracker: Tracker, books: Study) -> None:
        super().__init__()
        self._tracker, self._study = tracker, books

    def _name(self, number: int | str) -> str:
        return str(self._study.entry(int(number)).attributes["name"])

    def trial_started(
        self, number: int | str, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Create the run, or continue it."""
        self._tracker.trial_started(self._name(number), params, tags, run_id)

    def report(self, number: int | str, metrics: Mapping[str, float], env_steps: int) -> None:
        """Add a point to each curve."""
        self._tracker.report(self._name(number), metrics, env_steps)

    def trial_ended(self, number: int | str, state: str, **content: Any) -> None:
        """End the run."""
        self._tracker.trial_ended(self._name(number), state, **content)


class RunConsole(Console):
    """The sweep's console, which shows the certification as a count and a line per run.

    Args:
        console: The sweep's.
        books: Where a run's name is.
        progress: How many of the runs are done, in words.
    """

    def __init__(self, console: Console, books: Study, progress: Callable[[], str]) -> None:
        self._console, self._books, self._progress = console, books, progress

    def trial_started(self, number: int, params: Mapping[str, Any]) -> None:
        """Say how far certification is."""
        self._console.stage(f"certifying: {self._progress()} done")

    def report(self, number: int, objective: float | None, env_steps: int) -> None:
        """Draw."""
        self._console.tick()

    def trial_ended(self, number: int, state: str, objective: float | None = None, reason: str | None = None) -> None:
        """One line a run."""
        entry = self._books.entry(number)
        progress = self._progress()
        what = f"seed {entry.attributes['place'] + 1} of {entry.attributes['configuration']}"
        self._console.stage(f"certifying: {progress} done")
        if state == "COMPLETE":
            score = format_objective(entry.attributes.get("score"))
            self._console.note(f"certified {what}: {score} ({progress})")
        elif state == "FAIL":
            self._console.note(f"certifying {what} failed, which counts against it: {first_line(reason)}")

    def note(self, text: str) -> None:
        """One line above the table."""
        self._console.note(text)

    def tick(self) -> None:
        """Draw if it is time to."""
        self._console.tick()


class RunRecorder(Recorder):
    """Keeps the runs' books as `Recorder` keeps the trials'.

    Args:
        retraining: The runs.
        recorder: The search's, whose tracker, console and control are shared.
    """

    shelf = CERTIFY

    def __init__(self, retraining: Retraining, recorder: Recorder) -> None:
        books, config = retraining.books, recorder.config
        super().__init__(
            books,
            RunTracker(recorder.tracker, books),
            RunConsole(recorder.console, books, retraining.progress),
            StoppingRuleScheduler(None),
            recorder.control,
            config,
        )
        self._first_failures = None  # a run that fails says nothing about the sweep
        self.searcher = retraining

    def _count(self, env_steps: int) -> None:
        """The budgets of steps are the search's."""

    def _tell_progress(self, objective: float) -> None:
        """The sweep's best is the search's."""

    def _ended(self, number: int, state: str, reason: str, result: dict[str, Any], where: str = "") -> None:
        returns = result.get("returns")
        if state == "COMPLETE" and returns:
            self.study.note(number, returns=returns, score=sum(returns) / len(returns))
        elif state == "COMPLETE":
            state, reason = "FAIL", "its policy could not be evaluated"
        super()._ended(number, state, reason, result, where)


class Router(Callback):
    """Tells each of Tune's events to the recorder of its stage.

    Args:
        search: For trials.
        runs: Makes the recorder of the runs; called at the first of them.
    """

    def __init__(self, search: Recorder, runs: Callable[[], Recorder]) -> None:
        self._search, self._make = search, runs
        self._runs: Recorder | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its callbacks for a restore that is never used."""
        return {}

    def _of(self, trial: Any) -> Recorder:
        if trial.config["assignment"]["kind"] != CERTIFY:
            return self._search
        if self._runs is None:
            self._runs = self._make()
        return self._runs

    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Once a turn, for all."""
        self._search.on_step_end(iteration, trials, **info)

    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial or a run begins."""
        self._of(trial).on_trial_start(iteration, trials, trial, **info)

    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A report came."""
        self._of(trial).on_trial_result(iteration, trials, trial, result, **info)

    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It ended without losing its process."""
        self._of(trial).on_trial_complete(iteration, trials, trial, **info)

    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """It lost its process."""
        self._of(trial).on_trial_error(iteration, trials, trial, **info)
