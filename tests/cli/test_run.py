"""``rltune run`` checks a request in a process of its own, which a signal ends, too."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

HANGS = """import subprocess, sys, time, gymnasium
class Hangs(gymnasium.Env):
    def __init__(self):
        subprocess.Popen([sys.executable, "-c", "input()"], start_new_session=True, stdin=subprocess.PIPE)
        open("made", "w").close()
        time.sleep(600)
gymnasium.register("Hangs-v0", Hangs)
"""
PRINTS = """import os
os.write(1, b"simulator of January\\n")
os.system("echo scene 0")
def score(total, length, info):
    return total
"""
CHECK = ("-m", "rltune", "run", "tracking=off", "check=true", "json=true")


@pytest.mark.parametrize("number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.nightly)])
def test_a_signal_ends_the_check_and_its_processes(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "hangs.py").write_text(HANGS)
    command = [sys.executable, *CHECK, "env.id=hangs:Hangs-v0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=listen_to_interrupts
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "made").exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert json.loads(out)["exit_code"] == 128 + number
    assert len(started) == 3
    assert psutil.wait_procs(started, timeout=10)[1] == []


def listen_to_interrupts() -> None:
    """Undo what a shell does to background processes, in which this test may run."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_standard_output_stays_the_commands_own(tmp_path: Path) -> None:
    (tmp_path / "prints.py").write_text(PRINTS)
    words = ("env=cartpole", "objective.kind=prints:score")
    done = subprocess.run([sys.executable, *CHECK, *words], cwd=tmp_path, capture_output=True, check=True, text=True)
    assert json.loads(done.stdout)["ok"] is True
    assert "scene" not in done.stderr


PROGRAM = """import sys, gymnasium, rltune
class Own(gymnasium.Env):
    pass
gymnasium.register("Own-v0", Own)
rltune.sweep("env.id=Own-v0", "tracking=off")
"""


def test_a_program_hears_that_only_it_knows_its_id(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    done = subprocess.run([sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1
    assert "rltune.errors.ConfigError: env.id=__main__:Own-v0" in done.stderr
    assert "env.id=program:Own-v0" in done.stderr
    assert os.listdir(tmp_path) == ["program.py"]
