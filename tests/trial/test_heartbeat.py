"""What is known of a trial between two reports, and how its iteration ends early."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rltune.checkpoints.store import open_store
from rltune.envs.step_count import STEPS
from rltune.trial import heartbeat
from rltune.trial.heartbeat import Heartbeat, name_beat, read_steps
from rltune.trial.stop_flag import STOP_FILE, StopFlag


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.02)
    yield
    STEPS.is_ending = False


def wait_for(happens: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (found := happens()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def test_the_end_of_the_sweep_ends_an_iteration(tmp_path: Path) -> None:
    STEPS.is_ending = True  # an earlier trial's
    beat = Heartbeat("one", lambda: 0, StopFlag(open_store(tmp_path)))
    assert not STEPS.is_ending
    (tmp_path / STOP_FILE).touch()
    assert wait_for(lambda: STEPS.is_ending)
    beat.close()


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.replacement
def test_the_driver_reads_the_steps_until_the_trial_ends(tmp_path: Path) -> None:
    taken = [7]
    beat = Heartbeat(name_beat("/sweeps/a", "trials/3"), lambda: taken[0], StopFlag(open_store(tmp_path)))
    assert wait_for(lambda: read_steps("/sweeps/a", ["trials/2", "trials/3"])) == {"trials/3": 7}
    taken[0] = 8
    assert wait_for(lambda: read_steps("/sweeps/a", ["trials/3"]) == {"trials/3": 8})
    assert read_steps("/sweeps/b", ["trials/3"]) == {}
    beat.close()
    assert read_steps("/sweeps/a", ["trials/3"]) == {}
