"""Supervise a trial from a second thread of its worker process, because the main thread is busy with training.

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
from collections.abc import Callable, Collection, Iterable, Iterator
from types import FrameType
from typing import Any

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import Store
from rltune.compat.ray_store import delete_value, read_values, write_value
from rltune.compat.threads import list_frames
from rltune.envs.guest import RUNNING, make_stall
from rltune.envs.step_count import STEPS

STOP_FILE = ".stop"  # The driver creates this file in the storage to end the sweep: trials save a checkpoint and end.
# If a trial hangs, the stack traces of its process are written to this file in the trial's folder.
STACK_FILE = "stalled.txt"
EXIT_CODE = 70  # The exit code of a worker process that hangs.
INTERVAL_S = 1.0
GRACE_S = 5.0  # How much longer a process may hang that lets no thread of its own run, not even the supervisor.


def name_heartbeat(sweep: str, trial_dir: str) -> str:
    """Return the key of a trial's heartbeat, from the sweep's path in the driver and the trial's folder."""
    return f"steps:{sweep}/{trial_dir}"


def read_steps(sweep: str, trial_dirs: Collection[str]) -> dict[str, int]:
    """Read from the heartbeats of trials how many environment steps each seed has taken, by the trials' folders.

    Trials that have not sent a heartbeat yet are left out.
    """
    folders = {name_heartbeat(sweep, trial_dir): trial_dir for trial_dir in trial_dirs}
    return {folders[name]: int(steps) for name, steps in read_values(folders.keys()).items()}


def has_stacks(trace: str) -> bool:
    """Return whether a process has hung, from its `STACK_FILE`, which has one line while the process runs."""
    return bool(trace.strip().partition("\n")[2])


class Supervisor:
    """Supervises one trial until `close`: sends heartbeats, notices a stop request, and ends the process if it hangs.

    Progress is an environment step that this process takes, wherever it is in an iteration, a call into the user's code
    that begins, such as the constructor of the next copy, and whatever is reported by `report_progress`: an iteration
    whose steps were taken by other processes, or an episode of an evaluation.

    A call into foreign code may hold Python's lock for ever, so that this thread does not run either. Then the timer of
    `faulthandler`, which needs no lock and is set again while this thread runs, writes the stacks and ends the process.

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
        self._counted, self._stepped_s = (STEPS.steps, RUNNING.count), -math.inf
        self._is_stopping = False
        self._closed, self._ending = threading.Event(), threading.Lock()
        STEPS.is_ending = False  # The flag belongs to the process, and an earlier trial may have set it.
        self._look_for_stop()
        self._main = threading.get_ident()
        self._stacks = self._open_stacks()
        threading.Thread(target=self._run, name="supervisor", daemon=True).start()

    @contextlib.contextmanager
    def watch(self) -> Iterator[None]:
        """End the process if the ``with`` block runs for too long without progress."""
        self._working_since = time.monotonic()
        try:
            yield
        finally:
            self._working_since = None

    def report_progress(self) -> None:
        """Restart the time limit for progress."""
        self._working_since = time.monotonic()

    def is_stop_requested(self) -> bool:
        """Return whether the sweep is to end; on remote storage, as of the supervisor's last check."""
        self._is_stopping = self._is_stopping or self._store.exists_locally(STOP_FILE)
        return self._is_stopping

    def close(self) -> None:
        """Stop supervising: afterwards the process is not ended any more, and sends no heartbeat."""
        with self._ending:
            if not self._closed.is_set():
                self._closed.set()
                self._close_stacks()
        if self._sent_steps is not None:
            # Deleting the heartbeat fails if Ray's head node is gone; the trial has to end nevertheless.
            with contextlib.suppress(Exception):
                delete_value(self._name)

    def _run(self) -> None:
        while not self._closed.wait(min(INTERVAL_S, self._stall_s / 4)):
            self._end_if_stalled()
            self._look_for_stop()
            if self._is_stopping:
                STEPS.is_ending = True
            # Sending may fail with many kinds of Ray errors; the next heartbeat comes soon.
            with contextlib.suppress(Exception):
                self._send_heartbeat()

    def _look_for_stop(self) -> None:
        """Look for the stop file in the storage, which takes seconds during an outage."""
        with contextlib.suppress(StoreError, OSError):
            if not self.is_stop_requested() and self._store.read(STOP_FILE, is_quick=True) is not None:
                self._is_stopping = True

    def _send_heartbeat(self) -> None:
        steps = self._count_steps()
        if steps and steps != self._sent_steps:
            write_value(self._name, str(steps))
            self._sent_steps = steps

    def _end_if_stalled(self) -> None:
        now, since, counted = time.monotonic(), self._working_since, (STEPS.steps, RUNNING.count)
        if counted != self._counted:
            self._counted, self._stepped_s = counted, now
        with self._ending:
            if self._closed.is_set():
                return
            if since is None:
                faulthandler.cancel_dump_traceback_later()
                return
            left_s = self._stall_s - (now - max(since, self._stepped_s))
            if left_s >= 0:
                if self._stacks is not None:
                    faulthandler.dump_traceback_later(left_s + GRACE_S, exit=True, file=self._stacks)
                return
            # A full disk or an outage may prevent the stack traces from being written; the hung process must end
            # anyway.
            with contextlib.suppress(OSError, StoreError):
                self._write_stacks(self._stall_s - left_s)
            os._exit(EXIT_CODE)

    def _open_stacks(self) -> Any:
        """Open the file for the stacks, which also removes those of an earlier attempt; None on a full disk."""
        path = self._store.folder / self._stack_file
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("w", errors="backslashreplace")
            file.write(f"no progress for {self._stall_s:g} s (failures.stall_s)\n")
            file.flush()
            return file
        return None

    def _close_stacks(self) -> None:
        faulthandler.cancel_dump_traceback_later()
        if self._stacks is not None:
            self._stacks.close()
            self._stacks = None
            with contextlib.suppress(OSError):
                (self._store.folder / self._stack_file).unlink()

    def _write_stacks(self, elapsed_s: float) -> None:
        # faulthandler writes to a file descriptor, so the stacks go to a local file, which is then published.
        self._stacks = None  # The file is kept.
        if (file := self._open_stacks()) is None:
            return
        with file:
            if call := RUNNING.name or find_loop_call(list_frames(self._main)):
                file.seek(0)
                file.write(f"{make_stall(call, elapsed_s).what} (failures.stall_s={self._stall_s:g})\n")
                file.flush()
            faulthandler.dump_traceback(file)
        self._store.publish([self._stack_file])


def find_loop_call(frames: Iterable[FrameType]) -> str:
    """Name the call that a hot loop is in, which `SyncEnvs` knows by its local variable; empty if none is.

    The loop itself does not set `rltune.envs.guest.RUNNING`, because that would slow each step.

    Args:
        frames: Those of a running thread or of a traceback.
    """
    for frame in frames:
        variables = frame.f_locals
        if frame.f_code.co_name == "step" and "index" in variables and hasattr(variables.get("self"), "name_call"):
            return str(variables["self"].name_call(variables["index"]))
    return ""
