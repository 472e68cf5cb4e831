"""Who wins, and how a sweep's end is called, by how it came about."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from saved import write_checkpoint

from rltune.driver.open_sweep import OpenSweep
from rltune.driver.publish import publish_outcome
from rltune.driver.winner import register_winner, save_outcome, select_winner
from rltune.records import Report


def add_trial(sweep: OpenSweep, number: int, objective: float, train_s: float = 1.0) -> None:
    """A whole trial whose policy nobody can play, so that the search's word is all there is."""
    sweep.ledger.trials.add({}, [1], drawn={})
    steps = sweep.config.budget.env_steps
    state = {"env_steps": steps, "objective": objective}
    saved = write_checkpoint(sweep.context.folder, f"trials/{number}", "best", state, lambda folder: None)
    sweep.ledger.trials.add_report(Report(number, steps, objective), {"checkpoint": saved}, train_s=train_s)
    sweep.ledger.trials.end(number, "COMPLETE", "whole budget")


@pytest.mark.parametrize("signal", [None, 2])
def test_the_searchs_best_wins_where_none_can_be_evaluated(open_mine: Callable[..., Any], signal: int | None) -> None:
    with open_mine("certify=off") as sweep:
        for number, objective in enumerate((10.0, 30.0)):
            add_trial(sweep, number, objective)
        if signal:
            sweep.stopper.request("interrupted", signal)
        winner, certification = select_winner(sweep, sweep.ledger.trials.records())
        assert winner is not None
        assert (winner.trial, winner.evaluation, certification) == (1, None, None)
        if signal:
            assert register_winner(sweep, winner, None) is None


def test_a_budget_that_left_nothing_for_certification_is_named(
    open_mine: Callable[..., Any], stream: io.StringIO
) -> None:
    with open_mine("certify.seeds=2", "budget.wall_time_s=1") as sweep:
        add_trial(sweep, 0, 10.0)
        sweep.stopper.request("budget.wall_time_s is spent")
        winner, certification = select_winner(sweep, sweep.ledger.trials.records())
        assert (winner is None, certification) == (False, None)
    lines = stream.getvalue().splitlines()
    assert any("not certified" in line and "budget.wall_time_s" in line for line in lines)


def test_an_interrupted_sweep_registers_nothing_yet(open_mine: Callable[..., Any]) -> None:
    with open_mine("certify=off") as sweep:
        add_trial(sweep, 0, 10.0)
        sweep.stopper.interrupt("nothing works")
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        assert winner is not None
        assert register_winner(sweep, winner, certification) is None
        outcome = save_outcome(sweep, records, winner, certification, None)
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("interrupted", 75, "nothing works")


@pytest.mark.parametrize(
    ("reason", "signal", "wins", "status", "exit_code"),
    [
        (None, None, True, "complete", 0),
        ("budget.wall_time_s is spent", None, True, "stopped", 0),
        (None, None, False, "failed", 1),
        ("interrupted", 15, True, "interrupted", 143),
        ("interrupted", 2, False, "interrupted", 130),
    ],
)
def test_the_outcome_says_how_a_sweep_ended(
    open_mine: Callable[..., Any],
    reason: str | None,
    signal: int | None,
    wins: bool,
    status: str,
    exit_code: int,
) -> None:
    with open_mine("certify=off") as sweep:
        if wins:
            add_trial(sweep, 0, 10.0)
        records = sweep.ledger.trials.records()
        winner, _ = select_winner(sweep, records)
        if reason:
            sweep.stopper.request(reason, signal)
        outcome = save_outcome(sweep, records, winner, None, None)
        assert (outcome.status, outcome.exit_code, outcome.reason) == (status, exit_code, reason)
        assert json.loads((sweep.context.folder / "summary.json").read_text())["status"] == status


def test_without_the_clusters_head_a_sweep_is_interrupted(open_mine: Callable[..., Any]) -> None:
    with open_mine("certify=off") as sweep:
        add_trial(sweep, 0, 10.0)
        sweep.stopper.lose_head()
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        assert register_winner(sweep, winner, None) is None, "there are seconds left"
        outcome = save_outcome(sweep, records, winner, certification, None)
    assert (outcome.status, outcome.exit_code) == ("interrupted", 75)
    assert "head" in outcome.reason


def add_seconds(sweep: OpenSweep, *seconds: float) -> None:
    """Whole trials that took so long; the longer, the better."""
    for number, train_s in enumerate(seconds):
        add_trial(sweep, number, objective=train_s, train_s=train_s)


def test_the_best_that_keeps_the_constraint_wins(open_mine: Callable[..., Any], stream: io.StringIO) -> None:
    asked = ('constraints.train_s="< 60"', "objective.second.key=train_s")
    with open_mine("certify=off", "report=false", *asked) as sweep:
        add_seconds(sweep, 30.0, 60.0, 59.0, 90.0)
        records = sweep.ledger.trials.records()
        winner, _ = select_winner(sweep, records)
        assert winner is not None
        assert winner.trial == 2
        outcome = save_outcome(sweep, records, winner, None, None)
        assert (outcome.status, outcome.reason) == ("complete", None)
        assert [(one["trial"], one["train_s"]) for one in outcome.front or ()] == [(2, 59.0), (0, 30.0)]
        publish_outcome(sweep, records, outcome, None)
    page = " ".join(stream.getvalue().split())
    assert "4 complete" in page
    assert "2 of them" in page, "those that break the constraint"
    assert "trial 2 59 59 trial 0 30 30" in page, "the front"


def test_a_sweep_ends_with_the_nearest_where_all_break_it(open_mine: Callable[..., Any], stream: io.StringIO) -> None:
    with open_mine("certify=off", "report=false", 'constraints.train_s="< 20"') as sweep:
        add_seconds(sweep, 30.0, 25.0, 90.0)
        records = sweep.ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        assert (winner, certification) == (None, None)
        outcome = save_outcome(sweep, records, winner, None, None)
        assert (outcome.status, outcome.exit_code, outcome.front) == ("failed", 1, None)
        publish_outcome(sweep, records, outcome, None)
    assert outcome.reason is not None
    assert "trial 1" in outcome.reason, "the nearest"
    assert "train_s=25" in outcome.reason
    assert outcome.reason[1:] in stream.getvalue()
