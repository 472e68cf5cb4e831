"""Trials that ended in every way, as the ledger gives them."""

from __future__ import annotations

from rltune.records import TrialRecord

ENTRIES = [
    TrialRecord(0, "COMPLETE", {"lr": 1e-3}, {500: 3.0, 1000: 9.0}, env_steps=1000, train_s=4.0),
    TrialRecord(1, "PRUNED", {"lr": 1e-2}, {100: 12.0}, env_steps=100, train_s=0.5),
    TrialRecord(2, "PRUNED", {"lr": 2e-2}, {300: 1.0}, env_steps=300, train_s=1.0),
    TrialRecord(3, "FAIL", {"lr": 1.0}, {100: 99.0}, env_steps=150, train_s=0.5, stop_reason="worker died: killed"),
    TrialRecord(4, "RUNNING", {"lr": 5e-3}, {200: 5.0}, env_steps=200),
    TrialRecord(5, "RUNNING", {"lr": 6e-3}),
]
