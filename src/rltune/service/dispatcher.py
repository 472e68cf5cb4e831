"""Decide which submission begins, and what became of those that have begun.

Sweeps begin in their order, ``width`` at a time. A submission keeps its place while it runs. If its process was killed,
or is gone and nobody saw how it ended, it is started again before all that came later, which does no harm, since its
command goes on with what is there. After `MAX_LOSSES` such ends in a row without progress it has failed. If its command
says that it may succeed later, as while a server is away, it waits with an exponential back-off, and others begin
meanwhile.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from rltune.errors import EXIT_REQUEST, EXIT_TRY_AGAIN, StudyError, describe_exception
from rltune.formatting import spell_command
from rltune.service.submissions import (
    COMPLETE,
    ENDED,
    FAILED,
    INTERRUPTED,
    QUEUED,
    REFUSED,
    RUNNING,
    Submission,
    Submissions,
)
from rltune.study.outcome import EXIT_NONE, EXIT_WINNER

EVERY_S = 0.5
ON_REQUEST = "stopped on request"
MAX_LOSSES = 3  # A sweep whose process is lost so often in a row without progress may be what kills it.
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 1800.0  # The back-off doubles from the first to the longest wait.
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNALLED = {*(128 + number for number in ENDING_SIGNALS), *(-number for number in ENDING_SIGNALS)}
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    """How a sweep's process has ended.

    Attributes:
        code: Its exit code, negative for a signal; None where nobody saw it.
        status: What the sweep's ledger says; None without one.
        message: The last that it said.
        stop_requested: Whether somebody has asked the sweep to stop since its process began, with or without a service.
        progress: Environment steps and ended trials in its ledger; it grows with each report and each end.
    """

    code: int | None
    status: str | None = None
    message: str = ""
    stop_requested: bool = False
    progress: int = 0


class Processes(Protocol):
    """What runs sweeps."""

    def start(self, submission: Submission, claim: Callable[[Mapping[str, Any]], bool]) -> None:
        """Start a sweep's process, which does nothing before ``claim`` has taken its mark and agreed."""

    def look(self, submission: Submission) -> Ending | None:
        """Return how a sweep's process has ended; None while it runs."""

    def stop(self, submission: Submission) -> None:
        """Ask a sweep's process to end cleanly."""


def choose_next(submissions: Sequence[Submission], width: int) -> list[Submission]:
    """Choose which of the waiting ones begin now, in their order."""
    free = width - sum(one.state == RUNNING for one in submissions)
    waiting = sorted((one for one in submissions if one.state == QUEUED), key=lambda one: (one.place, one.id))
    return waiting[: max(0, free)]


def judge(submission: Submission, ending: Ending) -> tuple[str, str | None]:
    """Say which state a submission is in when its process has ended, and why.

    Returns:
        `QUEUED` where it has to be started again.
    """
    code, message = ending.code, ending.message or None
    is_stopped = submission.stopping or ending.stop_requested
    if code is None:
        ends = {"complete": COMPLETE, "stopped": COMPLETE, "failed": FAILED}
        if ending.status in ends:
            return ends[ending.status], message if ending.status == "failed" else None
        # Without a request to stop, whoever ended the service's machine may have ended the sweep, too.
        return (INTERRUPTED, ON_REQUEST) if is_stopped else (QUEUED, "its process is gone")
    if code == EXIT_WINNER:
        return COMPLETE, None
    if code == EXIT_REQUEST:
        return REFUSED, message
    if code in SIGNALLED:
        return INTERRUPTED, ON_REQUEST if is_stopped else "its process was told to end"
    if code < 0 or code == EXIT_TRY_AGAIN:
        if is_stopped:
            return INTERRUPTED, ON_REQUEST
        return QUEUED, f"its process was killed by {signal.Signals(-code).name}" if code < 0 else message
    return FAILED, message or ("no trial has a result" if code == EXIT_NONE else f"it ended with {code}")


@dataclass(frozen=True)
class Attempts:
    """Count the attempts of a sweep that has to begin again.

    Attributes:
        num_ends: How many have ended in a row in the same way and without progress.
        is_outage: Whether they ended because something that the sweep needs is away; else their process was lost.
        progress: What the ledger had at the last end.
        due_s: When the next one may begin, on the monotonic clock.
    """

    num_ends: int
    is_outage: bool
    progress: int
    due_s: float


class Dispatcher:
    """Runs the queue of one service; its verbs may be called from any thread.

    Args:
        submissions: The queue.
        processes: What runs sweeps.
        width: How many at a time.
    """

    def __init__(self, submissions: Submissions, processes: Processes, width: int) -> None:
        self._submissions, self._processes, self._width = submissions, processes, width
        self._attempts: dict[int, Attempts] = {}
        self._lock = threading.Lock()
        self._woken, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def begin(self) -> None:
        """Run the queue in a thread."""
        self._thread.start()

    def end(self) -> None:
        """Start nothing more and note no end any more: what runs goes on."""
        self._ended.set()
        self._woken.set()

    def wake(self) -> None:
        """Look at the queue now."""
        self._woken.set()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.step()
            except Exception as error:  # a full disk, a database that was restarted: the next look may find it well
                logger.warning("the queue stands still: %s", describe_exception(error))
            self._woken.wait(EVERY_S)
            self._woken.clear()

    def step(self) -> None:
        """Note what has ended, and start what is next."""
        with self._lock:
            for one in self._submissions.list():
                if one.state == RUNNING and not self._ended.is_set():
                    self._note_end(one)
            now = time.monotonic()
            waiting = {number for number, attempts in self._attempts.items() if attempts.due_s > now}
            due = [one for one in self._submissions.list() if one.state != QUEUED or one.id not in waiting]
            for one in choose_next(due, self._width):
                if not self._ended.is_set():
                    self._start(self._submissions.get(one.name))

    def _note_end(self, submission: Submission) -> None:
        ending = self._processes.look(submission)
        if ending is None or self._ended.is_set():
            return
        state, reason = judge(submission, ending)
        if state == QUEUED:
            state, reason = self._plan_next_attempt(submission, ending, reason)
        else:
            self._attempts.pop(submission.id, None)
        logger.info("%s: %s %s", submission.name, state, reason or "")
        ended_s = None if state == QUEUED else time.time()
        self._submissions.change(submission, state=state, reason=reason, ended_s=ended_s, process=None)

    def _plan_next_attempt(self, submission: Submission, ending: Ending, reason: str | None) -> tuple[str, str | None]:
        """Decide when a sweep that could not end begins again; return its state and why it waits or has failed."""
        is_outage = ending.code == EXIT_TRY_AGAIN
        last = self._attempts.get(submission.id)
        is_repeated = last is not None and last.is_outage == is_outage and ending.progress <= last.progress
        num_ends = last.num_ends + 1 if last is not None and is_repeated else 1
        if not is_outage and num_ends >= MAX_LOSSES:
            del self._attempts[submission.id]
            return FAILED, f"{reason}, {num_ends} times in a row without progress"
        wait_s = min(FIRST_WAIT_S * 2 ** min(num_ends - 1, 10), LONGEST_WAIT_S) if is_outage else 0.0
        self._attempts[submission.id] = Attempts(num_ends, is_outage, ending.progress, time.monotonic() + wait_s)
        if not is_outage:
            return QUEUED, reason
        begins = datetime.fromtimestamp(time.time() + wait_s, UTC)
        return QUEUED, f"next attempt at {begins:%H:%M} UTC: {reason or 'something that it needs is away'}"

    def _start(self, submission: Submission) -> None:
        def claim(mark: Mapping[str, Any]) -> bool:
            facts = {"process": dict(mark), "begun_s": time.time(), "stopping": False, "reason": None}
            return self._submissions.change(submission, state=RUNNING, **facts)

        logger.info("%s: begins", submission.name)
        try:
            self._processes.start(submission, claim)
        except OSError as error:
            self._submissions.change(
                submission, state=FAILED, reason=f"cannot be started: {describe_exception(error)}", ended_s=time.time()
            )

    # -- verbs --------------------------------------------------------------------------------------------------------

    def stop(self, name: str) -> Submission:
        """End a sweep cleanly, or take it from the queue.

        Raises:
            StudyError: There is none of this name, or it has ended.
        """
        with self._lock:
            one = self._submissions.get(name)
            if one.state == QUEUED:
                self._attempts.pop(one.id, None)
                self._submissions.change(one, state=INTERRUPTED, reason="taken from the queue", ended_s=time.time())
            elif one.state == RUNNING:
                self._submissions.change(one, stopping=True)
                self._processes.stop(one)
            else:
                raise StudyError(
                    f"sweep={name} is {one.state}",
                    "a sweep that waits or runs",
                    spell_command(f"resume sweep={name}") if one.state != COMPLETE else spell_command("list"),
                )
        return self._submissions.get(name)

    def resume(self, submission: Submission, words: Sequence[str] = (), settings: str | None = None) -> Submission:
        """Put a sweep that has ended back, at the queue's end.

        Args:
            submission: The sweep, as it was when the settings were checked.
            words: Overrides that it was resumed with.
            settings: Its settings from now on; None leaves them as they are.

        Raises:
            StudyError: It waits or runs.
        """
        if submission.state not in ENDED or not self._submissions.queue_again(submission, words, settings):
            name, state = submission.name, self._submissions.get(submission.name).state
            raise StudyError(f"sweep={name} is {state}", "a sweep that has ended", spell_command(f"stop sweep={name}"))
        self.wake()
        return self._submissions.get(submission.name)
