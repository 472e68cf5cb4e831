"""A sweep that its own code ends has failed, and says by what; the same command would fail again."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import refusing

from rltune.ledger.storage import open_ledger

pytestmark = [pytest.mark.slow, pytest.mark.nightly]


@pytest.mark.parametrize(
    ("fault", "cause"),
    [("raise", "environment"), ("exit", "lost process"), ("reward", "reward"), ("observation", "observation")],
)
def test_an_environment_that_fails_from_the_start_fails_the_sweep(fault: str, cause: str, tmp_path: Path) -> None:
    shutil.copy(refusing.__file__, tmp_path)
    command = [sys.executable, "-m", "rltune", "run", "env.id=refusing:Refusing-v0", "name=own", "tracking=off"]
    settings = ["experiment=smoke", "budget.trials=20", "budget.env_steps=2000", "report=false", "json=true"]
    with tempfile.TemporaryDirectory(prefix="o-", dir="/tmp") as short:  # The names of Ray's sockets have a limit.
        done = subprocess.run(
            [*command, *settings, f"+env.kwargs.fault={fault}", "failures.stop_after=6"],
            cwd=tmp_path, env={**os.environ, "RAY_TMPDIR": short}, capture_output=True, text=True, timeout=300,
        )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert json.loads(done.stdout)["status"] == "failed"
    ledger = open_ledger(tmp_path / "outputs" / "own")
    try:
        assert ledger.sweep().status == "failed"
        records = ledger.trials.records()
    finally:
        ledger.close()
    assert {record.cause for record in records if record.state == "FAIL"} == {cause}
    assert len(records) < 20
