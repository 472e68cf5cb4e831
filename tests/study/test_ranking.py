"""Which trials come first."""

from __future__ import annotations

import math

from rltune.records import TrialRecord
from rltune.study.ranking import BestSoFar, order_records, rank_records


def record(number: int, state: str, *reports: float, diverged: bool = False) -> TrialRecord:
    curve = {100 * (place + 1): value for place, value in enumerate(reports)}
    return TrialRecord(number, state, {}, curve, diverged=diverged)


def test_whole_budgets_rank_before_stopped_ones_then_by_value() -> None:
    ranked = rank_records(
        [
            record(0, "PRUNED", 9.0),
            record(1, "COMPLETE", 2.0),
            record(2, "FAIL", 99.0),
            record(3, "COMPLETE", 99.0, 4.0, 5.0, 6.0),
            record(4, "COMPLETE", math.nan),
            record(5, "COMPLETE", 5.0),
            record(6, "RUNNING", 7.0),
        ]
    )
    assert [one.number for one in ranked] == [3, 5, 1, 0, 6]


def test_a_trial_that_diverged_cannot_win() -> None:
    records = [record(0, "PRUNED", 99.0, diverged=True), record(1, "PRUNED", -1.0)]
    assert [one.number for one in rank_records(records)] == [1]
    assert [one.number for one in order_records(records)] == [1, 0], "but it is shown"


def test_trials_that_cannot_win_are_listed_last_by_number() -> None:
    records = [record(3, "FAIL", 99.0), record(2, "RUNNING"), record(1, "PRUNED", 1.0), record(0, "COMPLETE", 0.5)]
    assert [one.number for one in order_records(iter(records))] == [0, 1, 2, 3]


def test_the_best_so_far_is_the_score_of_the_moment() -> None:
    """It rises with the best trial, falls with it, and goes over to another one that is better by then."""
    best = BestSoFar()
    come = [(0, math.nan), (0, 3.0), (1, 2.0), (1, math.nan), (1, 6.0), (1, -5.0), (0, 3.0), (0, 6.0), (0, 9.0)]
    assert [best.add(*one) for one in come] == [None, 3.0, 3.0, 3.0, 4.0, 3.0, 3.0, 4.0, 6.0]
