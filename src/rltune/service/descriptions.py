"""Describe submissions for the REST API and the page, from their rows in the queue and their sweeps' ledgers.

This module only reads.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import psutil

from rltune.config.settings_file import load_settings
from rltune.errors import StudyError
from rltune.formatting import first_line
from rltune.ledger.lease import DriverRecord
from rltune.ledger.sweep_folder import SETTINGS
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import INTERRUPTED, QUEUED, RUNNING, STATES, Event, Submission, Submissions
from rltune.views.comparison import Comparison, compare_views
from rltune.views.curves import draw_curves, draw_slices
from rltune.views.description import summarize
from rltune.views.html import FOLDER, PAGE
from rltune.views.page import describe_sweep, list_searched
from rltune.views.sweep_reader import SweepReader, explain_damage
from rltune.views.sweep_view import SweepView

if TYPE_CHECKING:  # Pydantic is slow to import, and the command `list` needs nothing of it.
    from rltune.service.documents import SweepSummary
    from rltune.service.models import EventDescription, SweepDescription

CPU_INTERVAL_S = 0.1  # CPU usage is measured over this time.
ANSWER_S = 2.0  # A ledger that has not answered by then is shown as it was.
# Who wants all of a sweep waits this long for the first reading of its ledger, which takes seconds for many reports.
FIRST_S = 30.0
Result = TypeVar("Result")


class SweepDescriptions:
    """Describe the sweeps of a service. Thread-safe.

    Args:
        folder: The service's folder.
    """

    def __init__(self, folder: ServiceFolder) -> None:
        self._folder = folder
        self._reader = SweepReader(answer_s=ANSWER_S)
        self._summaries: dict[str, tuple[SweepView, SweepSummary]] = {}  # The last ones, by the sweeps' names.

    def list(
        self,
        submissions: Submissions,
        name: str | None = None,
        group: str | None = None,
        states: Collection[str] = STATES,
        part: slice = slice(None),
    ) -> list[SweepDescription]:
        """Describe submissions: running ones first, then queued ones in order, then ended ones, the newest first.

        Args:
            submissions: The service's submissions.
            name: Describe this one alone; None describes all.
            group: Describe those of this group; None describes all.
            states: Describe those in one of these states.
            part: The part of the list to describe.
        """
        order = {RUNNING: 0, QUEUED: 1}

        def sort_key(submission: Submission) -> tuple[float, ...]:
            if submission.state in order:
                return order[submission.state], submission.position
            return len(order), -(submission.ended_s or 0.0)

        ordered = sorted(submissions.list(), key=sort_key)
        waiting = [submission.name for submission in ordered if submission.state == QUEUED]
        chosen = (
            row for row in ordered if name in (None, row.name) and group in (None, row.group) and row.state in states
        )
        described = [*chosen][part]
        views = self._reader.read(self._folder.sweeps / submission.name for submission in described)
        events = submissions.list_events([submission.id for submission in described])
        return [
            self._describe(submission, events[submission.id], waiting, views[self._folder.sweeps / submission.name])
            for submission in described
        ]

    def _describe(
        self,
        submission: Submission,
        events: Sequence[Event],
        waiting: Sequence[str],
        result: SweepView | StudyError,
    ) -> SweepDescription:
        starts = [event for event in events if event.state == RUNNING]
        ends = [event for before, event in itertools.pairwise(events) if before.state == RUNNING]
        folder = self._folder.sweeps / submission.name
        view = None if isinstance(result, StudyError) else result
        # The sweep counts as starting until its new process has taken the lease; until then, the lease names an earlier
        # driver.
        is_starting = submission.state == RUNNING and (view.driver_id if view else None) == submission.last_driver
        position = waiting.index(submission.name) + 1 if submission.state == QUEUED else None
        if view and view.settings and (position or is_starting):
            view = _extend_budget(view, submission)
        # Before a sweep has started, its folder has no settings, so that an unreadable ledger is no error.
        is_unreadable = isinstance(result, StudyError) and (folder / SETTINGS).is_file()
        return {
            "id": submission.id,
            "name": submission.name,
            "state": submission.state,
            "in_words": describe_state(submission, position, is_starting),
            "starting": is_starting,
            "stopping": submission.is_stopping and submission.state == RUNNING,
            "reason": submission.reason,
            "group": submission.group,
            "queue": position,
            "overrides": [*submission.overrides],
            "submitted": format_time(submission.submitted_s),
            "begun": format_time(starts[0].at_s if starts else submission.started_s),
            "attempts": len(starts),
            "last_end": describe_event(ends[-1]) if ends else None,
            "ended": format_time(submission.ended_s),
            "sweep": self._summarize(view, is_starting) if view and view.settings else None,
            "unreadable": first_line(result.what) if isinstance(result, StudyError) and is_unreadable else None,
            "stale_since": format_time(view.stale_since_s) if view else None,
            "report": has_report(folder),
        }

    def _summarize(self, view: SweepView, is_starting: bool) -> SweepSummary:
        """Summarize a view, unless it is the same as the last time; a sweep that starts is running."""
        cached = self._summaries.get(view.name)
        if cached is None or cached[0] is not view:
            cached = self._summaries[view.name] = view, cast("SweepSummary", summarize(view))
        return {**cached[1], "status": RUNNING} if is_starting else cached[1]

    def compare(self, names: Sequence[str]) -> Comparison:
        """Compare the winners of sweeps with that of the first.

        Raises:
            StudyError: As for `compare_views` and `load_view`.
        """
        views = [self.load_view(name) for name in names]
        with explain_damage(", ".join(names)):
            return compare_views(views)

    def show(self, submissions: Submissions, name: str) -> dict[str, Any]:
        """Describe one sweep for its page, all of it from one reading of its ledger.

        Returns:
            The description of the submission as ``sweep``, the sections of `rltune.views.page`, the learning curves,
            the scores by value, the searched parameters with their ranges and the best trial's values, and the
            machine's CPU and memory.

        Raises:
            UnknownSubmissionError: There is no submission of this name.
        """
        submission = submissions.get(name)
        result = self._read(name)
        parts: dict[str, Any] = {"view": None, "sections": {}, "curves": (), "slices": (), "parameters": ()}
        try:
            if isinstance(result, SweepView) and result.settings:
                with explain_damage(name):
                    parts = draw_parts(result)
        except StudyError as error:
            result = error
        view = parts["view"]
        waiting = [other.name for other in submissions.list(QUEUED)]
        events = submissions.list_events([submission.id])[submission.id]
        return {
            "sweep": self._describe(submission, events, waiting, result),
            "load": describe_load(view.snapshot.lease.driver if view else None),
            **parts,
        }

    def compute(self, name: str, function: Callable[[SweepView], Result]) -> Result:
        """Return what a function of a sweep's view makes, such as its result or its report.

        Raises:
            StudyError: As for `load_view`, or the ledger is damaged.
        """
        view = self.load_view(name)
        with explain_damage(name):
            return function(view)

    def load_view(self, name: str) -> SweepView:
        """Return the view of a sweep, after its first reading however long that takes within `FIRST_S`.

        Raises:
            StudyError: The ledger cannot be read, or no driver has begun the sweep yet.
        """
        view = self._read(name, FIRST_S)
        if isinstance(view, StudyError):
            raise view
        view.require_settings()
        return view

    def _read(self, name: str, first_s: float = 0.0) -> SweepView | StudyError:
        folder = self._folder.sweeps / name
        return self._reader.read([folder], first_s)[folder]


def draw_parts(view: SweepView) -> dict[str, Any]:
    """Describe and draw a sweep for its page; see `SweepDescriptions.show`."""
    return {
        "view": view,
        "sections": {section.name: section for section in describe_sweep(view, view.outcome, is_wide=True)},
        "curves": draw_curves(view),
        "slices": draw_slices(view),
        "parameters": list_searched(view),
    }


def describe_event(event: Event) -> EventDescription:
    """Describe a change of a submission's state."""
    return {"at": format_time(event.at_s), "state": event.state, "reason": event.reason}


def has_report(folder: Path) -> bool:
    """Return whether a sweep's folder contains an HTML report."""
    return (folder / FOLDER / PAGE).is_file()


def describe_state(submission: Submission, position: int | None, is_starting: bool) -> str:
    """Describe a sweep's state in words, for the list, the sweep's page and the commands.

    Args:
        submission: The sweep.
        position: Its position in the queue, from 1; None if it does not wait.
        is_starting: Whether its process runs and has not taken the lease yet.
    """
    if position:
        return f"number {position} in the queue"
    if submission.state == RUNNING and (submission.is_stopping or is_starting):
        return "stopping" if submission.is_stopping else "starting"
    if submission.state == INTERRUPTED and submission.reason:
        return f"{submission.state}, {first_line(submission.reason)}"
    return submission.state


def _extend_budget(view: SweepView, submission: Submission) -> SweepView:
    """Return a sweep's view with the budget and state that it will have when its resume starts."""
    trials = (load_settings(submission.settings).get("budget") or {}).get("trials")
    budget = {**view.budget, "trials": trials} if isinstance(trials, int) else view.budget
    return replace(
        view, settings={**view.settings, "budget": budget}, record=replace(view.record, status="interrupted")
    )


def describe_load(driver: DriverRecord | None) -> dict[str, Any]:
    """Describe the machine's CPU and memory usage, and the sweep's own memory if its driver runs on this machine."""
    memory = psutil.virtual_memory()
    load: dict[str, Any] = {
        "cpu": f"{psutil.cpu_percent(CPU_INTERVAL_S):.0f}%",
        "memory": f"{memory.percent:.0f}% of {memory.total / 2**30:.0f} GB",
        "processes": None,
        "sweep_memory": None,
    }
    with contextlib.suppress(psutil.Error):
        if driver and driver.is_alive():
            process = psutil.Process(driver.pid)
            processes = [process, *process.children(recursive=True)]
            load["processes"] = len(processes)
            load["sweep_memory"] = f"{sum(map(_read_memory, processes)) / 2**30:.1f} GB"
    return load


def _read_memory(process: psutil.Process) -> int:
    """Return the memory of a process, without memory that it shares with other processes."""
    try:
        memory = process.memory_info()
    except psutil.Error:
        return 0
    return int(memory.rss - getattr(memory, "shared", 0))


def format_time(seconds: float | None) -> str | None:
    """Format a time as ISO 8601 in UTC."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
