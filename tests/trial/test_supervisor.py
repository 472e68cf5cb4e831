"""The supervisor of a worker: heartbeats, the sweep's end, and the end of a process that hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy import ToyTrial, make_task

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import Store, open_store
from rltune.engine.sampling.vector_envs import SyncEnvs
from rltune.envs.guest import call_guest
from rltune.envs.step_count import STEPS
from rltune.trial import supervisor as module
from rltune.trial.metrics import Progress
from rltune.trial.supervisor import EXIT_CODE, STACK_FILE, STOP_FILE, Supervisor, has_stacks, read_steps
from tests.engine.engine_toy import CountEnv


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(module, "INTERVAL_S", 0.02)
    yield
    STEPS.is_ending = False


@pytest.fixture
def exits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The exit codes with which the supervisor has ended the process."""
    codes: list[int] = []
    monkeypatch.setattr("rltune.trial.supervisor.os._exit", codes.append)
    return codes


def supervise(folder: Path | Store, stall_s: float = 600.0, count: Callable[[], int] = lambda: 0) -> Supervisor:
    return Supervisor(
        folder if isinstance(folder, Store) else open_store(folder), "/sweeps/a", "trials/3", stall_s, count
    )


def wait_for(happens: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60
    while not (answer := happens()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return answer


# -- a process that makes no progress ----------------------------------------------------------------------------------


def test_a_closed_supervisor_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exits: list[int]) -> None:
    """This also holds if the supervisor was just about to end the process."""
    writing = threading.Event()

    def write_slowly(self: Supervisor, elapsed_s: float) -> None:
        writing.set()
        time.sleep(0.2)

    monkeypatch.setattr(Supervisor, "_write_stacks", write_slowly)
    supervisor = supervise(tmp_path, 0.01)
    with supervisor.watch():
        assert writing.wait(60)
    supervisor.close()
    count = len(exits)
    time.sleep(0.4)
    assert len(exits) == count


def test_an_earlier_attempts_stack_explains_no_later_end(tmp_path: Path) -> None:
    stack = tmp_path / "trials" / "0" / STACK_FILE
    stack.parent.mkdir(parents=True)
    stack.write_text("no progress for 2 s")
    ToyTrial(make_task(tmp_path)).stop()
    assert not stack.exists()


class StalledRunner:
    """Behaves as RLlib does after its remote env runner hangs: iterations end, environment steps stand still."""

    replay_bytes = kept_steps = 0

    def __init__(self, exits: list[int]) -> None:
        self.exits = exits

    def train(self) -> Progress:
        if self.exits:
            raise RuntimeError("the process has ended")
        time.sleep(0.01)
        return Progress(env_steps=100, episodes=1, return_mean=1.0)

    def save(self, folder: Path, info: Any) -> None:
        pass

    def stop(self) -> None:
        pass


def test_iterations_without_a_step_are_no_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exits: list[int]
) -> None:
    monkeypatch.setattr("rltune.trial.trainable.MAX_STALLED", 1_000_000)
    monkeypatch.setattr(ToyTrial, "build_runner", lambda self, seed: StalledRunner(exits))
    trial = ToyTrial(make_task(tmp_path, stall_s=0.2, checkpoint_every_s=60.0))
    trial.step()
    trial.stop()
    assert exits[0] == EXIT_CODE
    assert " 0.2 s" in (tmp_path / "trials" / "0" / STACK_FILE).read_text()


@pytest.mark.slow
def test_steps_in_a_long_iteration_are_progress(tmp_path: Path, exits: list[int]) -> None:
    supervisor = supervise(tmp_path, 1.0)
    with supervisor.watch():
        for _ in range(30):
            STEPS.steps += 1
            time.sleep(0.05)
        assert not exits
        assert set(wait_for(lambda: exits)) == {EXIT_CODE}
    supervisor.close()


def test_a_call_that_begins_is_progress(tmp_path: Path, exits: list[int]) -> None:
    supervisor = supervise(tmp_path, 0.5)
    with supervisor.watch():
        for copy in range(4):
            with call_guest(f"make of copy {copy}"):
                time.sleep(0.3)
    supervisor.close()
    assert not exits
    assert not (tmp_path / "trials" / "3" / STACK_FILE).exists()


def test_a_hang_names_its_call_and_the_setting(tmp_path: Path, exits: list[int]) -> None:
    supervisor = supervise(tmp_path, 0.1)
    with supervisor.watch(), call_guest("reset of copy 2"):
        assert set(wait_for(lambda: exits)) == {EXIT_CODE}
    supervisor.close()
    first, *stacks = (tmp_path / "trials" / "3" / STACK_FILE).read_text().splitlines()
    assert "reset of copy 2" in first
    assert "failures.stall_s" in first
    assert stacks


def test_a_hang_in_a_hot_loop_names_copy_and_step(tmp_path: Path, exits: list[int]) -> None:
    class Hanging(CountEnv):
        def step(self, action: Any) -> Any:
            if self.count == 2:
                wait_for(lambda: exits)
            return super().step(action)

    envs = SyncEnvs(lambda index: Hanging(9) if index else CountEnv(9), 2)
    envs.reset([1, 2])
    supervisor = supervise(tmp_path, 0.1)
    with supervisor.watch():
        for _ in range(3):
            envs.step(np.zeros(2, np.int64))
    supervisor.close()
    assert "step 3 of copy 2" in (tmp_path / "trials" / "3" / STACK_FILE).read_text()


HOLDS_THE_LOCK = """
import re, sys
from pathlib import Path
from rltune.checkpoints.store import open_store
from rltune.trial import supervisor
supervisor.GRACE_S = 0.5
supervised = supervisor.Supervisor(open_store(Path(sys.argv[1])), "/sweeps/a", "trials/3", 0.5, lambda: 0)
with supervised.watch():
    import time
    time.sleep(0.3)
    re.match("(a+)+$", "a" * 64 + "b")
"""


@pytest.mark.slow
def test_a_process_that_holds_pythons_lock_ends(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", HOLDS_THE_LOCK, str(tmp_path)], timeout=60, check=False)
    assert ended.returncode == 1
    stacks = (tmp_path / "trials" / "3" / STACK_FILE).read_text()
    assert has_stacks(stacks)
    assert "failures.stall_s" in stacks.splitlines()[0]


# -- the sweep's end ---------------------------------------------------------------------------------------------------


@pytest.fixture(params=["local", pytest.param("s3", marks=[pytest.mark.slow, pytest.mark.xdist_group("servers")])])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "local":
        return open_store(tmp_path)
    return open_store(tmp_path, make_address(request.getfixturevalue("s3"), "flag"))


def test_a_file_in_the_store_asks_trials_to_stop(store: Store) -> None:
    supervisor = supervise(store)
    assert not supervisor.is_stop_requested()
    store.write(STOP_FILE, b"")
    assert wait_for(supervisor.is_stop_requested)
    later = supervise(store)
    assert later.is_stop_requested()
    store.delete(STOP_FILE)
    assert supervisor.is_stop_requested()
    supervisor.close()
    later.close()


def test_the_end_of_the_sweep_ends_an_iteration(tmp_path: Path) -> None:
    STEPS.is_ending = True  # An earlier trial of this process has left it so.
    supervisor = supervise(tmp_path)
    assert not STEPS.is_ending
    (tmp_path / STOP_FILE).touch()
    assert wait_for(lambda: STEPS.is_ending)
    supervisor.close()


# -- heartbeats --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.replacement
def test_the_driver_reads_the_steps_until_the_trial_ends(tmp_path: Path) -> None:
    steps = [7]
    supervisor = supervise(tmp_path, count=lambda: steps[0])
    assert wait_for(lambda: read_steps("/sweeps/a", ["trials/2", "trials/3"])) == {"trials/3": 7}
    steps[0] = 8
    assert wait_for(lambda: read_steps("/sweeps/a", ["trials/3"]) == {"trials/3": 8})
    assert read_steps("/sweeps/b", ["trials/3"]) == {}
    supervisor.close()
    assert read_steps("/sweeps/a", ["trials/3"]) == {}


def test_a_worker_has_one_thread_beside_its_main_one(tmp_path: Path) -> None:
    before = set(threading.enumerate())
    trial = ToyTrial(make_task(tmp_path))
    trial.step()
    assert [thread.name for thread in set(threading.enumerate()) - before] == ["supervisor"]
    trial.stop()
