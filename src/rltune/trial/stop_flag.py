"""Tell a trial's worker that the sweep ends: by a file in the sweep's folder, or in its bucket. Runs in a worker."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path

from rltune.study.bucket import GLANCE_S, BucketError, find_bucket

STOP_FILE = ".stop"  # trials save their latest state and hand back
ASK_S = 2.0  # seconds between two looks into a bucket: each is a request that is paid for


class StopFlag:
    """Knows whether the trials were asked to stop.

    Args:
        sweep: The sweep's folder, or a worker's own that leads to its bucket.
    """

    def __init__(self, sweep: Path) -> None:
        self._file, self._bucket = sweep / STOP_FILE, find_bucket(sweep)
        self._seen, self._closed = threading.Event(), threading.Event()
        if self._bucket:  # in a thread: a bucket that does not answer must not hold up the training
            threading.Thread(target=self._watch, name="stop flag", daemon=True).start()

    def is_set(self) -> bool:
        """Whether they were."""
        return self._seen.is_set() if self._bucket else self._file.exists()

    def close(self) -> None:
        """Stop looking."""
        self._closed.set()

    def _watch(self) -> None:
        assert self._bucket is not None
        while not self._closed.wait(ASK_S):
            with contextlib.suppress(BucketError):
                if self._bucket.read(STOP_FILE, GLANCE_S) is not None:
                    self._seen.set()
                    return
