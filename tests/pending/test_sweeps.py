"""Ends of sweeps that are still wrong, with the move that turns each green; the last one is mended."""

from __future__ import annotations

import contextlib
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

TESTS = Path(__file__).parents[1]
# What a person would type, with a toy in the place of a trial.
TOY_SWEEP = """
import sys
import rltune.pipeline.plan
from composing import compose
from rltune.commands.application.command import leave
from rltune.config.validation import parse_config
from rltune.errors import RltuneError
from rltune.pipeline.run import run_sweep
from toy import TOY, ToyTrial

rltune.pipeline.plan.preflight = lambda plan: None
words = ("tracking=off", "name=toy", "resume=auto", "cluster.num_cpus=1", "resources.max_concurrent=1", *sys.argv[1:])
try:
    sys.exit(run_sweep(parse_config(compose("run", *TOY, *words)), trainable=ToyTrial).exit_code)
except RltuneError as error:
    leave(error)
"""


def run(folder: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MLFLOW_", "TUNE_"))}
    env |= {"PYTHONPATH": str(TESTS / "support"), **settings}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=env, capture_output=True, text=True, timeout=300
    )


def run_toy(folder: Path, *words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    return run(folder, "-c", TOY_SWEEP, *words, **settings)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a sweep that has ended after one trial."""
    folder = tmp_path_factory.mktemp("ended")
    done = run_toy(folder, "budget.trials=1")
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture
def folder(ended: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(ended, tmp_path / "copy"))


@contextlib.contextmanager
def open_ledger(folder: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(folder / "outputs/toy/ledger.db")) as ledger, ledger:
        yield ledger


def test_a_resume_without_a_ledger_waits_for_no_ray(folder: Path) -> None:
    for file in (folder / "outputs/toy").glob("ledger*"):
        file.unlink()
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as short:  # for sockets
        done = run_toy(folder, "budget.trials=2", RAY_TMPDIR=short)
        assert done.returncode == 2, done.stderr
        assert "ledger.db" in done.stderr.splitlines()[0]
        assert not any(Path(short).iterdir()), "no session of Ray"
