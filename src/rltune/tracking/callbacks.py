"""Call a user's own code on each report, at each trial's end and at the sweep's end.

It is a tracker like the others (`rltune.tracking.feed`): its thread delivers each event at least once, also across
resumes, and slow code delays nothing else. Runs in the driver.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Sequence
from typing import Any

from rltune.config.entry_points import import_entry_point
from rltune.config.uris import redact
from rltune.errors import describe_exception
from rltune.ledger.outcome import Outcome
from rltune.records import Report, TrialRecord
from rltune.tracking.tracker import SweepDescription, Tracker, TrackingSettings

EVENTS = ("on_report", "on_trial_end", "on_sweep_end")
logger = logging.getLogger("rltune")


class CallbackTracker(Tracker):
    """Hands every event to a user's code; what the code raises is reported once and changes nothing.

    A class is instantiated without arguments in the thread that calls it, and has any of

    - ``on_report(trial, report)``, with `rltune.records.TrialRecord` and `rltune.records.Report`,
    - ``on_trial_end(trial)``, also for the runs of the certification: their ``kind`` says so,
    - ``on_sweep_end(outcome)``, with `rltune.ledger.outcome.Outcome`.

    A function has the name of the event that it is called for, and that event's arguments.

    Args:
        settings: As for every tracker.
        targets: ``package.module:Class`` or ``package.module:on_trial_end``, as in the setting ``callbacks``.
    """

    name = "callbacks"
    batch_size = 1  # A kill repeats at most one report.
    close_s = 10.0

    def __init__(self, settings: TrackingSettings, targets: Sequence[str]) -> None:
        super().__init__(settings)
        self._targets = targets
        self._callbacks: dict[str, Any] = {}
        self._failed: set[str] = set()

    def open(self, sweep: SweepDescription) -> None:
        """Import the user's code; what cannot be imported or instantiated is reported once and left out."""
        for target in self._targets:
            try:
                callback = import_callback(target)
                self._callbacks[target] = callback() if isinstance(callback, type) else callback
            except BaseException as error:
                self._report_failure(target, "cannot be made", error)

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        """Call ``on_report``, and ``on_trial_end`` when the trial has ended."""
        for report in reports:
            self._call("on_report", trial, report)
        if trial.state != "RUNNING":
            self._call("on_trial_end", trial)

    def end(self, status: str, outcome: Outcome | None) -> None:
        """Call ``on_sweep_end``."""
        if outcome is not None:
            self._call("on_sweep_end", outcome)

    def _call(self, event: str, *arguments: Any) -> None:
        for target, callback in self._callbacks.items():
            is_function = getattr(callback, "__name__", None) == event
            if function := callback if is_function else getattr(callback, event, None):
                try:
                    function(*arguments)
                except BaseException as error:  # SystemExit would end the thread silently.
                    self._report_failure(target, f"has failed in {event}", error)

    def _report_failure(self, target: str, what: str, error: BaseException) -> None:
        logger.warning("callbacks: %s %s", target, what, exc_info=error)
        if target not in self._failed:
            self._failed.add(target)
            self.notify(f"callbacks: {target} {what} ({redact(describe_exception(error))}); see the sweep's log")


def import_callback(target: str) -> Any:
    """Import what an entry of the setting ``callbacks`` names.

    Raises:
        ConfigError: There is nothing of this name, or it is no callback.
    """
    usage = f"package.module:Class with any of {', '.join(EVENTS)}, or a function of such a name; callbacks=[] is none"
    return import_entry_point(
        "callbacks", target, "callback", _is_callback, usage, "callbacks=[my_module:MyClass], or callbacks=[]"
    )


def _is_callback(candidate: Any) -> bool:
    if isinstance(candidate, type):
        return any(callable(getattr(candidate, event, None)) for event in EVENTS)
    return inspect.isfunction(candidate) and candidate.__name__ in EVENTS
