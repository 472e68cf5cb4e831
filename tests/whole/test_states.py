"""An environment whose observations are states and not numbers, from the command to its policy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import rltune

pytestmark = pytest.mark.slow


def test_a_sweep_over_states_gives_a_policy_of_states(tmp_path: Path) -> None:
    def type_in(*words: str) -> str:
        command = [sys.executable, "-m", "rltune", *words]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    # The first line of the file shows whose folder a path leads to, in the check, in trials and in evaluations.
    (tmp_path / "lake.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.toy_text import FrozenLakeEnv\n"
        "class Lake(FrozenLakeEnv):\n"
        "    def __init__(self, desc='map.txt'):\n"
        "        super().__init__(desc=open(desc).read().split())\n"
        "    def close(self):\n"
        "        raise AttributeError('no window')\n"
        "gymnasium.register('Lake-v0', Lake, max_episode_steps=20)\n"
    )
    (tmp_path / "map.txt").write_text("SF\nFG\n")
    type_in("run", "env.id=lake:Lake-v0", "name=lake", "experiment=smoke", "budget.env_steps=1000", "tracking=off")
    type_in("evaluate", "policy=sweep:lake", "episodes=5")
    policy = rltune.load_policy("sweep:lake", output_dir=tmp_path / "outputs", trust=True)
    assert [int(policy.act(state)) in range(4) for state in range(4)] == [True] * 4
