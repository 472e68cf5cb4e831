"""What is typed about the environment of an evaluation is applied or refused."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from real import call_command, play_here

from tests.policies.bundles import BOX, write_linear

WALK = """
import gymnasium, numpy

class Walk(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, split="train"):
        self.length = {"train": 40, "test": 15}[split]

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(4, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        return numpy.zeros(4, numpy.float32), 1.0, self.steps == self.length, False, {}

class Doubled(gymnasium.Wrapper):
    def step(self, action):
        obs, reward, *rest = self.env.step(action)
        return obs, 2 * reward, *rest

gymnasium.register("Walk-v0", Walk)
"""


@pytest.mark.slow
def test_evaluate_applies_or_refuses_each_word_about_env(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "walks.py").write_text(WALK)
    write_linear(tmp_path / "policy", BOX, {"id": "walks:Walk-v0", "wrappers": [{"entry_point": "walks:Doubled"}]})

    def evaluate(*words: str) -> tuple[int, dict[str, object]]:
        typed = ("policy=policy", "trust=true", "episodes=5", "json=true", *words)
        code, out, _ = call_command(tmp_path, "evaluate", *typed)
        return code, json.loads(out)

    def play(*words: str) -> tuple[object, object]:
        code, answer = evaluate(*words)
        assert code == 0, answer
        return answer["mean"], answer["lengths"][0]  # type: ignore[index]

    assert play() == (80, 40)
    monkeypatch.setattr("rltune.cli.policies._call_in_child", play_here)
    assert play("+env.kwargs.split=test") == (30, 15)
    assert play("env.id=walks:Walk-v0", "+env.kwargs.split=test") == (30, 15)
    assert play("+env.kwargs.max_episode_steps=10") == (20, 10)
    assert play("env.wrappers=[]") == (40, 40)
    assert play("env.restarts=2") == (80, 40)
    for word in ("+env.nonsense=3", "+env.rewards=3", "+env.kwargs.nonsense=3"):
        code, answer = evaluate(word)
        assert code == 2
        assert word.lstrip("+").partition("=")[0].rpartition(".")[2] in str(answer["error"])


FRAGILE = """
import os, pathlib, signal, gymnasium, numpy

class Fragile(gymnasium.Env):
    metadata = {"render_modes": ["rgb_array"], "render_fps": 30}
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, render_mode=None, fault="", when=None):
        self.render_mode, self.fault, self.when = render_mode, fault, when

    def reset(self, *, seed=None, options=None):
        self.steps, self.seed = 0, seed
        return numpy.zeros(4, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 3 and self.render_mode == self.when and self.fault and not pathlib.Path("once").exists():
            if "always" not in self.fault:
                pathlib.Path("once").touch()
            if "dies" in self.fault:
                os.kill(os.getpid(), signal.SIGSEGV)
            raise ValueError("the simulator lost its licence")
        return numpy.zeros(4, numpy.float32), 1.0, self.steps == 5, False, {}

    def render(self):
        return numpy.zeros((64, 64, 3), numpy.uint8)

gymnasium.register("Fragile-v0", Fragile)
"""


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("words", "fault", "when", "restarts", "code", "num_films"),
    [
        (("evaluate", "video=true"), "raises", "rgb_array", 1, 0, 3),
        (("evaluate", "video=true"), "raises always", "rgb_array", 1, 0, 0),
        (("evaluate", "video=true"), "dies", "rgb_array", 0, 0, 3),
        (("evaluate",), "dies", None, 0, 0, None),
        (("evaluate",), "dies always", None, 0, 1, None),
        (("record", "out=data.parquet"), "raises", None, 1, 0, None),
        (("record", "out=data.parquet"), "raises", None, 0, 2, None),
    ],
)
def test_a_fault_costs_no_finished_evaluation(
    tmp_path: Path,
    words: tuple[str, ...],
    fault: str,
    when: str | None,
    restarts: int,
    code: int,
    num_films: int | None,
) -> None:
    (tmp_path / "fragile.py").write_text(FRAGILE)
    env = {"id": "fragile:Fragile-v0", "kwargs": {"fault": fault, "when": when}, "restarts": restarts}
    write_linear(tmp_path / "policy", BOX, env)
    command = [sys.executable, "-m", f"sweeps.{words[0]}", "policy=policy", "trust=true", "episodes=3", "json=true"]
    done = subprocess.run([*command, *words[1:]], cwd=tmp_path, capture_output=True, text=True)
    answer = json.loads(done.stdout)
    assert done.returncode == code, answer
    if code == 0:
        assert answer.get("mean", answer.get("return_mean")) == 5
    elif code == 2:
        assert "licence" in answer["error"]
    if num_films is not None:
        assert len(answer.get("films", ())) == num_films
        assert ("film_error" in answer) == (num_films == 0)


STUCK = """
import ctypes, pathlib, gymnasium, numpy

class Stuck(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (4,), numpy.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(4, numpy.float32), {}

    def step(self, action):
        pathlib.Path("stuck").touch()
        ctypes.PyDLL(None).sleep(600)  # It keeps the interpreter's lock, so that no thread of Python runs.

gymnasium.register("Stuck-v0", Stuck)
"""


@pytest.mark.nightly
@pytest.mark.parametrize("words", [["evaluate"], ["record", "out=data.parquet"]])
def test_ctrl_c_ends_a_command_whose_step_never_returns(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "stuck_env.py").write_text(STUCK)
    write_linear(tmp_path / "policy", BOX, {"id": "stuck_env:Stuck-v0"})
    typed = [sys.executable, "-m", "rltune", *words, "policy=policy", "trust=true", "episodes=5"]
    running = subprocess.Popen(typed, cwd=tmp_path)
    deadline = time.monotonic() + 120
    while not (tmp_path / "stuck").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    (child,) = psutil.Process(running.pid).children()
    running.send_signal(signal.SIGINT)
    assert running.wait(10) == 130
    assert not child.is_running()
