"""Which trials come first."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from typing import Any

import pytest

from rltune.ledger.ranking import BestSoFar, find_front, find_nearest, rank_records
from rltune.records import TARGET_HELD, Check, Direction, TrialRecord


@pytest.fixture(params=Direction)
def direction(request: pytest.FixtureRequest) -> Direction:
    """Which scores are better: the same records with mirrored scores rank the same."""
    return Direction(request.param)


def record(number: int, state: str, *reports: float, diverged: bool = False) -> TrialRecord:
    curve = {100 * (place + 1): value for place, value in enumerate(reports)}
    return TrialRecord(number, state, {}, curve, diverged=diverged)


def test_whole_budgets_rank_before_stopped_ones_then_by_value(direction: Direction) -> None:
    sign = direction.sign
    records = [
        record(0, "PRUNED", sign * 9.0),
        record(1, "COMPLETE", sign * 2.0),
        record(2, "FAIL", sign * 99.0),
        record(3, "COMPLETE", sign * 99.0, sign * 4.0, sign * 5.0, sign * 6.0),
        record(4, "COMPLETE", math.nan),
        record(5, "COMPLETE", sign * 5.0),
        record(6, "RUNNING", sign * 7.0),
    ]
    assert [ranked.number for ranked in rank_records(records, direction)] == [3, 5, 1, 0, 6]


def test_of_those_that_held_the_target_fewer_steps_rank_first() -> None:
    held = {"stop_reason": TARGET_HELD}
    records = [
        replace(record(0, "COMPLETE", 500.0, 500.0, 500.0), **held),
        replace(record(1, "COMPLETE", 480.0, 480.0), **held),
        replace(record(2, "COMPLETE", 490.0, 490.0), **held),
        record(3, "COMPLETE", 1.0, 1.0, 1.0, 999.0),
        replace(record(4, "PRUNED", 999.0), **held),
    ]
    assert [ranked.number for ranked in rank_records(records, Direction.MAX)] == [2, 1, 0, 3, 4]
    assert [one.target_steps for one in records] == [300, 200, 200, None, None]


def test_a_trial_that_diverged_cannot_win() -> None:
    records = [record(0, "PRUNED", 99.0, diverged=True), record(1, "PRUNED", -1.0)]
    assert [one.number for one in rank_records(records, Direction.MAX)] == [1]


def test_the_best_so_far_is_the_score_of_the_moment(direction: Direction) -> None:
    """It rises with the best trial, falls with it, and goes over to another one that is better by then."""
    best, sign = BestSoFar(direction), direction.sign
    reports = [(0, math.nan), (0, 3.0), (1, 2.0), (1, math.nan), (1, 6.0), (1, -5.0), (0, 3.0), (0, 6.0), (0, 9.0)]
    followed = [best.add(number, sign * objective) for number, objective in reports]
    assert followed[0] is None
    assert followed[1:] == [sign * score for score in (3.0, 3.0, 3.0, 6.0, 3.0, 3.0, 6.0, 9.0)]


def bounded(number: int, score: float, *excess: float, state: str = "COMPLETE") -> TrialRecord:
    checks = tuple(Check(f"c{place}", "< 1", 1 + one, one) for place, one in enumerate(excess))
    return replace(record(number, state, score), checks=checks)


def test_a_trial_that_breaks_a_constraint_cannot_win() -> None:
    records = [bounded(0, 99.0, 0.5), bounded(1, 1.0, -0.5), bounded(2, 50.0, -1.0, 5e-324), bounded(3, 2.0, 0.0)]
    assert [one.number for one in rank_records(records, Direction.MAX)] == [3, 1], (
        "zero keeps its bound, the least excess breaks it"
    )
    assert find_nearest(records) is None, "where others can win nobody asks for the nearest"


def test_where_all_break_a_constraint_the_nearest_is_named() -> None:
    unknown, two, far, near = (
        bounded(0, 9.0, math.nan),
        bounded(1, 9.0, 0.1, 0.1),
        bounded(2, 9.0, 3.0, -9.0),
        bounded(3, 1.0, 2.0),
    )
    failed = bounded(4, 9.0, 0.0, state="FAIL")
    assert find_nearest([unknown, two, far, near, failed]) is near
    assert find_nearest([unknown, two]) is unknown, "one that breaks fewer is nearer"
    assert find_nearest([replace(near, number=5), near]) is near, "of equals the first"
    assert find_nearest([]) is find_nearest([failed]) is find_nearest([record(0, "RUNNING")]) is None


def points(*values: tuple[float, float | None], state: str = "COMPLETE") -> list[TrialRecord]:
    """Trials by score and second objective, numbered in this order."""
    return [replace(record(number, state, score), second=second) for number, (score, second) in enumerate(values)]


@pytest.mark.parametrize(
    ("values", "front"),
    [
        ([], []),
        ([(1.0, 5.0)], [0]),
        ([(1.0, None)], []),
        ([(3.0, 9.0), (2.0, 5.0), (1.0, 1.0)], [0, 1, 2]),
        ([(1.0, 1.0), (3.0, 9.0), (2.0, 10.0), (0.5, 1.0)], [1, 0]),
        ([(2.0, 5.0), (2.0, 4.0), (2.0, 6.0)], [1]),
        ([(2.0, 5.0), (1.0, 5.0)], [0]),
        ([(2.0, 5.0), (3.0, 7.0), (2.0, 5.0)], [1, 0, 2]),
        ([(-3.0, -1.0), (-4.0, -2.0), (-5.0, -2.0)], [0, 1]),
    ],
    ids=[
        "none",
        "one",
        "unmeasured",
        "all",
        "beaten in both",
        "equal scores",
        "equal seconds",
        "equal in both",
        "negative",
    ],
)
def test_the_front_has_the_trials_that_none_beats_in_both(values: Any, front: list[int]) -> None:
    for direction, second_direction in itertools.product(Direction, Direction):
        # The points are given for a first objective that is maximized and a second one that is minimized.
        mirrored = [
            (direction.sign * score, None if second is None else -second_direction.sign * second)
            for score, second in values
        ]
        front_found = find_front(points(*mirrored), direction, second_direction)
        assert [trial.number for trial in front_found] == front, (direction, second_direction)


def test_the_front_is_of_whole_trials_that_can_win() -> None:
    able = points((1.0, 5.0))
    stopped, failed = points((9.0, 1.0), state="PRUNED"), points((9.0, 1.0), state="FAIL")
    barred = [replace(bounded(7, 9.0, 0.5), second=1.0)]
    assert find_front([*able, *stopped, *failed, *barred], Direction.MAX, Direction.MIN) == able
    assert find_front([*stopped, *failed, *barred, *points((math.nan, 1.0))], Direction.MAX, Direction.MIN) == []


def test_the_front_is_that_of_every_pair_compared() -> None:
    rng = random.Random(3)
    for _ in range(200):
        some = points(*((rng.randint(0, 5), float(rng.randint(0, 5))) for _ in range(rng.randint(1, 12))))

        def dominates(one: TrialRecord, other: TrialRecord) -> bool:
            mine, theirs = (one.score or 0.0, -(one.second or 0.0)), (other.score or 0.0, -(other.second or 0.0))
            return mine != theirs and mine[0] >= theirs[0] and mine[1] >= theirs[1]

        unbeaten = {one.number for one in some if not any(dominates(other, one) for other in some)}
        assert {one.number for one in find_front(some, Direction.MAX, Direction.MIN)} == unbeaten
