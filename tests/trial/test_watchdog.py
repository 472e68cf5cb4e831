"""The watchdog: what it leaves behind is about this attempt and no earlier one."""

from __future__ import annotations

import threading
import time
from collections import Counter

from toy import ToyTrial, make_task

from rltune.checkpoints.store import open_store
from rltune.envs.step_count import STEPS
from rltune.trial.assignment import Assignment
from rltune.trial.metrics import Progress
from rltune.trial.trainable import Trial
from rltune.trial.watchdog import EXIT_CODE, STACK_FILE, Watchdog


def test_a_closed_watchdog_ends_nothing(tmp_path, monkeypatch):
    """Also where it was just writing down the threads: what ends after `close` is somebody else's work."""
    ended, writing = [], threading.Event()

    def write_slowly(self):
        writing.set()
        time.sleep(0.2)

    monkeypatch.setattr("rltune.trial.watchdog.os._exit", ended.append)
    monkeypatch.setattr(Watchdog, "_write_stack", write_slowly)
    watchdog = Watchdog(open_store(tmp_path), "trials/3", 0.01)
    with watchdog.watch():
        assert writing.wait(60)
    watchdog.close()
    count = len(ended)
    time.sleep(0.4)
    assert len(ended) == count


def test_an_earlier_attempts_stack_does_not_explain_a_later_end(tmp_path):
    stack = tmp_path / "trials" / "0" / STACK_FILE
    stack.parent.mkdir(parents=True)
    stack.write_text("no progress for 2 s")
    ToyTrial(make_task(tmp_path)).stop()
    assert not stack.exists()


class WithoutItsEnvRunner:
    """RLlib after its remote env runner hangs: iterations end, environment steps stand still."""

    def __init__(self, ended):
        self.ended = ended

    def train(self):
        if self.ended:
            raise RuntimeError("the process has ended")
        time.sleep(0.01)
        return Progress(env_steps=100, episodes=1, return_mean=1.0)

    replay_bytes = 0

    def save(self, folder, info):
        pass

    def stop(self):
        pass


def test_iterations_without_an_environment_step_are_no_progress(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr("rltune.trial.watchdog.os._exit", ended.append)
    monkeypatch.setattr("rltune.trial.trainable.MAX_STALLED", 1_000_000)
    monkeypatch.setattr(Trial, "build_runner", lambda self, seed: WithoutItsEnvRunner(ended))
    task = Assignment(
        number=0, params={}, seeds=(1,), sweep=str(tmp_path), env_steps=1000, reports=2, checkpoint_every_s=60.0,
        replay_gb=0, stall_s=0.2, threads=1, engine="rllib", build={"algo": {"name": "ppo"}, "env": {}},
    )  # fmt: skip
    trial = Trial(task.to_config())
    trial.step()
    trial.stop()
    assert ended[0] == EXIT_CODE
    assert " 0.2 s" in (tmp_path / "trials" / "0" / STACK_FILE).read_text()


class Clock:
    """A clock that moves when it is told to."""

    def __init__(self):
        self.now, self.looks = time.monotonic(), Counter()

    def monotonic(self):
        self.looks[threading.current_thread()] += 1
        return self.now

    def move(self, seconds, thread):
        """Move it, and return when the thread has looked at it and drawn its conclusions."""
        self.now += seconds
        seen, deadline = self.looks[thread], time.monotonic() + 60
        while self.looks[thread] < seen + 2 and time.monotonic() < deadline:
            time.sleep(0.001)
        assert self.looks[thread] >= seen + 2


def test_a_long_iteration_in_a_slow_environment_is_no_hang(tmp_path, monkeypatch):
    """Environment steps are progress, wherever in an iteration; without them a worker still ends."""
    ended, clock = [], Clock()
    monkeypatch.setattr("rltune.trial.watchdog.os._exit", ended.append)
    monkeypatch.setattr("rltune.trial.watchdog.time", clock)
    before = set(threading.enumerate())
    watchdog = Watchdog(open_store(tmp_path), "trials/3", 0.02)
    (thread,) = set(threading.enumerate()) - before
    with watchdog.watch():
        for _ in range(12):
            STEPS.steps += 1
            clock.move(0.015, thread)
        assert not ended
        clock.move(0.03, thread)
        assert ended[0] == EXIT_CODE
    watchdog.close()
