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
from collections.abc import Callable, Iterator
from pathlib import Path

from rltune.envs.step_count import STEPS
from rltune.study.bucket import BucketError

STACK_FILE = "stalled.txt"  # in the trial's folder: where its threads were
EXIT_CODE = 70


class Watchdog:
    """Watches work that is to make progress.

    Args:
        trial_dir: The trial's folder.
        limit_s: Seconds without progress after which the process ends.
        send: Sends the file with the stack to the driver, where no folder is shared with it; None where one is.
    """

    def __init__(self, trial_dir: Path, limit_s: float, send: Callable[[Path], None] | None = None) -> None:
        self._trial_dir, self._limit_s, self._send = trial_dir, limit_s, send
        self._since: float | None = None
        self._ended = threading.Event()
        (trial_dir / STACK_FILE).unlink(missing_ok=True)  # an earlier attempt's: a later end has reasons of its own
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
                # A full disk, or a bucket that is away, must not keep a hung process alive.
                with contextlib.suppress(OSError, BucketError):
                    self._write_stack()
                os._exit(EXIT_CODE)

    def _write_stack(self) -> None:
        self._trial_dir.mkdir(parents=True, exist_ok=True)
        with (self._trial_dir / STACK_FILE).open("w") as file:
            file.write(f"no progress for {self._limit_s:g} s\n")
            file.flush()
            faulthandler.dump_traceback(file)
        if self._send:
            self._send(self._trial_dir / STACK_FILE)
