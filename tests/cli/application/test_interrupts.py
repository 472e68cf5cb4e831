"""Ctrl-C while a command is still imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

INTERRUPTED = """
import os, runpy, signal, sys

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == imported:
            os.kill(os.getpid(), signal.SIGINT)

_, module, imported = sys.argv
sys.argv[1:] = ["list"]
sys.meta_path.insert(0, Finder())
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""


@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize("imported", ["yaml", "rltune.errors", "rltune.config.schema"])
@pytest.mark.parametrize("module", ["rltune", "sweeps.list"])
def test_an_early_interrupt_is_answered_in_one_line(module: str, imported: str) -> None:
    """A command's own answer to Ctrl-C begins only when its imports are done."""
    ended = subprocess.run([sys.executable, "-c", INTERRUPTED, module, imported], capture_output=True, text=True)
    assert ended.returncode == 130
    assert ended.stdout == ""
    assert len(ended.stderr.splitlines()) == 1
