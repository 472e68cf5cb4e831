"""Let SIGINT and SIGTERM end a sweep cleanly."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def stop_on_signals(request: Callable[[str, int], None]) -> Iterator[None]:
    """First SIGINT or SIGTERM: end cleanly. Second: at once."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; a caller's own thread ends its sweep by its budget
        return

    def handle(number: int, _: Any) -> None:
        if handle.__dict__.setdefault("seen", 0):
            raise KeyboardInterrupt(number)
        handle.__dict__["seen"] = 1
        request("interrupted", number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
