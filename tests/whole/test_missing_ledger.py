"""A sweep whose ledger is gone is refused before anything is started for it."""

from __future__ import annotations

from pathlib import Path

import pytest
from ended import write_sweep
from real import call_command

pytestmark = pytest.mark.slow


def test_a_resume_without_a_ledger_waits_for_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "outputs").mkdir(exist_ok=True)
    folder = write_sweep(tmp_path / "outputs" / "toy", 1, None, "interrupted")
    for file in folder.glob("ledger*"):
        file.unlink()
    monkeypatch.setattr("rltune.driver.run.connect_ray", lambda *_: pytest.fail("a Ray is started"))
    done = call_command(tmp_path, "resume", "sweep=toy")
    assert done[0] == 2
    assert "ledger.db" in done[2]
