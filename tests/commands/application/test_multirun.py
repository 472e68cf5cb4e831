"""Several jobs of one command, one after the other; ``tests/whole/test_commands.py`` types some."""

from __future__ import annotations

import sys

import pytest
from omegaconf import OmegaConf

from rltune.commands.application.multirun import Job, refuse_launchers, run_jobs
from rltune.errors import ConfigError


def test_the_worst_exit_code_is_the_commands_and_no_failure_stops_the_next(monkeypatch, capfd):
    script = "import sys; print('ran', sys.argv[1], flush=True); sys.exit(int(sys.argv[1]))"
    monkeypatch.setattr(sys, "orig_argv", [sys.executable, "-c", script, "-m", "seed=1,2"])
    monkeypatch.setattr(sys, "argv", ["run.py", "-m", "seed=1,2"])
    code = run_jobs("run", [Job(OmegaConf.create({}), (word,), True) for word in ("2", "0", "1")])
    out = capfd.readouterr().out
    assert code == 2
    assert [line for line in out.splitlines() if line.startswith("ran")] == ["ran 2", "ran 0", "ran 1"]
    assert "1 of 3 ended with 2" in out
    assert "3 of 3 ended with 1" in out


@pytest.mark.parametrize("word", ["hydra/launcher=joblib", "+hydra/sweeper=optuna"])
def test_another_launcher_or_sweeper_is_refused(word):
    with pytest.raises(ConfigError, match="one after the other"):
        refuse_launchers(["seed=1", word])
