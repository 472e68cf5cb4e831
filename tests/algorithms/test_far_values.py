"""What the running normalisation of observations takes for a far value."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from rltune.algorithms.far_values import FAR, FarValue, describe_far_value, limit_far_values, limit_first_values
from rltune.envs.observations import make_layout

RNG = np.random.default_rng(0)
MEAN, DEVIATION = np.array([1.0, 7.0]), np.array([2.0, 0.0])


def test_values_that_are_not_far_stay_the_same_array():
    values = np.array([[1 + 2 * FAR, 7 - FAR]])
    assert limit_far_values(values, MEAN, DEVIATION) == (values, None)


@pytest.mark.parametrize(("column", "learned"), [(0, 21.0), (1, 17.0)])
def test_a_far_value_is_learned_as_ten_deviations(column: int, learned: float):
    """A column that was constant counts as one with a deviation of 1."""
    values = np.array([MEAN, MEAN], np.float32)
    values[1, column] = 1e9
    limited, far = limit_far_values(values, MEAN, DEVIATION)
    assert far == (column, 1e9, learned)
    assert limited[1, column] == learned
    assert np.array_equal(limited[0], MEAN)


def test_the_first_values_are_judged_by_most_of_them():
    values = RNG.normal(0, 1, (128, 1))
    values[3], values[90] = 1e8, -1e30
    limited, far = limit_first_values(values)
    assert np.abs(limited).max() < 15
    assert far is not None


def test_a_note_names_the_leaf_and_its_place():
    space = spaces.Dict(arm=spaces.Box(-2, 2, (2, 3)), state=spaces.Discrete(4), base=spaces.Box(-1, 1, (1,)))
    note = describe_far_value(FarValue(5, 1e8, 3.0), space, make_layout(space))
    assert "1e+08 in observation['arm'][1][2]" in note
    assert "-2.0 and 2.0" in note
    assert "observation['base'][0]" in describe_far_value(FarValue(6, 1e8, 3.0), space, make_layout(space))
