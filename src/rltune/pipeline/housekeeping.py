"""Run the chores of a driver in one thread. Runs in the driver."""

from __future__ import annotations

import collections
import logging
import threading
import time
from collections.abc import Callable, Iterable
from types import TracebackType

CLOSE_S = 2.0  # The longest wait for the chore that runs when the housekeeping ends.
logger = logging.getLogger("rltune")
Chore = Callable[[], object]


class Housekeeping:
    """Runs chores one after the other, each at its own interval, until the context manager is left.

    A chore must be bounded in time, because it delays all others. An exception is logged and ends nothing; it is logged
    again only after the chore has succeeded in between.

    Args:
        chores: Each a pair of an interval in seconds and a function; see `add`.
        name: The thread's name.
    """

    def __init__(self, chores: Iterable[tuple[float | None, Chore]] = (), name: str = "housekeeping") -> None:
        self._periodic: list[tuple[float, Chore]] = []
        self._due: dict[Chore, float] = {}
        self._single: collections.deque[Chore] = collections.deque()
        self._failing: set[Chore] = set()
        self._changed = threading.Condition()
        self._is_closed = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        for interval_s, chore in chores:
            self.add(interval_s, chore)

    def __enter__(self) -> Housekeeping:
        """Start the thread."""
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Begin no further chore, and wait for the one that runs; one that hangs is left behind."""
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_S)

    def add(self, interval_s: float | None, chore: Chore) -> None:
        """Add a chore; it is due at once.

        Args:
            interval_s: The pause between two runs, in seconds; None runs the chore once. Chores that run once keep
                their order.
            chore: The function.
        """
        with self._changed:
            if interval_s is None:
                self._single.append(chore)
            else:
                self._periodic.append((interval_s, chore))
            self._changed.notify()

    def wait(self, timeout_s: float) -> bool:
        """Wait until all chores that are to run once have run; return whether they have."""
        done = threading.Event()
        self.add(None, done.set)
        return done.wait(timeout_s)

    def _run(self) -> None:
        while not self._is_closed:
            # The periodic chores go first, so that a long queue of single ones holds none of them up.
            for interval_s, chore in list(self._periodic):
                if not self._is_closed and self._due.get(chore, 0.0) <= time.monotonic():
                    self._do(chore)
                    self._due[chore] = time.monotonic() + interval_s
            if self._single and not self._is_closed:
                chore = self._single.popleft()
                self._do(chore)
                self._failing.discard(chore)
            with self._changed:
                if not (self._is_closed or self._single):
                    due = min((self._due.get(chore, 0.0) for _, chore in self._periodic), default=None)
                    self._changed.wait(None if due is None else max(0.0, due - time.monotonic()))

    def _do(self, chore: Chore) -> None:
        try:
            chore()
            self._failing.discard(chore)
        except Exception as error:
            if chore not in self._failing:
                logger.warning("a chore of the driver failed", exc_info=error)
                self._failing.add(chore)
