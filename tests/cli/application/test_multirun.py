"""Several jobs of one command, one after the other; ``tests/whole/test_commands.py`` types some."""

from __future__ import annotations

import signal
import subprocess
import sys
import time

import pytest
from omegaconf import OmegaConf

from rltune.cli.application.multirun import Job, run_jobs
from rltune.cli.run import check
from rltune.compose.composing import compose_settings
from rltune.config.schema import RunConfig


def test_the_worst_exit_code_is_the_commands_and_no_failure_stops_the_next(monkeypatch, capfd):
    script = "import sys; print('ran', sys.argv[1], flush=True); sys.exit(int(sys.argv[1]))"
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", script, "-m", "seed=1,2"])
    monkeypatch.setattr(sys, "argv", ["run.py", "-m", "seed=1,2"])
    code = run_jobs("run", [Job(OmegaConf.create({}), (word,), True) for word in ("2", "0", "1")])
    out = capfd.readouterr().out
    assert code == 2
    assert [line for line in out.splitlines() if line.startswith("ran")] == ["ran 2", "ran 0", "ran 1"]
    assert [line[:1] for line in out.splitlines() if " ended with " in line] == ["1", "3"]


@pytest.mark.slow
def test_the_check_of_several_jobs_tells_them_apart(capsys):
    words = [("env=cartpole", f"seed={seed}") for seed in (1, 2)]
    answer = check([Job(compose_settings("run", RunConfig, each), each, True) for each in words])
    answer.show()
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if line.startswith("env=")] == [
        "env=cartpole seed=1:",
        "env=cartpole seed=2:",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("heeds_signals")
@pytest.mark.parametrize(
    "number",
    [signal.SIGTERM, *(pytest.param(each, marks=pytest.mark.nightly) for each in (signal.SIGHUP, signal.SIGINT))],
)
def test_a_signal_reaches_the_job_and_begins_no_other(number, tmp_path):
    job = "import pathlib, signal, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(60)"
    program = f"""
import sys
from omegaconf import OmegaConf
from rltune.cli.application.multirun import Job, run_jobs
from rltune.cli.run import check
from rltune.compose.composing import compose_settings
from rltune.config.schema import RunConfig
sys.orig_argv, sys.argv = [sys.executable, "-c", {job!r}, "-m"], ["run.py", "-m"]
sys.exit(run_jobs("run", [Job(OmegaConf.create({{}}), (word,), True) for word in ("first", "second")]))
"""
    process = subprocess.Popen([sys.executable, "-c", program], cwd=tmp_path, stderr=subprocess.DEVNULL)
    while not (tmp_path / "first").exists():
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(number)
    assert process.wait(60) == 128 + number
    assert not (tmp_path / "second").exists()
