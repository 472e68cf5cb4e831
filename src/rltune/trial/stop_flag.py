"""Tell the workers that the sweep ends, by a file in the sweep's store. Runs in a worker."""

from __future__ import annotations

import contextlib
import threading

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store

STOP_FILE = ".stop"  # The trials then save their latest state and hand back.


class StopFlag:
    """Remembers whether the trials were asked to stop.

    Args:
        store: The sweep's.
    """

    def __init__(self, store: Store) -> None:
        self._store, self._is_set = store, threading.Event()
        self.look()

    def is_set(self) -> bool:
        """Return whether the trials were asked to stop: now on a local disk, else as of the last `look`."""
        if not self._is_set.is_set() and self._store.glance(STOP_FILE):
            self._is_set.set()
        return self._is_set.is_set()

    def look(self) -> bool:
        """Look for the file, which takes seconds where the storage does not answer; return whether it was there."""
        with contextlib.suppress(StoreError, OSError):
            if not self.is_set() and self._store.read(STOP_FILE, is_quick=True) is not None:
                self._is_set.set()
        return self._is_set.is_set()
