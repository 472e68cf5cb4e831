"""Sweeps beside each other, whose living copies never share a number and never exceed the bound of the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import living_copies
import pytest

ENV = ("env=gym", "env.id=living_copies:LivingCopies-v0", "+env.per_copy.number=number", "+env.per_copy.workdir=folder")
SMALL = ("experiment=smoke", "tracking=off", "algo.env_runners.num_envs_per_env_runner=4")


@pytest.mark.nightly  # Two sweeps of their own take a minute.
@pytest.mark.parametrize(
    ("first", "second"),
    [(["env.vectorize=async"], ["algo.env_runners.num_env_runners=1"]), (["engine=rllib"], ["replicates=1"])],
)
def test_two_sweeps_share_the_copies_of_a_machine(first: list[str], second: list[str], tmp_path: Path) -> None:
    shutil.copy(living_copies.__file__, tmp_path)
    log, locks = tmp_path / "log", tmp_path / "copies"
    variables = {**os.environ, "RLTUNE_COPIES": str(locks), "PYTHONPATH": os.environ["PYTHONPATH"]}
    command = [sys.executable, "-m", "rltune", "run", *SMALL, *ENV, f"+env.kwargs.log={log}", "env.max_copies=6"]
    sweeps = [
        subprocess.Popen([*command, *more, f"name=s{number}"], cwd=tmp_path, env=variables, stdout=subprocess.DEVNULL)
        for number, more in enumerate((first, second))
    ]
    assert [sweep.wait(300) for sweep in sweeps] == [0, 0]
    assert 4 < living_copies.count_most_alive(log) <= 6
    assert [path.name for path in locks.iterdir()] == ["locks"], "all folders are removed"
