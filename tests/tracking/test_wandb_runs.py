"""A ledger shown in Weights & Biases, offline: what it keeps on disk is read back."""

from __future__ import annotations

import pytest

from rltune.records import CERTIFY, Report, RunKey, TrialRecord
from rltune.tracking.tracker import SweepDescription
from rltune.tracking.wandb_runs import WandbTracker

pytest.importorskip("wandb", reason="the extra wandb is not installed")


def read_files(folder, run):
    """What wandb has written of a run, as bytes."""
    return b"".join(path.read_bytes() for path in folder.glob(f"wandb/offline-run-*/run-{run}.wandb"))


@pytest.mark.slow
def test_a_trial_is_a_run_of_the_sweeps_group(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    tracker = WandbTracker(SweepDescription("first", "ab12", tmp_path, None, "cartpole", params={"algo": "ppo"}))
    tracker.open()
    record = TrialRecord(0, "RUNNING", {"lr": 0.25})
    tracker.write(record, [Report(0, step, 1.0, {"score": float(step)}) for step in (100, 200)])
    run = tracker._runs["trial-000"]
    assert (run.group, run.name, run.id) == ("first", "trial-000", "ab12-trial-000")
    assert run.config["lr"] == 0.25
    tracker.write(record, [Report(0, 100, 1.0, {"score": -1.0})])  # sent twice
    assert run.step == 200
    tracker.write(TrialRecord(0, "COMPLETE", {"lr": 0.25}, {100: 100.0, 200: 200.0}), [])
    certified = TrialRecord(0, "COMPLETE", {}, {200: 9.0}, kind=CERTIFY, of_trial=0, seed_index=0, returns=(4.0, 6.0))
    tracker.write(certified, [])
    tracker.describe(RunKey(0), {"certified_score": 5.0}, {})
    tracker.describe(None, {"certified_score": 5.0}, {})
    tracker.close()
    assert tracker._runs == {}
    of_trial = read_files(tmp_path, "ab12-trial-000")
    for written in (b"certified_score", b'"COMPLETE"', b"200"):
        assert written in of_trial
    assert b"certified_score" in read_files(tmp_path, "ab12-trial-000-seed-1")
    assert b"certified_score" in read_files(tmp_path, "ab12-sweep")
