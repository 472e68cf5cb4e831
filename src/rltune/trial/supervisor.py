"""Supervise a trial from a second thread of its worker, because the first one trains and answers nobody.

The supervisor sends heartbeats, ends an iteration early if the sweep ends, and ends a process that makes no progress,
because an environment never returns or a remote process is never placed. Python cannot interrupt a call into foreign
code, so the whole process ends, and the trial is retried from its last checkpoint. Runs in a worker; `read_steps` runs
in the driver.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import threading
import time
from collections.abc import Callable, Collection, Iterator

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store
from rltune.compat.ray_store import delete_value, read_values, write_value
from rltune.envs.step_count import STEPS

STOP_FILE = ".stop"  # If the sweep's store has this file, trials save their latest state and end.
STACK_FILE = "stalled.txt"  # The file in a trial's folder for the stacks of the process's threads.
EXIT_CODE = 70  # A process that makes no progress ends with this exit code.
INTERVAL_S = 1.0


def name_heartbeat(sweep: str, trial_dir: str) -> str:
    """Name the value that a trial's heartbeat sets, by the driver's path of the sweep and the trial's folder."""
    return f"steps:{sweep}/{trial_dir}"


def read_steps(sweep: str, trial_dirs: Collection[str]) -> dict[str, int]:
    """Read how many environment steps each seed of some trials has taken, by the trials' folders.

    Trials that have not sent a heartbeat yet are left out.
    """
    folders = {name_heartbeat(sweep, trial_dir): trial_dir for trial_dir in trial_dirs}
    return {folders[name]: int(steps) for name, steps in read_values(folders.keys()).items()}


class Supervisor:
    """Supervises one trial until `close`.

    Progress is an environment step that this process takes, wherever it is in an iteration, and whatever is reported by
    `report_progress`: an iteration whose steps were taken by other processes, or an episode of an evaluation.

    Args:
        store: The sweep's store.
        sweep: The driver's path of the sweep.
        trial_dir: The trial's folder in the sweep's.
        stall_s: Seconds without progress after which the process ends.
        count_steps: Counts the environment steps that each of the trial's seeds has taken by now.
    """

    def __init__(
        self, store: Store, sweep: str, trial_dir: str, stall_s: float, count_steps: Callable[[], int]
    ) -> None:
        self._store, self._stack_file, self._stall_s = store, f"{trial_dir}/{STACK_FILE}", stall_s
        self._name, self._count_steps = name_heartbeat(sweep, trial_dir), count_steps
        self._sent_steps: int | None = None
        self._working_since: float | None = None
        self._counted_steps, self._stepped_s = STEPS.steps, -math.inf
        self._is_stopping = False
        self._closed, self._ending = threading.Event(), threading.Lock()
        STEPS.is_ending = False  # An earlier trial in this process may have set the flag.
        self._look_for_stop()
        threading.Thread(target=self._run, name="supervisor", daemon=True).start()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """Require progress inside the ``with`` block."""
        self._working_since = time.monotonic()
        try:
            yield
        finally:
            self._working_since = None

    def report_progress(self) -> None:
        """Note that the work has come further."""
        self._working_since = time.monotonic()

    def is_stop_requested(self) -> bool:
        """Return whether the sweep ends: as of now on a local disk, else as of the supervisor's last look."""
        self._is_stopping = self._is_stopping or self._store.exists_locally(STOP_FILE)
        return self._is_stopping

    def close(self) -> None:
        """Stop supervising: when this returns, nothing ends the process any more, and there is no heartbeat."""
        with self._ending:
            self._closed.set()
        if self._sent_steps is not None:
            with contextlib.suppress(Exception):  # A trial also has to end if the cluster's head is gone.
                delete_value(self._name)

    def _run(self) -> None:
        while not self._closed.wait(min(INTERVAL_S, self._stall_s / 4)):
            self._end_if_stalled()
            self._look_for_stop()
            if self._is_stopping:
                STEPS.is_ending = True
            with contextlib.suppress(Exception):  # A failed heartbeat, for which Ray has many errors, is sent again.
                self._send_heartbeat()

    def _look_for_stop(self) -> None:
        """Read the stop file, which takes seconds if the storage does not answer."""
        with contextlib.suppress(StoreError, OSError):
            if not self.is_stop_requested() and self._store.read(STOP_FILE, is_quick=True) is not None:
                self._is_stopping = True

    def _send_heartbeat(self) -> None:
        steps = self._count_steps()
        if steps and steps != self._sent_steps:
            write_value(self._name, str(steps))
            self._sent_steps = steps

    def _end_if_stalled(self) -> None:
        now, since = time.monotonic(), self._working_since
        if STEPS.steps != self._counted_steps:
            self._counted_steps, self._stepped_s = STEPS.steps, now
        if since is None or now - max(since, self._stepped_s) <= self._stall_s:
            return
        with self._ending:
            if self._closed.is_set():
                return
            # A hung process must end even if the disk is full or the storage is unreachable.
            with contextlib.suppress(OSError, StoreError):
                self._write_stacks()
            os._exit(EXIT_CODE)

    def _write_stacks(self) -> None:
        path = self._store.folder / self._stack_file
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:  # faulthandler needs a real file.
            file.write(f"no progress for {self._stall_s:g} s\n")
            file.flush()
            faulthandler.dump_traceback(file)
        self._store.publish([self._stack_file])
