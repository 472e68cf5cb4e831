"""Commands that a benchmark runs in processes of their own."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.records import ROOT


def make_environment(**settings: str) -> dict[str, str]:
    """Return this process's variables, under which a command and Ray's workers find this checkout's modules.

    Args:
        settings: Other variables, by name.
    """
    paths = [str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **settings}


@dataclass(frozen=True)
class Finished:
    """A command that ended well.

    Attributes:
        began: Seconds since the epoch.
        wall_s: From its start to its end.
        output: What it printed, without its errors.
    """

    began: float
    wall_s: float
    output: str


def run_command(typed: Sequence[str], folder: Path) -> Finished:
    """Run a command in a folder, which need not be there; what it said is kept in its ``output.txt``.

    Raises:
        RuntimeError: It ended with another code than 0.
    """
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    done = subprocess.run(typed, cwd=folder, env=make_environment(), capture_output=True, text=True, check=False)
    wall_s = time.time() - began
    (folder / "output.txt").write_text(done.stdout + done.stderr)
    if done.returncode:
        raise RuntimeError(f"{' '.join(typed)} ended with {done.returncode}:\n{(done.stdout + done.stderr)[-2000:]}")
    return Finished(began, wall_s, done.stdout)
