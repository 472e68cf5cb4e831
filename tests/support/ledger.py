"""An empty ledger for tests, and trials in it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import optuna

from rltune.ledger.database import choose_journal
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import suggest
from rltune.records import Report, TrialRecord
from rltune.search.space import parse_space

SPACE = parse_space(
    {"lr": ["loguniform", 1e-5, 1e-2], "batch": ["pow2", 64, 256], "gamma": ["one_minus_loguniform", 0.01, 0.1]}
)


def make_ledger(folder: Path, name: str = "sweep") -> Ledger:
    """Make a ledger without trials in a folder's ``ledger.db``."""
    ledger = Ledger(f"sqlite:///{folder / 'ledger.db'}", name, create=True)
    ledger.close()
    choose_journal(folder / "ledger.db")
    return ledger


def ask(ledger: Ledger, **fixed: Any) -> tuple[int, dict[str, Any]]:
    """Begin a trial of `SPACE`; its number and its params."""
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=ledger.trials.num_trials))
    if fixed:
        study.enqueue_trial(SPACE.encode(fixed))
    drawn = SPACE.draw(functools.partial(suggest, study.ask()))
    params = SPACE.decode(drawn)
    record = ledger.trials.add(params, [ledger.trials.num_trials + 100], drawn=drawn)
    return record.number, params


def add_reports(ledger: Ledger, number: int, reports: dict[int, float]) -> TrialRecord:
    """Add reports whose only number is the score; return the trial."""
    for env_steps, objective in reports.items():
        ledger.trials.add_report(Report(number, env_steps, objective, {"score": objective}))
    return ledger.trials.record(number)


# Trials that ended in every way, as the ledger gives them.
ENTRIES = [
    TrialRecord(0, "COMPLETE", {"lr": 1e-3}, {500: 3.0, 1000: 9.0}, env_steps=1000, train_s=4.0),
    TrialRecord(1, "PRUNED", {"lr": 1e-2}, {100: 12.0}, env_steps=100, train_s=0.5),
    TrialRecord(2, "PRUNED", {"lr": 2e-2}, {300: 1.0}, env_steps=300, train_s=1.0),
    TrialRecord(3, "FAIL", {"lr": 1.0}, {100: 99.0}, env_steps=150, train_s=0.5, stop_reason="worker died: killed"),
    TrialRecord(4, "RUNNING", {"lr": 5e-3}, {200: 5.0}, env_steps=200),
    TrialRecord(5, "RUNNING", {"lr": 6e-3}),
]
