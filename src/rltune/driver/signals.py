"""Let signals such as SIGINT and SIGTERM end a sweep cleanly."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import NoReturn

from rltune.errors import UnavailableError

# Exit codes of commands that were ended by a signal.
INTERRUPTED = tuple(128 + number for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM))
_calls_at_exit: list[Callable[[UnavailableError], object]] = []


def call_at_process_end(call: Callable[[UnavailableError], object]) -> None:
    """Have `end_process` call a function with the error first, as a command does to print its answer."""
    _calls_at_exit[:] = [call]


def end_process(error: UnavailableError) -> NoReturn:
    """End the process at once because of an error, which a thread has to do while Ray holds the main thread."""
    try:
        for call in _calls_at_exit:
            call(error)
    finally:
        os._exit(error.exit_code)


@contextlib.contextmanager
def stop_on_signals(request: Callable[[str, int], None]) -> Iterator[None]:
    """Ask the sweep for a clean end at the first signal; raise KeyboardInterrupt at the second.

    A second SIGHUP changes nothing, because both the kernel and the shell send it when a terminal is closed.

    Args:
        request: Takes a reason and the signal's number; see `rltune.driver.stopper.SweepStopper.request`.
    """
    seen = False

    def handle(number: int) -> None:
        nonlocal seen
        if seen and number != signal.SIGHUP:
            raise KeyboardInterrupt(number)
        seen = True
        request("interrupted", number)  # After the first signal, further requests have no effect.

    with handle_signals(handle, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        yield


@contextlib.contextmanager
def handle_signals(handle: Callable[[int], None], *numbers: signal.Signals) -> Iterator[None]:
    """Call a function with the number of each signal that arrives while the context is open.

    SIGHUP, which a closed terminal sends, stays ignored under nohup. Only the main thread may set handlers: another
    thread's sweep ends by its budget.

    Args:
        handle: The function.
        numbers: The signals.
    """
    before = {}

    def receive(number: int, _: FrameType | None) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        handle(number)

    if threading.current_thread() is threading.main_thread():
        for number in numbers:
            if number != signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, receive)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    """Redirect output to /dev/null if the terminal was closed, because writing to it would raise an OSError."""
    own = sys.__stdout__.fileno() if sys.__stdout__ else 1
    for descriptor in (own, 1, 2):
        with contextlib.suppress(OSError):
            if stat.S_ISCHR(os.fstat(descriptor).st_mode):
                devnull = os.open(os.devnull, os.O_WRONLY)
                os.dup2(devnull, descriptor)
                os.close(devnull)
