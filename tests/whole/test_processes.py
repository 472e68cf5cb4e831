"""What an environment does to its process ends with the attempt at a trial."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import damages
import psutil
import pytest

from rltune.ledger.storage import open_ledger
from rltune.records import TrialRecord
from rltune.trial.metrics import MEMORY

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


def run_sweep(folder: Path, trials: int, *words: str) -> tuple[Any, list[TrialRecord]]:
    """Run a sweep of the simulator that damages its process; return the answer on stdout and the trials."""
    shutil.copy(damages.__file__, folder)
    command = [sys.executable, "-m", "rltune", "run", "env.id=damages:Damages-v0", "name=damages", "tracking=off"]
    settings = ["experiment=smoke", f"budget.trials={trials}", "budget.env_steps=2000", "report=false", "json=true"]
    with tempfile.TemporaryDirectory(prefix="d-", dir="/tmp") as short:  # The names of Ray's sockets have a limit.
        environment = {**os.environ, "RAY_TMPDIR": short}
        done = subprocess.run(
            [*command, *settings, *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert not list(Path(short).glob("ray/session_*"))
    ledger = open_ledger(folder / "outputs" / "damages")
    try:
        return json.loads(done.stdout), ledger.trials.records()
    finally:
        ledger.close()


def test_a_damaged_process_costs_no_later_trial(tmp_path: Path) -> None:
    """And the document is alone on standard output, and nothing of Ray's is left."""
    kinds = [name for name in damages.DAMAGES if name not in ("memory", "hangs")]
    answer, records = run_sweep(tmp_path, 10, f"+env.kwargs.damages=[{','.join(kinds)}]")
    assert {record.state for record in records} == {"COMPLETE"}
    assert answer["trials"]["complete"] == 10
    assert all((tmp_path / f"{name}.happened").exists() for name in kinds)


def test_a_trials_memory_has_not_what_others_lost(tmp_path: Path) -> None:
    _, records = run_sweep(tmp_path, 3, "+env.kwargs.damages=[memory]", "resources.max_concurrent=1")
    first, *others = [record.numbers[MEMORY] for record in records]
    assert max(others) < first - 200


def test_no_process_meets_the_one_before_it(tmp_path: Path) -> None:
    """Neither a retry nor the next trial, though closing a copy takes a while."""
    one = ("algo.env_runners.num_envs_per_env_runner=1", "resources.max_concurrent=1")
    _, records = run_sweep(
        tmp_path, 3, *one, "+env.kwargs.damages=[cuda]", "+env.kwargs.lock=true", "+env.kwargs.close_s=0.5"
    )
    assert {record.state for record in records} == {"COMPLETE"}
    assert not (tmp_path / "licence").exists()


def test_a_sweep_whose_own_ray_is_killed_can_go_on(tmp_path: Path) -> None:
    """Without a node no trial would ever begin again."""
    words = ["name=own", "algo=ppo", "env=cartpole", "tracking=off", "experiment=smoke", "report=false"]
    command = [sys.executable, "-m", "rltune", "run", *words, "budget.env_steps=100000", "resume=auto"]
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp") as short:
        environment = {**os.environ, "RAY_TMPDIR": short}
        with subprocess.Popen(command, cwd=tmp_path, env=environment) as sweep:
            deadline = time.monotonic() + 120
            while not list(tmp_path.glob("outputs/own/trials/*/*/*-*/manifest.json")) and time.monotonic() < deadline:
                time.sleep(0.1)
            for process in psutil.Process(sweep.pid).children(recursive=True):
                if process.name() == "raylet":
                    process.kill()
            assert sweep.wait(60) == 75
        assert subprocess.run(command, cwd=tmp_path, env=environment, timeout=300).returncode == 0
    with contextlib.closing(open_ledger(tmp_path / "outputs" / "own")) as ledger:
        assert {record.state for record in ledger.trials.records()} <= {"COMPLETE", "PRUNED"}
