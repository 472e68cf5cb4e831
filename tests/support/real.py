"""Real commands in a folder of their own: typed as a person types them, watched from outside."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import psutil
import pytest
from server import put_store

from rltune.cli.application.program import load_commands

SMALL = (
    "budget.trials=4",
    "budget.env_steps=20000",
    "certify=off",
)  # cartpole's tuned values reach hundreds with so little
ROOT = Path(__file__).parents[2]
PATIENCE_S = 600  # on a busy machine; a command that takes longer hangs


@dataclass
class Command:
    """A command that was typed, what came of it, and what it took."""

    code: int
    out: str
    peak_bytes: int = 0


@dataclass
class Project:
    """A person's folder: ``outputs/`` and ``mlflow.db`` end up in it."""

    folder: Path
    ran: Command | None = None
    replies: dict[str, Command] = field(default_factory=dict)

    @property
    def store(self) -> str:
        """The address of MLflow's own default store."""
        return f"sqlite:///{self.folder / 'mlflow.db'}"

    @property
    def sweep(self) -> Path:
        """The folder of the only sweep."""
        (config,) = (self.folder / "outputs").glob("*/config.yaml")
        return config.parent

    @property
    def summary(self) -> dict[str, Any]:
        """How the sweep ended."""
        return dict(json.loads((self.sweep / "summary.json").read_text()))

    def prepare_store(self) -> Project:
        """Let it have its default store, which MLflow takes seconds to make."""
        put_store(self.folder)
        return self

    def start(self, *words: str, before: tuple[str, ...] = ()) -> subprocess.Popen[str]:
        """Type ``python <words>``, after another command that runs it, and do not wait."""
        env = make_environment() | {"OMP_NUM_THREADS": "1"}
        env["PYTHONPATH"] = str(ROOT)  # for `python -m sweeps.run`, which is not installed; the rest must be
        return subprocess.Popen(
            [*before, sys.executable, *words],
            cwd=self.folder,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def type(self, *words: str) -> Command:
        """Type ``python <words>`` and wait."""
        return finish(self.start(*words))

    def call(self, name: str, *words: str) -> Command:
        """Run ``rltune <name> <words>`` in this process, which spares a second of imports, and wait."""
        code, out, err = call_command(self.folder, name, *words)
        return Command(code, out + err)


def make_environment() -> dict[str, str]:
    """Make one without the variables of MLflow, Ray and Tune."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("MLFLOW_", "RAY_", "TUNE_"))}


def call_command(folder: Path, name: str, *words: str) -> tuple[int, str, str]:
    """Run ``rltune <name> <words>`` in this process, in a folder; its exit code, its output and its errors."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, mock.patch.dict(os.environ, make_environment(), clear=True):
        patch.chdir(folder)
        patch.setattr(sys, "argv", [f"sweeps.{name}", *words])
        patch.setattr(sys, "path", [str(folder), *sys.path])  # as python -m does
        patch.setattr(sys, "excepthook", sys.excepthook)
        # Otherwise the exit code of this process would be the command's, whatever comes of the tests.
        patch.setattr("rltune.cli.application.command.end_command", sys.exit)
        patch.setattr("rltune.cluster.fork_server.begin_fork_server", lambda: None)
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as left:
            load_commands()[name]()
    return int(left.value.code or 0), out.getvalue(), err.getvalue()


def play_here(function: Callable[..., dict[str, Any]], settings: Any, **more: Any) -> dict[str, Any]:
    """Stand in for ``rltune.cli.policies._call_in_child``, which imports torch in a new process for each command."""
    return function(dataclasses.asdict(settings), progress=lambda done, total: None, **more)


def finish(process: subprocess.Popen[str]) -> Command:
    """Wait for a command; its output and the most memory that it and all its children had at once."""
    peak = [0]
    watch = threading.Thread(target=_watch_memory, args=(process, peak), daemon=True)
    watch.start()
    try:
        out, _ = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    watch.join()
    return Command(process.returncode, out, peak[0])


def _watch_memory(process: subprocess.Popen[str], peak: list[int]) -> None:
    root = psutil.Process(process.pid)
    while process.poll() is None:
        peak[0] = max(peak[0], sum(_measure_share(one) for one in _tree(root)))
        time.sleep(0.5)


def _tree(root: psutil.Process) -> list[psutil.Process]:
    try:
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def _measure_share(process: psutil.Process) -> int:
    """What the machine has to have for it: of a page that n processes share, each has one nth; where that is known."""
    try:
        memory = process.memory_full_info()
        return int(getattr(memory, "pss", memory.rss))
    except psutil.Error:
        return 0
