"""What a sweep's state does not hold to yet: what is left of it on the disk."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def read_trials(folder: Path) -> list[tuple[int, str, str, str | None]]:
    """Return number, state, best checkpoint and what MLflow has of it, of each trial of the search."""
    with sqlite3.connect(folder / "ledger.db") as ledger:
        rows = ledger.execute("SELECT number, state, checkpoint, sent_checkpoint FROM sweep_trials").fetchall()
    return [(number, state, json.loads(best)["path"], sent) for number, state, best, sent in rows]


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.xfail(strict=True, reason="move 3: what an ended trial leaves is dropped once MLflow has its policy")
def test_ended_trials_keep_only_their_best_policy(toy_run: Callable[..., Any]) -> None:
    outcome = toy_run("scheduler=none", "checkpoint.every_s=0", "budget.trials=3")
    for number, state, best, sent in read_trials(outcome.folder):
        assert (state, bool(sent)) == ("COMPLETE", True)
        assert (outcome.folder / best / "toy.json").exists()
        if number != outcome.winner["trial"]:
            assert len(list((outcome.folder / "trials" / str(number)).rglob("toy.json"))) == 1


@pytest.mark.usefixtures("ray_cluster")
def test_nothing_is_dropped_that_mlflow_has_not_received(toy_run: Callable[..., Any]) -> None:
    outcome = toy_run("scheduler=none", "checkpoint.every_s=0", "budget.trials=3", "tracking=off")
    for _, state, best, sent in read_trials(outcome.folder):
        assert (state, sent) == ("COMPLETE", None)
        assert (outcome.folder / best / "toy.json").exists()
