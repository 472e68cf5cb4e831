"""The model that splits differences into shares."""

from __future__ import annotations

import numpy as np
import pytest

from rltune.reporting.importance.effects import Axis, Rows, draw_effects

AXES = {
    "continuous": Axis((np.arange(50) + 0.5) / 50),
    "two levels": Axis(np.array([0.0, 1.0])),
    "uneven levels": Axis(np.array([0.0, 0.1, 0.4, 1.0])),
    "choice": Axis(np.arange(5.0), is_choice=True),
}


@pytest.mark.parametrize("axis", AXES.values(), ids=AXES)
def test_functions_of_an_axis_have_squares_that_are_shares(axis: Axis) -> None:
    found = axis.expand(axis.grid, 4)
    assert found.shape[1] == len(axis.weigh(4)) == min(4, len(axis.grid) - 1)
    assert found.mean(axis=0) == pytest.approx(0.0, abs=1e-9)
    assert found.T @ found / len(axis.grid) == pytest.approx(np.eye(found.shape[1]), abs=1e-9)


def test_a_parameter_that_a_trial_lacks_has_no_effect_there() -> None:
    found = AXES["choice"].expand(np.array([np.nan, 2.0]), 4)
    assert not found[0].any()
    assert found[1].any()


def test_a_trials_rows_are_no_trials_of_their_own() -> None:
    """Three stages of the same thirty trials, whose luck lasts: nothing more is known than from one stage of them."""
    rng = np.random.default_rng(3)
    places, luck = rng.random((30, 2)), rng.normal(size=30)
    scores = 0.7 * (places[:, 0] - 0.5) * np.sqrt(12) + 0.7 * luck
    axes, trial = [AXES["continuous"]] * 2, np.arange(30)
    once = draw_effects(Rows(axes, places, trial, np.zeros(30, int), scores))
    again = np.repeat(scores, 3) + rng.normal(0, 0.05, 90)
    thrice = draw_effects(Rows(axes, places, np.repeat(trial, 3), np.tile(np.arange(3), 30), again))
    widths = [float(np.ptp(np.percentile(one.total(0), (2.5, 97.5)))) for one in (once, thrice)]
    assert widths[1] == pytest.approx(widths[0], rel=0.35), "of three times as many trials it were 0.6 of it"


def test_shares_of_each_draw_add_up_to_all() -> None:
    rng = np.random.default_rng(0)
    places = rng.random((20, 2))
    axes = [AXES["continuous"]] * 2
    effects = draw_effects(Rows(axes, places, np.arange(20), np.zeros(20, int), rng.normal(size=20)))
    assert np.sum(list(effects.shares.values()), axis=0) == pytest.approx(1.0)
    assert all((share >= 0).all() for share in effects.shares.values())
