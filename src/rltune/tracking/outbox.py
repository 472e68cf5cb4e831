"""Queue a sweep's operations for MLflow, keep them on disk, and send them in order.

Nobody waits for a server and nothing is lost. `Outbox.put` is one queue put. The keeper thread writes each operation
into a journal. The sender thread hands operations on in order, and tries again until that succeeds. What an operation
means is the business of the `Target` (`rltune.tracking.mlflow_runs`). Runs in the driver.
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
LINGER_S = 1.5  # a request costs the driver as much as ten reports: those of 1.5 s travel together
OPENING = ("start", "text", "trial")  # operations before the first report
OPENING_S = 5.0  # how long they wait for it: importing MLflow takes 2 s of CPU, which the first trials need to start
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 5.0


class Target(Protocol):
    """Where operations go. Every method runs in the sender thread and may raise."""

    def connect(self) -> None:
        """Prepare, slowly if need be. Called until it succeeds, before anything else."""

    def apply(self, ops: Sequence[Op]) -> None:
        """Carry operations of one kind and trial out. A repetition must have no effect."""

    def is_alive(self) -> bool:
        """Return whether the target answers at all, to tell an outage from an operation that cannot work."""

    def is_hopeless(self, error: Exception) -> bool:
        """Return whether a repetition would fail in the same way."""


class Outbox:
    """Take operations from the driver, keep them and send them in order.

    Args:
        folder: Where the journal lives; what an earlier driver left there is sent first.
        target: Where operations go.
        notify: Called with what a person should know, a line each.
        secrets: Words that must be written nowhere.
    """

    def __init__(
        self, folder: Path, target: Target, notify: Callable[[str], None], secrets: Sequence[str] = ()
    ) -> None:
        self._target, self._notify, self._secrets = target, notify, secrets
        self._journal = Journal(folder)
        self._queue: queue.SimpleQueue[QueuedOperation | None] = queue.SimpleQueue()
        self._pending: list[QueuedOperation] = []
        self._changed = threading.Condition()
        self._stopping, self._hurry = threading.Event(), threading.Event()
        self._connected = self._down = False
        self._failures = self._strikes = self._num_put = self._num_done = 0
        self._opened = time.monotonic()
        self._threads = [
            threading.Thread(target=self._write_journal, name="rltune-tracking-keep", daemon=True),
            threading.Thread(target=self._send, name="rltune-tracking", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def num_pending(self) -> int:
        """Return the number of operations that have not reached the server."""
        return self._num_put - self._num_done

    @property
    def state(self) -> Literal["opening", "up", "down"]:
        """Return whether the target answered when it was last tried; ``opening`` before the first time."""
        return "down" if self._down else "up" if self._connected else "opening"

    def put(self, op: Op) -> None:
        """Hand an operation over, without waiting."""
        self._num_put += 1
        self._queue.put(QueuedOperation(op))

    def call(self, function: Callable[[], Any], timeout_s: float) -> Any:
        """Compute a function in the sender thread, after everything before it was sent, and return its result.

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
        """End both threads and keep what is unsent in the journal; return the number of operations that it holds."""
        self._stopping.set()
        self._hurry.set()
        self._queue.put(None)
        self._threads[0].join(timeout_s)
        with self._changed:
            self._changed.notify_all()
        self._threads[1].join(0.5)
        with self._changed:
            left = sum(1 for operation in self._pending if not operation.call)
            for operation in self._pending:
                if operation.offset is None and not operation.call:  # the disk may have room again
                    operation.offset = self._journal.append(operation.op)
            self._journal.close(empty=left == 0)
        return left

    def _write_journal(self) -> None:
        self._read_journal()
        full = False
        while (operation := self._queue.get()) is not None:
            try:
                operation.op = to_plain(operation.op, self._secrets)
            except Exception as error:  # a value whose str() fails must not end the reports
                self._notify(f"'{operation.op['op']}' cannot be written down ({type(error).__name__}) and is left out")
                with self._changed:
                    self._num_done += 1
                continue
            with self._changed:
                if not operation.call:
                    operation.offset = self._journal.append(operation.op)
                    if operation.offset is None and not full:
                        self._notify(f"reports cannot be kept in {self._journal.path}: they wait in memory")
                    full = operation.offset is None
                self._pending.append(operation)
                self._changed.notify_all()

    def _read_journal(self) -> None:
        try:
            left, damaged = self._journal.open()
        except OSError as error:
            self._notify(f"{self._journal.path} cannot be used ({error.strerror})")
            return
        if damaged:
            self._notify(f"{damaged} damaged lines in {self._journal.path} were put aside as {DAMAGED}")
        with self._changed:
            self._pending[:0] = left
            self._num_done -= len(left)
            self._changed.notify_all()

    def _send(self) -> None:
        while (batch := self._wait_for_batch()) is not None:
            # After a failure ask first: a stalled server may still carry out what we send and then give up.
            if self._down and self._connected and not self._is_alive():
                self._wait_to_retry()
                continue
            try:
                if not self._connected:
                    self._target.connect()
                    self._connected = True
                if batch[0].call:
                    batch[0].call.run()
                else:
                    self._target.apply([operation.op for operation in batch])
            except Exception as error:
                self._handle_failure(batch, error)
            else:
                self._handle_success(batch)

    def _wait_for_batch(self) -> list[QueuedOperation] | None:
        """Return the next operations that may go together, one alone after a failure of its own; None at the end."""
        with self._changed:
            while not self._stopping.is_set() and (wait_s := self._wait_s()) != 0:
                self._changed.wait(wait_s)
            if self._stopping.is_set():
                return None
            first = self._pending[0]
            if self._strikes or not first.can_join(first):
                return [first]
            batch: list[QueuedOperation] = []
            for operation in self._pending:
                # other trials' reports may be overtaken, anything else may not
                if operation.op["op"] not in JOINING or len(batch) == MAX_BATCH:
                    break
                if operation.can_join(first):
                    batch.append(operation)
            return batch

    def _wait_s(self) -> float | None:
        """Return the seconds to wait for more: 0 when something is due, None without an end."""
        if not self._pending:
            return None
        left_s = self._opened + OPENING_S - time.monotonic()
        opening = all(not operation.call and operation.op["op"] in OPENING for operation in self._pending)
        if opening and not self._connected and left_s > 0:
            return left_s
        alone = self._down or self._strikes or len(self._pending) >= MAX_BATCH
        if alone or any(operation.op["op"] not in JOINING for operation in self._pending):
            return 0
        return max(0.0, self._pending[0].queued + LINGER_S - time.monotonic())

    def _handle_success(self, batch: list[QueuedOperation]) -> None:
        if self._down:
            self._notify(f"MLflow answers again: {len(self._pending)} kept operations are being sent")
        self._down = False
        self._failures = self._strikes = 0
        self._remove(batch)

    def _remove(self, batch: list[QueuedOperation]) -> None:
        gone = set(map(id, batch))
        with self._changed:
            self._pending = [operation for operation in self._pending if id(operation) not in gone]
            self._num_done += sum(1 for operation in batch if not operation.call)
            # a line that could not be struck out is sent twice, without effect
            with contextlib.suppress(OSError):
                self._journal.strike_out(batch, empty=not self._pending)

    def _handle_failure(self, batch: list[QueuedOperation], error: Exception) -> None:
        """Wait, or give up one operation that fails again and again on a target that answers otherwise."""
        reason = redact(f"{type(error).__name__}: {error}".splitlines()[0], self._secrets)[:200]
        alive = self._connected and self._is_alive()
        if not alive and not self._down:
            self._notify(f"MLflow does not answer ({reason}): reports are kept in {self._journal.path}, sent later")
        self._down = not alive
        # The outage may have ended between the failure and `is_alive`: one strike proves nothing.
        self._strikes = self._strikes + 1 if alive else 0
        if self._strikes >= (2 if self._target.is_hopeless(error) else 5) and len(batch) == 1:
            self._notify(f"MLflow refused '{batch[0].op['op']}' of trial {batch[0].op.get('trial')} ({reason})")
            self._failures = self._strikes = 0
            self._remove(batch)
        else:
            self._wait_to_retry()

    def _wait_to_retry(self) -> None:
        longest = FIRST_WAIT_S if self._hurry.is_set() else LONGEST_WAIT_S
        self._hurry.wait(min(longest, FIRST_WAIT_S * 2 ** min(self._failures, 8)))
        self._failures += 1
        if self._hurry.is_set():  # somebody waits in `call`: retry steadily, not slower and slower
            self._stopping.wait(FIRST_WAIT_S)

    def _is_alive(self) -> bool:
        try:
            return self._target.is_alive()
        except Exception:
            return False
