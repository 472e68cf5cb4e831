"""Follow how far the running trials are between two of their reports. Runs in the driver."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from types import TracebackType

from rltune.trial.heartbeat import read_steps

LOOK_S = 2.0
logger = logging.getLogger("rltune")


class Heartbeats:
    """Reads the heartbeats of trials, in a thread: a head that is busy or gone must not hold up the driver.

    Args:
        sweep: The sweep's folder, as the trials' assignments have it.
        live: Folders of the trials whose workers are up; it changes meanwhile.
    """

    def __init__(self, sweep: str, live: set[str]) -> None:
        self._sweep, self._live = sweep, live
        self._steps: dict[str, int] = {}
        self._closed = threading.Event()

    def __enter__(self) -> Heartbeats:
        """Begin to read."""
        threading.Thread(target=self._follow, name="heartbeats", daemon=True).start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Stop reading."""
        self._closed.set()

    def read(self) -> Mapping[str, int]:
        """Return the environment steps of each seed, by the folder of each trial that is up and has begun to step."""
        known = self._steps
        return {own: known[own] for own in list(self._live) if own in known}

    def _follow(self) -> None:
        while not self._closed.wait(LOOK_S):
            try:
                self._steps = read_steps(self._sweep, list(self._live))
            except Exception as error:  # the head is away, which others notice and say
                logger.debug("no heartbeat could be read", exc_info=error)
