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
    """Name the value that a trial's heartbeat sets: by the sweep's folder as the driver knows it, and the trial's."""
    return f"steps:{sweep}/{trial_dir}"


def read_steps(sweep: str, trial_dirs: Collection[str]) -> dict[str, int]:
    """Read how many environment steps each of a trial's seeds has taken, by the trial's folder, where that is known."""
    beats = {name_beat(sweep, own): own for own in trial_dirs}
    return {beats[name]: int(steps) for name, steps in read_values(beats.keys()).items()}


class Heartbeat:
    """Beats while a trial trains.

    Args:
        name: See `name_beat`.
        count: Counts the environment steps that each of the trial's seeds has taken by now.
        stop: Says when the sweep ends.
    """

    def __init__(self, name: str, count: Callable[[], int], stop: StopFlag) -> None:
        self._name, self._count, self._stop = name, count, stop
        self._told: int | None = None
        self._closed = threading.Event()
        STEPS.is_ending = False  # of an earlier trial
        threading.Thread(target=self._run, name="heartbeat", daemon=True).start()

    def close(self) -> None:
        """Stop beating, and leave nothing behind."""
        self._closed.set()
        if self._told is not None:
            with contextlib.suppress(Exception):  # without its head a trial ends all the same
                delete_value(self._name)

    def _run(self) -> None:
        while not self._closed.wait(BEAT_S):
            if self._stop.is_set():
                STEPS.is_ending = True
            steps = self._count()
            if steps and steps != self._told:
                with contextlib.suppress(
                    Exception
                ):  # Ray's errors are of several kinds, and the next beat may reach it
                    write_value(self._name, str(steps))
                    self._told = steps
