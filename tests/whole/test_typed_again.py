"""One command, typed again after every kill: one sweep, each of its trials once."""

from __future__ import annotations

import sqlite3
import time
from pathlib import Path

import pytest
from joined import finish, ray_head, start_sweep

pytestmark = pytest.mark.nightly  # The same is shown by test_bucket_sweeps and the simulated crashes.

OPEN = {"RAY_AUTH_MODE": "disabled"}
NUM_TRIALS = 4


def count_reports(folder: Path) -> int:
    """How many reports the ledger has; 0 before there is one."""
    ledger = folder / "outputs/toy/ledger.db"
    if not ledger.exists():
        return 0
    with sqlite3.connect(ledger, timeout=30) as opened:
        return int(opened.execute("SELECT count(*) FROM reports").fetchone()[0])


def test_a_killed_command_is_typed_again_until_it_ends(tmp_path: Path) -> None:
    with ray_head(num_cpus=2, **OPEN) as address:
        words = (f"cluster.address={address}", "resume=auto", f"budget.trials={NUM_TRIALS}", "scheduler=none")
        words = (*words, "+space.seconds=0.1", "checkpoint.every_s=0")
        for _ in range(3):
            before, typed = count_reports(tmp_path), start_sweep("run", tmp_path, *words, **OPEN)
            deadline = time.monotonic() + 120
            while count_reports(tmp_path) < before + 8:
                assert typed.poll() is None, typed.communicate()[0]
                assert time.monotonic() < deadline
                time.sleep(0.1)
            typed.kill()
            typed.communicate()
        code, out = finish(start_sweep("run", tmp_path, *words, **OPEN))
        assert code == 0, out
        code, again = finish(start_sweep("run", tmp_path, *words, **OPEN))
        assert (code, "(complete)" in again) == (0, True), again
    assert [path.name for path in (tmp_path / "outputs").iterdir()] == ["toy"]
    with sqlite3.connect(tmp_path / "outputs/toy/ledger.db") as opened:
        trials = opened.execute("SELECT number, state FROM sweep_trials ORDER BY number").fetchall()
        marks = opened.execute("SELECT trial_id, count(*), count(DISTINCT nominal_steps) FROM reports GROUP BY 1")
        assert [row[1:] for row in marks] == [(20, 20)] * NUM_TRIALS
    assert trials == [(number, "COMPLETE") for number in range(NUM_TRIALS)]
