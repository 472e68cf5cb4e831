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
        chores: Each a pair of an interval in seconds and a function; see `add`.
        name: The thread's name.
    """

    def __init__(self, chores: Iterable[tuple[float, Chore]] = (), name: str = "housekeeping") -> None:
        self._chores: list[tuple[float, Chore]] = []
        self._due: dict[Chore, float] = {}
        self._failing: set[Chore] = set()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        for interval_s, chore in chores:
            self.add(interval_s, chore)

    def __enter__(self) -> Housekeeping:
        """Start the thread that runs the chores."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Start no further chore, and wait for the running one for a moment; a chore that hangs is abandoned."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def add(self, interval_s: float, chore: Chore) -> None:
        """Add a periodic function, which is called for the first time at once.

        Args:
            interval_s: The pause between two runs, in seconds.
            chore: The function.
        """
        with self._changed:
            self._chores.append((interval_s, chore))
            self._changed.notify()

    def _run(self) -> None:
        while not self._is_closed:
            for interval_s, chore in list(self._chores):
                if not self._is_closed and self._due.get(chore, 0.0) <= time.monotonic():
                    self._do(chore)
                    self._due[chore] = time.monotonic() + interval_s
            with self._changed:
                if not self._is_closed:
                    due = min((self._due.get(chore, 0.0) for _, chore in self._chores), default=None)
                    self._changed.wait(None if due is None else max(0.0, due - time.monotonic()))

    def _do(self, chore: Chore) -> None:
        try:
            chore()
            self._failing.discard(chore)
        except Exception as error:
            if chore not in self._failing:
                logger.warning("a chore of the driver failed", exc_info=error)
                self._failing.add(chore)
