"""The outbox of a sweep's reports: queued at once, kept on disk, sent in order, once each.

Nobody waits for a server and nothing is lost: `put` is one queue put; the keeper thread writes each
operation into a journal, the sender thread hands them on in order and tries again until that succeeds.
What an operation means is the business of the `Target` (runs.py). Runs in the driver.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, Protocol

from rltune.config.uris import redact
from rltune.tracking.journal import DAMAGED, JOINING, Call, Journal, Op, QueuedOperation, to_plain

MAX_BATCH = 64
LINGER_S = 1.5  # one request costs the driver as much as ten reports: those of a moment travel together
OPENING = ("start", "text", "trial")  # operations before the first report
OPENING_S = 5.0  # that wait so long for it: importing MLflow takes 2 s of CPU, which the first trials need to start
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 5.0


class Target(Protocol):
    """Where operations go. Every method runs in the sender thread and may raise."""

    def connect(self) -> None:
        """Prepare, slowly if need be. Called until it succeeds, before anything else."""

    def apply(self, ops: Sequence[Op]) -> None:
        """Carry operations of one kind and trial out. A repetition must have no effect."""

    def alive(self) -> bool:
        """Whether the target answers at all, to tell an outage from an operation that cannot work."""

    def hopeless(self, error: Exception) -> bool:
        """Whether a repetition would fail in the same way."""


class Outbox:
    """Takes operations from the driver, keeps them and sends them in order.

    Args:
        folder: Where the journal lives; what an earlier spool left there is sent first.
        target: Where operations go.
        say: Told what a person should know, a line each.
        secrets: Words that must be written nowhere.
    """

    def __init__(self, folder: Path, target: Target, say: Callable[[str], None], secrets: Sequence[str] = ()) -> None:
        self._target, self._say, self._secrets = target, say, secrets
        self._journal = Journal(folder)
        self._queue: queue.SimpleQueue[QueuedOperation | None] = queue.SimpleQueue()
        self._pending: list[QueuedOperation] = []
        self._changed = threading.Condition()
        self._stopping, self._hurry = threading.Event(), threading.Event()
        self._connected = self._down = False
        self._failures = self._strikes = self._num_taken = self._num_gone = 0
        self._came = time.monotonic()
        self._threads = [
            threading.Thread(target=self._keep, name="rltune-tracking-keep", daemon=True),
            threading.Thread(target=self._send, name="rltune-tracking", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_pending(self) -> int:
        """Operations that have not reached the server."""
        return self._num_taken - self._num_gone

    @property
    def state(self) -> Literal["opening", "up", "down"]:
        """Whether the target answered when it was last tried; ``opening`` before the first time."""
        return "down" if self._down else "up" if self._connected else "opening"

    def put(self, op: Op) -> None:
        """Hand an operation over; returns at once."""
        self._num_taken += 1
        self._queue.put(QueuedOperation(op))

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """The function's result, computed in the sender thread after everything before it was sent.

        Raises:
            TimeoutError: The turn did not come in time; the function will not be called.
            Exception: Whatever the function raised.
        """
        call = Call(function)
        self._queue.put(QueuedOperation({"op": "call"}, call=call))
        self._hurry.set()
        answered = call.done.wait(timeout_s)
        self._hurry.clear()
        if not answered:
            call.cancelled = True
            raise TimeoutError(f"no answer within {timeout_s:.0f} s")
        if call.error is not None:
            raise call.error
        return call.result

    def stop(self, timeout_s: float = 2.0) -> int:
        """End both threads, keeping what is unsent in the journal; the number of operations that it holds."""
        self._stopping.set()
        self._hurry.set()
        self._queue.put(None)
        self._threads[0].join(timeout_s)
        with self._changed:
            self._changed.notify_all()
        self._threads[1].join(0.5)
        with self._changed:
            left = sum(1 for entry in self._pending if not entry.call)
            for entry in self._pending:
                if entry.offset is None and not entry.call:  # the disk may have room again
                    entry.offset = self._journal.append(entry.op)
            self._journal.close(empty=left == 0)
        return left

    def _keep(self) -> None:
        self._open()
        full = False
        while (entry := self._queue.get()) is not None:
            try:
                entry.op = to_plain(entry.op, self._secrets)
            except Exception as error:  # a value whose str() fails must not end the reports
                self._say(f"'{entry.op['op']}' cannot be written down ({type(error).__name__}) and is left out")
                with self._changed:
                    self._num_gone += 1
                continue
            with self._changed:
                if not entry.call:
                    entry.offset = self._journal.append(entry.op)
                    if entry.offset is None and not full:
                        self._say(f"reports cannot be kept in {self._journal.path}: they wait in memory")
                    full = entry.offset is None
                self._pending.append(entry)
                self._changed.notify_all()

    def _open(self) -> None:
        try:
            left, damaged = self._journal.open()
        except OSError as error:
            self._say(f"{self._journal.path} cannot be used ({error.strerror})")
            return
        if damaged:
            self._say(f"{damaged} damaged lines in {self._journal.path} were put aside as {DAMAGED}")
        with self._changed:
            self._pending[:0] = left
            self._num_gone -= len(left)
            self._changed.notify_all()

    def _send(self) -> None:
        while (batch := self._next()) is not None:
            # while it is down a question first: what a stalled server is sent may be carried out after we gave it up
            if self._down and self._connected and not self._alive():
                self._wait()
                continue
            try:
                if not self._connected:
                    self._target.connect()
                    self._connected = True
                if batch[0].call:
                    batch[0].call.run()
                else:
                    self._target.apply([entry.op for entry in batch])
            except Exception as error:
                self._failed(batch, error)
            else:
                self._succeeded(batch)

    def _next(self) -> list[QueuedOperation] | None:
        """The next operations that may go together, one alone after a failure of its own; None at the end."""
        with self._changed:
            while not self._stopping.is_set() and (patience := self._patience()) != 0:
                self._changed.wait(patience)
            if self._stopping.is_set():
                return None
            first = self._pending[0]
            if self._strikes or not first.joins(first):
                return [first]
            batch: list[QueuedOperation] = []
            for entry in self._pending:
                # other trials' reports may be overtaken, anything else may not
                if entry.op["op"] not in JOINING or len(batch) == MAX_BATCH:
                    break
                if entry.joins(first):
                    batch.append(entry)
            return batch

    def _patience(self) -> float | None:
        """Seconds to wait for more: 0 when something is due, None without an end."""
        if not self._pending:
            return None
        left_s = self._came + OPENING_S - time.monotonic()
        opening = all(not entry.call and entry.op["op"] in OPENING for entry in self._pending)
        if opening and not self._connected and left_s > 0:
            return left_s
        alone = self._down or self._strikes or len(self._pending) >= MAX_BATCH
        if alone or any(entry.op["op"] not in JOINING for entry in self._pending):
            return 0
        return max(0.0, self._pending[0].came + LINGER_S - time.monotonic())

    def _succeeded(self, batch: list[QueuedOperation]) -> None:
        if self._down:
            self._say(f"MLflow answers again: {len(self._pending)} kept operations are being sent")
        self._down = False
        self._failures = self._strikes = 0
        self._forget(batch)

    def _forget(self, batch: list[QueuedOperation]) -> None:
        gone = set(map(id, batch))
        with self._changed:
            self._pending = [entry for entry in self._pending if id(entry) not in gone]
            self._num_gone += sum(1 for entry in batch if not entry.call)
            # a line that could not be struck out is sent twice, without effect
            with contextlib.suppress(OSError):
                self._journal.sent(batch, empty=not self._pending)

    def _failed(self, batch: list[QueuedOperation], error: Exception) -> None:
        """Wait, or give up one operation that fails again and again on a target that answers otherwise."""
        reason = redact(f"{type(error).__name__}: {error}".splitlines()[0], self._secrets)[:200]
        alive = self._connected and self._alive()
        if not alive and not self._down:
            self._say(f"MLflow does not answer ({reason}): reports are kept in {self._journal.path}, sent later")
        self._down = not alive
        # one success of `alive` may be the end of an outage, so that a single one proves nothing
        self._strikes = self._strikes + 1 if alive else 0
        if self._strikes >= (2 if self._target.hopeless(error) else 5) and len(batch) == 1:
            self._say(f"MLflow refused '{batch[0].op['op']}' of trial {batch[0].op.get('trial')} ({reason})")
            self._failures = self._strikes = 0
            self._forget(batch)
        else:
            self._wait()

    def _wait(self) -> None:
        longest = FIRST_WAIT_S if self._hurry.is_set() else LONGEST_WAIT_S
        self._hurry.wait(min(longest, FIRST_WAIT_S * 2 ** min(self._failures, 8)))
        self._failures += 1
        if self._hurry.is_set():  # somebody waits: steadily, not slower and slower
            self._stopping.wait(FIRST_WAIT_S)

    def _alive(self) -> bool:
        try:
            return self._target.alive()
        except Exception:
            return False
