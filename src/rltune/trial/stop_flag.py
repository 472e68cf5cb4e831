"""Tell the workers that the sweep ends, by a file in the sweep's store. Runs in a worker."""

from __future__ import annotations

import contextlib
import threading

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store

STOP_FILE = ".stop"  # The trials then save their latest state and hand back.


class StopFlag:
    """Knows whether the trials were asked to stop.

    A thread looks for the file: a store that does not answer must not hold up the training.

    Args:
        store: The sweep's.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._is_set, self._closed = threading.Event(), threading.Event()
        self._look()
        threading.Thread(target=self._watch, name="stop flag", daemon=True).start()

    def is_set(self) -> bool:
        """Return whether the trials were asked to stop."""
        return self._is_set.is_set()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()

    def _watch(self) -> None:
        while not self._is_set.is_set() and not self._closed.wait(self._store.poll_s):
            self._look()

    def _look(self) -> None:
        with contextlib.suppress(StoreError, OSError):
            if self._store.read(STOP_FILE, is_quick=True) is not None:
                self._is_set.set()
