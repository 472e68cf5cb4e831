"""End a worker whose work hangs: an environment that never returns, a remote process that is never placed.

Python cannot interrupt a call into foreign code, so the whole process ends. The trial goes on from its last
checkpoint, as often as ``failures.max_retries`` says. Runs in a worker, in a thread of its own.

Progress is an environment step that this process takes, wherever it is in an iteration; and what `report_progress` is
told: an iteration whose steps were taken by other processes, or an episode of an evaluation.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import threading
import time
from collections.abc import Iterator

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store
from rltune.envs.step_count import STEPS

STACK_FILE = "stalled.txt"  # The stacks of the process's threads, in the trial's folder.
EXIT_CODE = 70


class Watchdog:
    """Watches work that is to make progress.

    Args:
        store: The sweep's.
        trial_dir: The trial's folder in it.
        limit_s: Seconds without progress after which the process ends.
    """

    def __init__(self, store: Store, trial_dir: str, limit_s: float) -> None:
        self._store, self._name, self._limit_s = store, f"{trial_dir}/{STACK_FILE}", limit_s
        self._since: float | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Watch the work inside the ``with`` block."""
        self._since = time.monotonic()
        try:
            yield
        finally:
            self._since = None

    def report_progress(self) -> None:
        """Restart the clock: the work has come further."""
        self._since = time.monotonic()

    def close(self) -> None:
        """Stop watching for good: when this returns, nothing ends the process any more."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        seen, stepped = STEPS.steps, -math.inf
        while not self._ended.wait(min(1.0, self._limit_s / 4)):
            since, now = self._since, time.monotonic()
            if STEPS.steps != seen:
                seen, stepped = STEPS.steps, now
            if since is not None and now - max(since, stepped) > self._limit_s:
                # Neither a full disk nor a storage that is away may keep a hung process alive.
                with contextlib.suppress(OSError, StoreError):
                    self._write_stack()
                os._exit(EXIT_CODE)

    def _write_stack(self) -> None:
        path = self._store.folder / self._name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:  # faulthandler needs a real file.
            file.write(f"no progress for {self._limit_s:g} s\n")
            file.flush()
            faulthandler.dump_traceback(file)
        self._store.publish([self._name])
