"""How often a sweep starts a simulator of which one copy may be open in a process."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import few_copies
import pytest

pytestmark = pytest.mark.nightly

SEARCHED = ("+env.kwargs.name=a", "+space.env.kwargs.name=[choice,a,b]", "warm_start=[{env.kwargs.name: b}]")
CERTIFIED = ("certify=on", "certify.top=1", "certify.seeds=3", "certify.episodes=5")


@pytest.mark.parametrize(
    ("words", "runs", "evaluations"),
    [
        # Two trials decide how they act, are evaluated, and the better one is measured on other episodes.
        ((), 0, 2 + 2 + 1),
        # The best trial is the baseline's, and is retrained with it. The winner is measured on two sets of episodes.
        (CERTIFIED, 2 * 3, 2),
        (("engine=rllib", "budget.trials=1"), 0, 1 + 1 + 1),
        (("env.vectorize=async", "budget.trials=1"), 0, 1 + 1 + 1),
        (SEARCHED, 0, 2 + 2 + 1),
    ],
)
def test_a_sweep_starts_a_simulator_as_seldom_as_it_can(
    words: tuple[str, ...], runs: int, evaluations: int, tmp_path: Path
) -> None:
    (tmp_path / "few_copies.py").write_text(Path(few_copies.__file__).read_text())
    log = tmp_path / "starts"
    command = [sys.executable, "-m", "rltune", "run", "experiment=smoke", "tracking=off", "name=few", *words]
    command += ["env.id=few_copies:FewCopies-v0", f"+env.kwargs.log={log}"]
    command.append("algo.env_runners.num_envs_per_env_runner=1")
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "cannot be evaluated" not in done.stdout + done.stderr
    started = [tuple(map(int, line.split())) for line in log.read_text().splitlines()]
    assert {number for _, number in started} == {1}, "open at once in a process"
    trials = 1 if "budget.trials=1" in words else 2
    checks = 2 if words is SEARCHED else 1  # One for each environment that there may be.
    assert len(started) == checks + trials + 2 * runs + evaluations, Counter(pid for pid, _ in started)
