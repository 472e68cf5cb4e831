"""One trial as the ledger knows it, and which of them come first."""

from __future__ import annotations

import math

from rltune.study.record import TrialRecord, order_records, rank_records


def record(number: int, state: str, *reports: float) -> TrialRecord:
    return TrialRecord(number, state, {}, {100 * (place + 1): value for place, value in enumerate(reports)})


def test_the_best_is_a_finite_report_and_none_without_one():
    assert record(0, "RUNNING", 1.0, math.nan, 3.0, math.inf, 2.0).best == 3.0
    assert record(0, "RUNNING", math.nan).best is None
    assert record(0, "RUNNING").best is None


def test_whole_budgets_rank_before_stopped_ones_then_by_value():
    ranked = rank_records(
        [
            record(0, "PRUNED", 9.0),
            record(1, "COMPLETE", 2.0),
            record(2, "FAIL", 99.0),
            record(3, "COMPLETE", 1.0, 5.0, 3.0),
            record(4, "COMPLETE", math.nan),
            record(5, "COMPLETE", 5.0),
            record(6, "RUNNING", 7.0),
        ]
    )
    assert [one.number for one in ranked] == [3, 5, 1, 0, 6]


def test_trials_that_cannot_win_are_listed_last_by_number():
    records = [record(3, "FAIL", 99.0), record(2, "RUNNING"), record(1, "PRUNED", 1.0), record(0, "COMPLETE", 0.5)]
    assert [one.number for one in order_records(iter(records))] == [0, 1, 2, 3]
