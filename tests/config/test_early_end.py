"""When a trial ends before its budget is spent."""

from __future__ import annotations

import math

import pytest

from rltune.config.early_end import NEVER, EarlyEnd
from rltune.records import PLATEAU, TARGET_HELD, Direction


def curve(*scores: float) -> list[tuple[int, float]]:
    return [(100 * (place + 1), score) for place, score in enumerate(scores)]


@pytest.mark.parametrize(
    ("scores", "ended"),
    [
        ((), None),
        ((5.0,), None),
        ((5.0, 5.0), TARGET_HELD),
        ((4.9, 5.0), None),
        ((5.0, 4.9), None),
        ((9.0, 1.0, 5.0), None),
        ((1.0, 9.0, 5.0), TARGET_HELD),
        ((math.nan, 5.0), None),
        ((math.nan, 5.0, 6.0), TARGET_HELD),
        ((5.0, math.nan, 6.0), None),
    ],
)
@pytest.mark.parametrize("direction", Direction)
def test_a_target_has_to_hold_at_two_reports_in_a_row(
    scores: tuple[float, ...], ended: str | None, direction: Direction
) -> None:
    mirrored = [direction.sign * score for score in scores]
    assert EarlyEnd(direction.sign * 5.0, None, direction).explain(curve(*mirrored)) == ended
    assert NEVER.explain(curve(*scores)) is None


@pytest.mark.parametrize(
    ("scores", "ended"),
    [
        ((1.0, 2.0, 3.0, 4.0), None),
        ((4.0, 4.0), None),
        ((4.0, 4.0, 3.0), PLATEAU),
        ((4.0, 3.0, 5.0, 5.0), None),
        ((math.nan, math.nan, math.nan), None),
        ((math.nan, math.nan, 1.0, 0.0), None),
        ((math.nan, 1.0, 0.0, 1.0), PLATEAU),
        ((1.0, math.nan, math.nan), PLATEAU),
        ((1.0, math.nan, 2.0), None),
    ],
)
@pytest.mark.parametrize("direction", Direction)
def test_a_plateau_is_so_many_reports_without_a_better_score(
    scores: tuple[float, ...], ended: str | None, direction: Direction
) -> None:
    mirrored = [direction.sign * score for score in scores]
    assert EarlyEnd(None, 2, direction).explain(curve(*mirrored)) == ended


def test_an_iteration_that_passes_several_reports_is_one_measurement() -> None:
    assert EarlyEnd(5.0).explain([(4096, 6.0)] * 4) is None
    assert EarlyEnd(plateau=2).explain([(4096, 6.0)] * 4) is None
    assert EarlyEnd(5.0).explain([(4096, 6.0), (4096, 6.0), (8192, 6.0)]) == TARGET_HELD
