"""A sweep whose ledger is gone is refused before anything is started for it."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from ended import write_sweep
from real import Project

pytestmark = pytest.mark.slow


def test_a_resume_without_a_ledger_waits_for_no_ray(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path)
    (tmp_path / "outputs").mkdir(exist_ok=True)
    folder = write_sweep(tmp_path / "outputs" / "toy", 1, None, "interrupted")
    for file in folder.glob("ledger*"):
        file.unlink()
    with tempfile.TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as short:  # For sockets.
        monkeypatch.setenv("RAY_TMPDIR", short)
        done = project.type("-m", "sweeps.resume", "sweep=toy")
        assert done.code == 2, done.out
        assert "ledger.db" in done.out
        assert not any(Path(short).iterdir()), "no session of Ray"
