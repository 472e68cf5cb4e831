"""Let SIGINT and SIGTERM end a sweep cleanly."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


@contextlib.contextmanager
def stop_on_signals(request: Callable[[str, int], None]) -> Iterator[None]:
    """Request a clean end at the first SIGINT or SIGTERM; raise KeyboardInterrupt at the second.

    Args:
        request: Takes a reason and the signal's number; see `rltune.pipeline.stopper.SweepStopper.request`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers; a caller's own thread ends its sweep by its budget
        return

    seen = False

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal seen
        if seen:
            raise KeyboardInterrupt(number)
        seen = True
        request("interrupted", number)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
