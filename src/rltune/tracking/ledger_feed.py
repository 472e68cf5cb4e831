"""Bring books other than MLflow to what a sweep's ledger has: TensorBoard's files, runs of Weights & Biases.

A thread reads what came after its marks, which stand in a file of the sweep's folder, and moves them when a book has
it. A kill between the two sends some points again, which changes nothing. Runs in the driver.
"""

from __future__ import annotations

import json
import queue
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from rltune.config.uris import redact
from rltune.envs.objective import AS_RETURN, Shown
from rltune.errors import describe_exception
from rltune.records import CERTIFY, TRIALS, Report, RunKey, TrialRecord
from rltune.study.ledger import Ledger
from rltune.tracking.tracker import Tracker

LINGER_S = 5.0  # reports of some seconds travel together
MAX_REPORTS = 2000  # that are written before the marks move


class Book(Protocol):
    """What a sweep is written into. Its thread is one; a point that is written twice must count once.

    Attributes:
        name: For a person.
    """

    name: str

    def open(self, sweep: str, key: str, params: Mapping[str, Any]) -> None:
        """Make ready, slowly if need be.

        Args:
            sweep: Its name.
            key: What tells this sweep from all others, also of its name.
            params: What describes it.
        """

    def clear(self) -> None:
        """Drop what was written by a ledger that was put back to an older state."""

    def write(self, record: TrialRecord, reports: list[Report]) -> None:
        """Add reports to a trial's run."""

    def end(self, record: TrialRecord) -> None:
        """Add how a trial has ended, and close its run."""

    def describe(self, key: RunKey | None, metrics: Mapping[str, float]) -> None:
        """Add numbers to a run that may have ended; None is the sweep's own."""

    def close(self) -> None:
        """Close all."""


class FedTracker(Tracker):
    """Shows a sweep in a book.

    Args:
        book: Which.
        ledger: The sweep's.
        marks: The file that has the marks.
        shown: Shows scores.
        messages: Where the book puts its own; None where it has none.

    Attributes:
        max_reports: How many are written before the marks move.
    """

    max_reports = MAX_REPORTS

    def __init__(
        self,
        book: Book,
        ledger: Ledger,
        marks: Path,
        shown: Shown = AS_RETURN,
        messages: queue.SimpleQueue[str] | None = None,
    ) -> None:
        self._book, self._ledger, self._marks, self._shown = book, ledger, marks, shown
        self._messages: queue.SimpleQueue[str] = messages or queue.SimpleQueue()
        self.tell = self._messages.put
        self._tasks: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._params: Mapping[str, Any] | None = None
        self._woken, self._hurry, self._closing = threading.Event(), threading.Event(), threading.Event()
        self._left = threading.Event()  # set when nobody waits any more for what is not written
        self._is_open = self._has_warned = False
        self._sent: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._run, name=f"rltune-{book.name}", daemon=True)
        self._thread.start()

    def warnings(self) -> list[str]:
        """Return the messages for a person that have not been returned yet."""
        return [self._messages.get() for _ in range(self._messages.qsize())]

    def start(self, *, params: Mapping[str, Any], tags: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Say what describes the sweep; nothing is written before."""
        self._params = dict(params)
        self.wake()

    def wake(self, *, connect: bool = False) -> None:
        """Say that the ledger has something new."""
        self._woken.set()

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Add numbers to a run."""
        if metrics:
            self._tasks.put(lambda: self._book.describe(key, self._shown.turn(metrics)))
            self.wake()

    def close(self, status: str, timeout_s: float = 30.0) -> bool:
        """Write what is left, and stop; what was closed before is not waited for again."""
        if self._closing.is_set():
            timeout_s = 0.0
        self._closing.set()
        self._hurry.set()
        self._woken.set()
        self._thread.join(timeout_s)
        self._left.set()
        return not self._thread.is_alive()

    def abandon(self) -> None:
        """Stop at once and write nothing more."""
        self._params, self._is_open = None, False
        self._left.set()
        self.close("KILLED", 1.0)

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._woken.wait()
            self._hurry.wait(LINGER_S)
            self._woken.clear()
            is_last = self._closing.is_set()
            self._try(self._send)
            while not self._tasks.empty():
                self._try(self._tasks.get())
        if self._is_open:
            self._try(self._book.close)

    def _try(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # the marks stand where they stood: a resume writes what is lacking
            if not self._has_warned:
                why = redact(describe_exception(error))[:200]
                self._messages.put(f"{self._book.name} does not show everything ({why}); a resume writes what it lacks")
            self._has_warned = True

    def _send(self) -> None:
        """Write what the ledger has and the book lacks."""
        if self._params is None:
            return
        self._ledger.check_lease()  # the marks are a file, which another driver would use as well
        if not self._is_open:
            self._open(self._params)
        # In this order: the reports of a trial that had ended by then are all among those that are read afterwards.
        records = {
            (row.kind, row.number): row for kind in (TRIALS, CERTIFY) for row in self._ledger.table(kind).records()
        }
        whole = False
        while not whole and not self._left.is_set():
            reports = self._ledger.read_reports_after(self._sent["report"], self.max_reports)
            whole = len(reports) < self.max_reports
            curves: dict[tuple[str, int], list[Report]] = defaultdict(list)
            for _, kind, report in reports:
                curves[kind, report.number].append(report)
            for (kind, number), curve in curves.items():
                record = records.get((kind, number)) or self._ledger.table(kind).records([number])[0]
                self._book.write(_turn_record(record, self._shown), [self._turn_report(one) for one in curve])
            if reports:
                self._mark(report=reports[-1][0])
        for (kind, number), record in records.items():
            if self._left.is_set():
                return
            entry = f"{kind}/{number}"
            has_ended = entry in self._sent["ended"]
            if record.state != "RUNNING" and not has_ended:
                self._book.end(_turn_record(record, self._shown))
                self._mark(ended=[*self._sent["ended"], entry])
            elif record.state == "RUNNING" and has_ended:  # it is tried again
                self._mark(ended=[one for one in self._sent["ended"] if one != entry])

    def _turn_report(self, report: Report) -> Report:
        """Return a report as a person knows it."""
        objective = self._shown(report.objective)
        turned = report.objective if objective is None else objective
        return replace(report, objective=turned, numbers=self._shown.turn(report.numbers))

    def _open(self, params: Mapping[str, Any]) -> None:
        """Open the book, and read how far it has come."""
        sweep = self._ledger.sweep()
        self._book.open(sweep.name, sweep.key, params)
        self._sent = {"report": 0, "ended": []}
        if self._marks.is_file():
            self._sent = json.loads(self._marks.read_text())
            if self._sent["report"] > self._ledger.read_last_report():
                self._book.clear()
                self._sent = {"report": 0, "ended": []}
        self._is_open = True

    def _mark(self, **how_far: Any) -> None:
        self._sent |= how_far
        draft = self._marks.with_suffix(".draft")
        draft.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(json.dumps(self._sent))
        draft.replace(self._marks)


def _turn_record(record: TrialRecord, shown: Shown) -> TrialRecord:
    """Return a trial whose score is as a person knows it."""
    reports = {mark: shown(value) or 0.0 for mark, value in record.reports.items()}
    return replace(record, reports=reports, returns=tuple(shown(value) or 0.0 for value in record.returns))
