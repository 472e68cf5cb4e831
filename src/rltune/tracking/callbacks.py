"""Tell a person's own code what happens in a sweep: each report, each trial's end, the sweep's end.

A thread reads it from the ledger, as for the other books (`rltune.tracking.ledger_feed`), so that slow code holds up
nothing, and tells it once, over resumes, too; a kill may have the last thing told again. Runs in the driver.
"""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from rltune.config.entry_points import import_entry_point
from rltune.config.uris import redact
from rltune.envs.objective import AS_RETURN, Shown
from rltune.errors import describe_exception
from rltune.records import Report, RunKey, TrialRecord
from rltune.study.ledger import Ledger
from rltune.study.outcome import Outcome
from rltune.tracking.ledger_feed import FedTracker

EVENTS = ("on_report", "on_trial_end", "on_sweep_end")
CLOSE_S = 10.0  # for what is still to be told at a sweep's end, and for on_sweep_end
logger = logging.getLogger("rltune")


class Callbacks:
    """A book that hands everything on to a person's own code; what that raises is told once, and ends nothing.

    A class is made without arguments in the thread that calls it, and has any of

    - ``on_report(trial, report)``, with `rltune.records.TrialRecord` and `rltune.records.Report`,
    - ``on_trial_end(trial)``, of runs of the certification, too: their ``kind`` says so,
    - ``on_sweep_end(outcome)``, with `rltune.study.outcome.Outcome`.

    A function has the name of the event that it is called for, and its arguments.

    Args:
        targets: ``package.module:Class`` or ``package.module:on_trial_end``, as the setting ``callbacks`` has them.
        notify: Shows a person a line; called in another thread.
    """

    name = "callbacks"

    def __init__(self, targets: Sequence[str], notify: Callable[[str], None]) -> None:
        self._targets, self._notify = targets, notify
        self._called: dict[str, Any] | None = None
        self._complained: set[str] = set()

    def open(self, sweep: str, key: str, params: Mapping[str, Any]) -> None:
        """Make what is called."""
        self._find()

    def clear(self) -> None:
        """Do nothing: what was told cannot be taken back."""

    def write(self, record: TrialRecord, reports: list[Report]) -> None:
        """Tell of reports."""
        for report in reports:
            self._tell("on_report", record, report)

    def end(self, record: TrialRecord) -> None:
        """Tell of a trial's end."""
        self._tell("on_trial_end", record)

    def describe(self, key: RunKey | None, metrics: Mapping[str, float]) -> None:
        """Do nothing: the outcome says it."""

    def close(self) -> None:
        """Do nothing: the sweep's end is told when it is known."""

    def end_sweep(self, outcome: Outcome, limit_s: float = CLOSE_S) -> None:
        """Tell of the sweep's end, and wait for that at most so long."""
        thread = threading.Thread(target=self._tell, args=("on_sweep_end", outcome), name="on_sweep_end", daemon=True)
        thread.start()
        thread.join(limit_s)
        if thread.is_alive():
            self._notify(f"callbacks: on_sweep_end was left after {limit_s:.0f} s")

    def _find(self) -> dict[str, Any]:
        """Return what is called, by its setting; make it first. What cannot be made is told once and left out."""
        if self._called is None:
            self._called = {}
            for target in self._targets:
                try:
                    found = import_callback(target)
                    self._called[target] = found() if isinstance(found, type) else found
                except BaseException as error:
                    self._complain(target, "cannot be made", error)
        return self._called

    def _tell(self, event: str, *what: Any) -> None:
        for target, one in self._find().items():
            if call := one if getattr(one, "__name__", None) == event else getattr(one, event, None):
                try:
                    call(*what)
                except BaseException as error:  # sys.exit() would end the thread in silence
                    self._complain(target, f"has failed in {event}", error)

    def _complain(self, target: str, what: str, error: BaseException) -> None:
        logger.warning("callbacks: %s %s", target, what, exc_info=error)
        if target not in self._complained:
            self._complained.add(target)
            self._notify(f"callbacks: {target} {what} ({redact(describe_exception(error))}); see the sweep's log")


class CallbackTracker(FedTracker):
    """Feeds callbacks; what they are not told in time at the end, a resume tells them.

    Args:
        targets: As for `Callbacks`.
        ledger: The sweep's.
        marks: The file that has the marks.
        shown: Shows scores.
    """

    max_reports = 1  # a kill tells at most the last one again

    def __init__(self, targets: Sequence[str], ledger: Ledger, marks: Path, shown: Shown = AS_RETURN) -> None:
        self._is_told = False
        messages: SimpleQueue[str] = SimpleQueue()
        self.callbacks = Callbacks(targets, messages.put)
        super().__init__(self.callbacks, ledger, marks, shown, messages)

    def abandon(self) -> None:
        """Stop at once and tell nothing more."""
        self._is_told = True
        super().abandon()

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Tell what is left, and stop."""
        limit_s = min(timeout_s, CLOSE_S)
        if not super().close(status, limit_s) and not self._is_told:
            self._is_told = True
            self.tell(f"callbacks were not told everything within {limit_s:.0f} s; a resume tells them the rest")
        return True  # whatever they do is no matter of MLflow's


def import_callback(target: str) -> Any:
    """Import what an entry of the setting ``callbacks`` names.

    Raises:
        ConfigError: There is nothing of this name, or it is none.
    """
    usage = f"package.module:Class with any of {', '.join(EVENTS)}, or a function of such a name; callbacks=[] is none"
    return import_entry_point(
        "callbacks", target, "callback", _is_callback, usage, "callbacks=[my_module:MyClass], or callbacks=[]"
    )


def _is_callback(found: Any) -> bool:
    if isinstance(found, type):
        return any(callable(getattr(found, event, None)) for event in EVENTS)
    return inspect.isfunction(found) and found.__name__ in EVENTS
