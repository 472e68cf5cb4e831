"""Tell the driver between two reports how far a trial is, and end an iteration early when the sweep ends.

An iteration in a slow environment lasts for minutes, in which a worker reports nothing and answers nobody. Runs in the
worker, in a thread of its own; `read_steps` in the driver.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection

from rltune.compat.ray_store import delete_value, read_values, write_value
from rltune.envs.step_count import STEPS
from rltune.trial.stop_flag import StopFlag

BEAT_S = 1.0


def name_beat(sweep: str, trial_dir: str) -> str:
    """Name the value that a trial's heartbeat sets, by the driver's path of the sweep and the trial's folder."""
    return f"steps:{sweep}/{trial_dir}"


def read_steps(sweep: str, trial_dirs: Collection[str]) -> dict[str, int]:
    """Read how many environment steps each of a trial's seeds has taken, by the trial's folder, where that is known."""
    folders = {name_beat(sweep, trial_dir): trial_dir for trial_dir in trial_dirs}
    return {folders[name]: int(steps) for name, steps in read_values(folders.keys()).items()}


class Heartbeat:
    """Reports a trial's steps to the driver while the trial trains, and looks for the request to stop.

    Args:
        name: See `name_beat`.
        count: Counts the environment steps that each of the trial's seeds has taken by now.
        stop: Says when the sweep ends. This thread alone looks for it: a slow storage must not hold up the training.
    """

    def __init__(self, name: str, count: Callable[[], int], stop: StopFlag) -> None:
        self._name, self._count, self._stop = name, count, stop
        self._reported: int | None = None
        self._closed = threading.Event()
        STEPS.is_ending = False  # An earlier trial of this process may have set it.
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """Stop the heartbeat, and leave no value behind."""
        self._closed.set()
        if self._reported is not None:
            with contextlib.suppress(Exception):  # A trial ends even if the head of the cluster is gone.
                delete_value(self._name)

    def _run(self) -> None:
        while not self._closed.wait(BEAT_S):
            steps = self._count()
            if steps and steps != self._reported:
                # Ray raises errors of several kinds, and the next attempt may succeed.
                with contextlib.suppress(Exception):
                    write_value(self._name, str(steps))
                    self._reported = steps
            if self._stop.look():
                STEPS.is_ending = True
