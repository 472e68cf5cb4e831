"""Decide which submission begins, and what became of those that have begun.

Sweeps begin in their order, ``width`` at a time. A submission keeps its place while it runs: where its process is gone
and nobody saw how it ended, as after a loss of power, it waits again before all that came later. Starting it twice does
no harm, since its command goes on with what is there.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
SIGNALLED = {128 + signal.SIGINT, 128 + signal.SIGTERM, -signal.SIGINT, -signal.SIGTERM}
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    """How a sweep's process has ended.

    Attributes:
        code: Its exit code, negative for a signal; None where nobody saw it.
        status: What the sweep's ledger says; None without one.
        message: The last that it said.
        watched: Whether this service has seen it run, though it has not started it.
    """

    code: int | None
    status: str | None = None
    message: str = ""
    watched: bool = False


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
    if code is None:
        known = {"complete": COMPLETE, "stopped": COMPLETE, "failed": FAILED}
        if ending.status in known:
            return known[ending.status], message if ending.status == "failed" else None
        # Without a service to see it, whoever ended the service's machine may have ended the sweep, too.
        is_wanted = submission.stopping or (ending.watched and ending.status == "interrupted")
        return (INTERRUPTED, ON_REQUEST) if is_wanted else (QUEUED, None)
    if code == EXIT_WINNER:
        return COMPLETE, None
    if code == EXIT_REQUEST:
        return REFUSED, message
    if code in SIGNALLED:
        return INTERRUPTED, ON_REQUEST if submission.stopping else "its process was told to end"
    if code == EXIT_TRY_AGAIN:
        return INTERRUPTED, message or "the head of the cluster is gone"
    if code < 0:
        return FAILED, f"its process was killed by {signal.Signals(-code).name}"
    return FAILED, message or ("no trial has a result" if code == EXIT_NONE else f"it ended with {code}")


class Dispatcher:
    """Runs the queue of one service; its verbs may be called from any thread.

    Args:
        submissions: The queue.
        processes: What runs sweeps.
        width: How many at a time.
    """

    def __init__(self, submissions: Submissions, processes: Processes, width: int) -> None:
        self._submissions, self._processes, self._width = submissions, processes, width
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
            for one in choose_next(self._submissions.list(), self._width):
                if not self._ended.is_set():
                    self._start(one)

    def _note_end(self, submission: Submission) -> None:
        ending = self._processes.look(submission)
        if ending is None or self._ended.is_set():
            return
        state, reason = judge(submission, ending)
        if state == QUEUED:
            logger.info("%s: its process is gone, it is started again", submission.name)
            self._submissions.change(submission, state=QUEUED, process=None)
        else:
            logger.info("%s: %s", submission.name, state)
            self._submissions.change(submission, state=state, reason=reason, ended_s=time.time(), process=None)

    def _start(self, submission: Submission) -> None:
        def claim(mark: Mapping[str, Any]) -> bool:
            facts = {"process": dict(mark), "begun_s": time.time(), "stopping": False}
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

    def resume(self, name: str, prepare: Callable[[], Sequence[str]] = lambda: ()) -> Submission:
        """Put a sweep that has ended back, at the queue's end.

        Args:
            name: Which.
            prepare: Changes its ledger first, while nothing runs it; returns settings that it has from now on.

        Raises:
            StudyError: There is none of this name, or it waits or runs.
        """
        with self._lock:
            one = self._submissions.get(name)
            if one.state not in ENDED:
                raise StudyError(
                    f"sweep={name} is {one.state}", "a sweep that has ended", spell_command(f"stop sweep={name}")
                )
            self._submissions.queue_again(one, prepare())
        self.wake()
        return self._submissions.get(name)
