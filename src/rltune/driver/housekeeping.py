"""Run periodic functions, the chores, in one thread of the driver."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType

CLOSE_S = 2.0  # How long the end of the housekeeping waits for a chore that is still running.
logger = logging.getLogger("rltune")
Chore = Callable[[], object]


class Housekeeping:
    """Calls functions periodically in one thread, each at its own interval, while the context is open.

    A chore must be bounded in time, because it delays all others. An exception is logged and ends nothing; it is logged
    again only after the chore has succeeded in between.

    Args:
        chores: Each a pair of the pause between two runs, in seconds, and a function, which is called at once for the
            first time.
        name: The thread's name.
    """

    def __init__(self, chores: Iterable[tuple[float, Chore]], name: str = "housekeeping") -> None:
        self._chores = list(chores)
        self._due: dict[Chore, float] = {}
        self._failing: set[Chore] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __enter__(self) -> Housekeeping:
        """Start the thread that runs the chores."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Start no further chore, and wait for the running one for a moment; a chore that hangs is abandoned."""
        self._closed.set()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while not self._closed.is_set():
            for interval_s, chore in self._chores:
                if not self._closed.is_set() and self._due.get(chore, 0.0) <= time.monotonic():
                    self._do(chore)
                    self._due[chore] = time.monotonic() + interval_s
            self._closed.wait(max(0.0, min(self._due.values(), default=0.0) - time.monotonic()))

    def _do(self, chore: Chore) -> None:
        try:
            chore()
            self._failing.discard(chore)
        except Exception as error:
            if chore not in self._failing:
                logger.warning("a chore of the driver failed", exc_info=error)
                self._failing.add(chore)
