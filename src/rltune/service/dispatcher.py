"""Run the queue: start the next submissions, and decide the state of those whose process has ended.

Sweeps start in the order of their positions, ``width`` at a time. A submission keeps its position while it runs. If its
process was killed, or ended unobserved, it is started again before all later submissions. This does no harm, because
its command goes on with what the sweep's folder holds. After `MAX_LOSSES` such ends in a row without progress it has
failed. If its command says that it may succeed later, as while a server is down, it waits with an exponential back-off,
and others start meanwhile.

Before a sweep is started, and before a running one counts as ended, its lease is asked. A sweep that another process
drives is running, whoever has started that process.

Ledgers are read in threads of their own. While one does not answer, its sweep stays as it is and the queue goes on.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, TypeVar

from rltune.background import start_in_thread
from rltune.errors import EXIT_REQUEST, EXIT_TRY_AGAIN, StudyError, describe_exception
from rltune.formatting import spell_command
from rltune.ledger.outcome import EXIT_NONE, EXIT_WINNER
from rltune.service.processes import Ending, SweepProcesses
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

INTERVAL_S = 0.5  # The queue is processed at this interval.
ANSWER_S = 1.0  # The queue waits this long for a ledger that is read.
ON_REQUEST = "stopped on request"
ADOPTED = "driven by a process that this service did not start"
# A sweep whose process dies this often in a row without progress fails, because the sweep itself may be the cause.
MAX_LOSSES = 3
# During an outage, the wait before the next start of a sweep doubles from the first value to the second.
FIRST_WAIT_S, LONGEST_WAIT_S = 60.0, 1800.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SIGNAL_CODES = {*(128 + number for number in ENDING_SIGNALS), *(-number for number in ENDING_SIGNALS)}
logger = logging.getLogger(__name__)
Answer = TypeVar("Answer")


def decide_state(submission: Submission, ending: Ending) -> tuple[str, str | None]:
    """Decide the state of a submission whose process has ended, and give the reason.

    Returns:
        The state and its reason. `QUEUED` means that the sweep has to be started again.
    """
    code, message = ending.code, ending.message or None
    is_stopped = submission.is_stopping or ending.is_stop_requested
    if ending.is_driven:
        return RUNNING, ADOPTED
    if code is None:
        states = {"complete": COMPLETE, "stopped": COMPLETE, "failed": FAILED}
        if ending.status in states:
            return states[ending.status], message if ending.status == "failed" else None
        if is_stopped:
            return INTERRUPTED, ON_REQUEST
        if submission.is_adopted and ending.status == "interrupted":
            return INTERRUPTED, "the person who started it has ended it"
        # Nobody has asked the sweep to stop, so perhaps the machine was shut down: the sweep is queued again.
        return QUEUED, "its process is gone"
    if code == EXIT_WINNER:
        return COMPLETE, None
    if code == EXIT_REQUEST:
        return REFUSED, message
    if code in SIGNAL_CODES:
        return INTERRUPTED, ON_REQUEST if is_stopped else "its process received a signal to end"
    if code < 0 or code == EXIT_TRY_AGAIN:
        if is_stopped:
            return INTERRUPTED, ON_REQUEST
        return QUEUED, f"its process was killed by {signal.Signals(-code).name}" if code < 0 else message
    return FAILED, message or ("no trial has a result" if code == EXIT_NONE else f"it ended with {code}")


@dataclass(frozen=True)
class RestartState:
    """How often a sweep's process has ended without progress, and when the next one may start.

    Attributes:
        num_ends: How many have ended in a row in the same way and without progress.
        is_outage: Whether they ended because something that the sweep needs is down; else their process was lost.
        progress: The progress in the ledger at the last end.
        due_s: When the next attempt may start, on the monotonic clock.
    """

    num_ends: int
    is_outage: bool
    progress: int
    due_s: float


class Dispatcher:
    """Run the queue of one service. Its methods are thread-safe.

    Args:
        submissions: The queue.
        processes: The processes of its sweeps.
        width: How many sweeps run at a time.

    Attributes:
        num_starts: How many processes of sweeps it has started.
    """

    def __init__(self, submissions: Submissions, processes: SweepProcesses, width: int) -> None:
        self._submissions, self._processes, self._width = submissions, processes, width
        self.num_starts = 0
        self._restarts: dict[int, RestartState] = {}
        # Held while a waiting sweep is started or removed, and never while a ledger is read.
        self._lock = threading.Lock()
        # The functions that read a ledger and have not ended yet, by the submission's id, position and state.
        self._reads: dict[tuple[int, int, str], Future[Any]] = {}
        self._is_awake, self._is_closed = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Start the thread that processes the queue."""
        self._thread.start()

    def close(self) -> None:
        """Stop processing the queue: no sweep starts and no end is recorded any more; running sweeps continue."""
        self._is_closed.set()
        self._is_awake.set()

    def wake(self) -> None:
        """Let the thread process the queue now."""
        self._is_awake.set()

    def _run(self) -> None:
        while not self._is_closed.is_set():
            try:
                self.step()
            # For example, the disk is full or the database is down; the queue is processed again at the next interval.
            except Exception as error:
                logger.warning("the queue could not be processed: %s", describe_exception(error))
            self._is_awake.wait(INTERVAL_S)
            self._is_awake.clear()

    def step(self) -> None:
        """Process the queue once: record which sweeps have ended, and start the next ones."""
        for submission in self._submissions.list(RUNNING):
            if not self._is_closed.is_set():
                self._record_end(submission)
        num_free = self._width - len(self._submissions.list(RUNNING))
        for submission in self._submissions.list(QUEUED):
            if num_free > 0 and not self._is_closed.is_set() and self._is_due(submission):
                num_free -= self._start_or_adopt(submission)

    def _read_ledger(self, submission: Submission, read_ledger: Callable[[Submission], Answer]) -> Answer | None:
        """Call a function that reads a submission's ledger; None while the ledger has not answered.

        Args:
            submission: The submission, for which one such function runs at a time.
            read_ledger: The function. If it takes too long, then its answer is returned by a later call.
        """
        key = submission.id, submission.position, submission.state
        is_late = key in self._reads
        read: Future[Answer] = self._reads[key] if is_late else start_in_thread("read-ledger", read_ledger, submission)
        self._reads[key] = read
        wait([read], 0.0 if is_late else ANSWER_S)
        if not read.done():
            return None
        del self._reads[key]
        return read.result()

    def _is_due(self, submission: Submission) -> bool:
        restart = self._restarts.get(submission.id)
        return restart is None or restart.due_s <= time.monotonic()

    def _find_ending(self, submission: Submission) -> Ending | None:
        """Return how a running sweep has ended; if it runs, repeat a user's request to stop it.

        The user may have asked before the sweep's driver could receive that.
        """
        ending = self._processes.find_ending(submission)
        if ending is None and submission.is_stopping:
            with contextlib.suppress(StudyError):
                self._processes.request_stop(submission)
        return ending

    def _record_end(self, submission: Submission) -> None:
        ending = self._read_ledger(submission, self._find_ending)
        if ending is None or self._is_closed.is_set():
            return
        state, reason = decide_state(submission, ending)
        if state == QUEUED:
            is_outage = ending.code == EXIT_TRY_AGAIN
            state, reason = self._plan_next_attempt(submission, is_outage, ending.progress, reason)
        else:
            self._restarts.pop(submission.id, None)
        logger.info("%s: %s %s", submission.name, state, reason or "")
        ended_s = time.time() if state in ENDED else None
        values = {"state": state, "reason": reason, "ended_s": ended_s, "is_adopted": state == RUNNING}
        self._submissions.change(submission, **values)

    def _plan_next_attempt(
        self, submission: Submission, is_outage: bool, progress: int, reason: str | None
    ) -> tuple[str, str | None]:
        """Decide when a sweep whose process died or could not run starts again.

        Args:
            submission: The sweep.
            is_outage: Whether something that it needs does not work at the moment; else its process was lost.
            progress: The progress in its ledger.
            reason: Why it did not run.

        Returns:
            Its new state, and the reason.
        """
        last = self._restarts.get(submission.id)
        is_repeated = last is not None and last.is_outage == is_outage and progress <= last.progress
        num_ends = last.num_ends + 1 if last is not None and is_repeated else 1
        if not is_outage and num_ends >= MAX_LOSSES:
            del self._restarts[submission.id]
            return FAILED, f"{reason}, {num_ends} times in a row without progress"
        wait_s = min(FIRST_WAIT_S * 2 ** min(num_ends - 1, 10), LONGEST_WAIT_S) if is_outage else 0.0
        self._restarts[submission.id] = RestartState(num_ends, is_outage, progress, time.monotonic() + wait_s)
        if not is_outage:
            return QUEUED, reason
        starts = datetime.fromtimestamp(time.time() + wait_s, UTC)
        return QUEUED, f"next attempt at {starts:%H:%M} UTC: {reason or 'something that it needs does not answer'}"

    def _read_history(self, submission: Submission) -> tuple[bool | None, dict[str, Any]]:
        """Return whether another process drives a sweep, and what its ledger has of earlier ones."""
        return self._processes.is_driven(submission), self._processes.read_history(submission)

    def _start_or_adopt(self, submission: Submission) -> bool:
        """Start a sweep's process, or mark the sweep as running if another process already drives it.

        While its lease has to be watched, because it cannot be known at once whether its driver is alive, the sweep
        keeps its position, and its slot stays free for it. While its ledger does not answer, others take the slot.

        Returns:
            Whether a slot is taken.
        """
        answer = self._read_ledger(submission, self._read_history)
        if answer is None or self._is_closed.is_set():
            return False
        is_driven, history = answer
        if is_driven is None:
            return True
        values: dict[str, Any] = {"state": RUNNING, "is_stopping": False, "started_s": time.time(), **history}
        if is_driven:
            values |= {"is_adopted": True, "reason": ADOPTED, "last_driver": None}
        else:
            values |= {"is_adopted": False, "reason": None}
        logger.info("%s: %s", submission.name, values["reason"] or "starts")
        with self._lock:
            if not self._submissions.change(submission, **values):
                return False
            if is_driven:
                return True
            # The row is changed to running before the process starts. If the service is killed in between, the next
            # service finds no driver and starts one.
            try:
                self._processes.start(submission)
                self.num_starts += 1
            except OSError as error:
                # The machine has no process, memory, file descriptor or room on a disk at the moment, which is no fault
                # of the sweep. One that failed would leave its slot to the next, and so the whole queue would fail.
                last, cannot = self._restarts.get(submission.id), f"cannot be started: {describe_exception(error)}"
                state, reason = self._plan_next_attempt(submission, True, last.progress if last else 0, cannot)
                logger.warning("%s: %s %s", submission.name, state, reason or "")
                self._submissions.change(replace(submission, state=RUNNING), state=state, reason=reason)
        return True

    # -- Methods for requests of users --------------------------------------------------------------------------------

    def stop(self, name: str) -> Submission:
        """Stop a running sweep so that it can be resumed, or remove a waiting one from the queue.

        Raises:
            StudyError: There is none of this name, it has ended, or its driver cannot be reached.
        """
        with self._lock:
            submission = self._submissions.get(name)
            if submission.state == QUEUED:
                self._restarts.pop(submission.id, None)
                values = {"state": INTERRUPTED, "reason": "taken from the queue", "ended_s": time.time()}
                self._submissions.change(submission, **values)
                return self._submissions.get(name)
        if submission.state != RUNNING:
            raise StudyError(
                f"is {submission.state}",
                "a sweep that waits or runs",
                spell_command(f"resume sweep={name}") if submission.state != COMPLETE else spell_command("list"),
                key="sweep",
                value=name,
            )
        self._submissions.change(submission, is_stopping=True)
        try:
            self._processes.stop(submission)
        except StudyError:
            self._submissions.change(submission, is_stopping=False)
            raise
        return self._submissions.get(name)

    def resume(self, submission: Submission, overrides: Sequence[str] = (), settings: str | None = None) -> Submission:
        """Resume an ended sweep by appending it to the queue.

        Args:
            submission: The sweep, as it was when the settings were checked.
            overrides: What it was resumed with.
            settings: Its settings from now on; None leaves them as they are.

        Raises:
            StudyError: It waits or runs.
        """
        self.require_ended(submission)
        if not self._submissions.queue_again(submission, overrides, settings):
            raise _make_running_error(self._submissions.get(submission.name))
        self.wake()
        return self._submissions.get(submission.name)

    def require_ended(self, submission: Submission) -> None:
        """Refuse a sweep that waits or runs.

        Raises:
            StudyError: It has not ended.
        """
        if submission.state not in ENDED:
            raise _make_running_error(submission)


def _make_running_error(submission: Submission) -> StudyError:
    name, fix = submission.name, spell_command(f"stop sweep={submission.name}")
    return StudyError(f"is {submission.state}", "a sweep that has ended", fix, key="sweep", value=name)
