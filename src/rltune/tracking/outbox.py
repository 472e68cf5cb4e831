"""Send what MLflow lacks, in a thread: nobody waits for a server, and nothing depends on it.

The ledger keeps what is to be sent, so that this keeps nothing on disk. When woken, the thread lets the `LedgerView`
send what the ledger has and MLflow lacks, then carries out the tasks that the driver has handed over. What fails is
tried again while the server is away; what a server refuses is given up, with one line for a person. Runs in the driver.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from rltune.config.uris import redact
from rltune.errors import describe_exception
from rltune.tracking.ledger_view import LedgerView

# A request costs the driver as much as ten reports, so the reports of some seconds travel together. Importing MLflow
# takes 2 s of CPU, which the first trials need to start.
LINGER_S = 5.0
FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 5.0  # The back-off after failures: the first wait, doubled up to the longest.
SLICE_S = 0.1  # How soon whoever waits for an answer notices that there is no time for it.
MAX_ATTEMPTS = 3  # Failures in a row, on a server that works otherwise, after which an operation is given up.


@dataclass(eq=False)
class _Task:
    """Something that the driver has handed over.

    Attributes:
        name: For a person; None for a call that is waited for.
        function: Carries it out.
        place: The sweep's run when it was carried out; it is repeated where another MLflow gets everything again.
        done: Set when a call was answered.
        answer: Of a call.
        error: Of a call.
    """

    name: str | None
    function: Callable[[], Any]
    place: str | None = None
    done: threading.Event = field(default_factory=threading.Event)
    answer: Any = None
    error: Exception | None = None


class _StoppedError(Exception):
    """The thread is to end."""


class _AwayError(Exception):
    """The server does still not answer."""


class Outbox:
    """The thread, and what the driver has handed to it.

    Args:
        view: Sends what the ledger has.
        notify: Called with what a person should know, a line each.
    """

    def __init__(self, view: LedgerView, notify: Callable[[str], None]) -> None:
        self._view, self._notify = view, notify
        self._tasks: list[_Task] = []
        self._woken, self._stopping = threading.Event(), threading.Event()
        self._urgent = threading.Event()  # somebody waits, or the first report came: the thread does not linger
        self._connected = self._down = False
        self._failures = 0  # rounds in a row
        self._attempts: Counter[str] = Counter()  # failures in a row, by operation
        self._thread = threading.Thread(target=self._run, name="rltune-tracking", daemon=True)
        self._thread.start()

    @property
    def state(self) -> Literal["opening", "up", "down"]:
        """Whether the target answered when it was last tried; ``opening`` before the first time."""
        return "down" if self._down else "up" if self._connected else "opening"

    def wake(self, *, connect: bool = False) -> None:
        """Say that there is something new to send.

        Args:
            connect: Whether to open MLflow now: its import takes seconds of CPU, which the first trials need to start.
        """
        if connect and not (self._connected or self._failures):
            self._urgent.set()
        self._woken.set()

    def put(self, name: str, function: Callable[[], Any]) -> None:
        """Hand a task over, without waiting."""
        self._tasks.append(_Task(name, function))
        self.wake()

    def call(self, function: Callable[[], Any], timeout_s: float, is_urgent: Callable[[], bool] = lambda: False) -> Any:
        """Compute a function in the thread, after everything before it was sent, and return its result.

        Args:
            function: The function.
            timeout_s: The longest wait.
            is_urgent: Whether to wait no longer, such as after a signal.

        Raises:
            TimeoutError: The turn did not come in time; the function will not be called.
            Exception: Whatever the function raised.
        """
        deadline = time.monotonic() + timeout_s
        task = _Task(None, function)
        self._tasks.append(task)
        self._urgent.set()
        self.wake()
        while not task.done.wait(min(SLICE_S, max(0.0, deadline - time.monotonic()))):
            if is_urgent() or time.monotonic() >= deadline:
                task.done.set()
                raise TimeoutError("the sweep ends" if is_urgent() else f"no answer within {timeout_s:.0f} s")
        if task.error is not None:
            raise task.error
        return task.answer

    def stop(self) -> None:
        """End the thread; an operation under way is waited for a moment."""
        self._stopping.set()
        self._urgent.set()
        self.wake()
        self._thread.join(0.5)

    def _run(self) -> None:
        while True:
            self._woken.wait()
            back_off_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2 ** min(self._failures - 1, 8))
            self._urgent.wait(back_off_s if self._failures else LINGER_S)
            if self._stopping.is_set():
                return
            self._woken.clear()
            self._urgent.clear()
            try:
                self._send()
            except _StoppedError:
                return
            except Exception as error:
                self._handle_failure(error)
                self._woken.set()

    def _send(self) -> None:
        tasks = list(self._tasks)  # before the ledger is read: what was written before a call is sent before its answer
        # After a failure ask first: a stalled server may still carry out what we send and then give up.
        if self._down and self._connected and not self._view.is_alive():
            raise _AwayError
        if not self._connected:
            self._view.connect()
            self._connected = True
        place = self._view.send(self._attempt)
        for task in tasks:
            if task.name is None:
                self._answer(task)
            elif place is not None and task.place != place:
                self._attempt(task.name, task.function)
                task.place = place
        if self._down:
            self._notify("MLflow answers again: what it lacked was sent")
        self._down, self._failures = False, 0

    def _answer(self, task: _Task) -> None:
        self._tasks.remove(task)
        if not task.done.is_set():  # somebody still waits
            try:
                task.answer = task.function()
            except Exception as error:
                self._view.doubt()
                task.error = error
            task.done.set()

    def _attempt(self, name: str, function: Callable[[], Any]) -> bool:
        """Carry an operation out, or give it up where it fails again and again on a server that works otherwise."""
        if self._stopping.is_set():
            raise _StoppedError
        try:
            function()
        except Exception as error:
            self._view.doubt()
            # An outage may have ended between the failure and `is_alive`: one failure proves nothing.
            self._attempts[name] = self._attempts[name] + 1 if self._view.is_alive() else 0
            if self._attempts[name] < MAX_ATTEMPTS:
                raise
            self._notify(f"MLflow refused {name} ({self._describe(error)})")
            self._failures = 0
            del self._attempts[name]
            return False
        del self._attempts[name]
        return True

    def _handle_failure(self, error: Exception) -> None:
        self._view.doubt()
        self._failures += 1
        if isinstance(error, _AwayError) or not (self._connected and self._view.is_alive()):
            if not self._down:
                self._notify(f"MLflow does not answer ({self._describe(error)}): what it lacks is sent later")
            self._down = True
        if any(task.name is None for task in self._tasks):  # Somebody waits in `call`: try again soon.
            self._failures = min(self._failures, 2)

    def _describe(self, error: Exception) -> str:
        return redact(describe_exception(error))[:200]
