"""Keep single far values, such as a sensor's glitch, from blinding the running normalisation of observations.

One value of 1e8 among others of about 1 raises a column's deviation so much that all other values become equal to the
networks, for the rest of the training. So the statistics learn a far value as the networks see it: limited to `SEEN`
deviations. A value that comes more often than once in a hundred raises the deviation in spite of this, until it is far
no longer: it belongs to the data. The statistics of data without a far value are not changed by a bit.

A column that has been constant counts as one with a deviation of 1, as in scikit-learn's scalers.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SEEN = 10.0
"""MeanStdFilter's default bound of a normalised observation, in deviations."""

FAR = 5000.0
"""How many deviations a value is away from the mean if it is far. Those of Humanoid reach 2,400 by themselves."""

EPSILON = 1e-6
"""RLlib's SMALL_NUMBER, added to the standard deviation; a column with a smaller deviation counts as constant."""

JUDGED_AFTER = 128
"""From so many observations on, statistics say what is far. Before, the first observations are judged together."""

TRIMMED = 0.01
"""The share of the least values, and of the greatest ones, that the judgement of the first observations leaves out."""


class FarValue(NamedTuple):
    """A far value, for the note about it.

    Attributes:
        column: Where it was in the normalised columns of an observation.
        value: What it was.
        learned: As what it has entered the statistics.
    """

    column: int
    value: float
    learned: float


def find_limits(mean: Array, deviation: Array) -> tuple[Array, Array]:
    """Return the least and the greatest values [columns] that are not far."""
    reach = FAR * np.where(deviation < EPSILON, 1.0, deviation)
    return mean - reach, mean + reach


def limit_far_values(values: Array, mean: Array, deviation: Array) -> tuple[Array, FarValue | None]:
    """Limit the far ones among values [n, columns] for the statistics.

    Args:
        values: Observations, of which those that are not finite stay as they are.
        mean: That of each column without them.
        deviation: That of each column without them.

    Returns:
        The values as float64, and the first far one; ``values`` itself and None without one.
    """
    low, high = find_limits(mean, deviation)
    is_far = ((values < low) | (values > high)) & np.isfinite(values)
    if not is_far.any():
        return values, None
    reach = SEEN * np.where(deviation < EPSILON, 1.0, deviation)
    limited = np.where(is_far, np.clip(values, mean - reach, mean + reach, dtype=np.float64), values)
    row, column = map(int, np.argwhere(is_far)[0])
    return limited, FarValue(column, float(values[row, column]), float(limited[row, column]))


def limit_first_values(values: Array) -> tuple[Array, FarValue | None]:
    """Limit the far ones among the first values [n, columns] of a training, by the middle of these values.

    The far values are less than one in a hundred of each sign, so that what is left after `TRIMMED` has none of them.
    """
    trimmed = math.ceil(len(values) * TRIMMED)
    middle = np.sort(values.astype(np.float64), axis=0)[trimmed : len(values) - trimmed]
    return limit_far_values(values, middle.mean(axis=0), middle.std(axis=0))


def describe_far_value(far: FarValue, observation_space: Any, layout: Any) -> str:
    """Return a note on a far value, which names its column, the value and the bounds of the column.

    Args:
        far: The value, in a column of a vector.
        observation_space: The environment's.
        layout: Its `rltune.envs.layout.Layout`, which says where the vectors lie.
    """
    leaf = next(leaf for leaf in layout.leaves if leaf.kind == "vector" and 0 <= far.column - leaf.begin < leaf.size)
    space, place = observation_space, np.unravel_index(far.column - leaf.begin, leaf.shape)
    for key in leaf.path:
        space = space[key]
    name = "".join(f"[{key!r}]" for key in (*leaf.path, *map(int, place)))
    bounds = f"its bounds are {space.low[place]} and {space.high[place]}" if hasattr(space, "low") else f"of {space}"
    return (
        f"observed {far.value:g} in observation{name}, far from its other values ({bounds}); normalising counts such a "
        f"value as {far.learned:.3g}, and the networks see it limited to 10 deviations"
    )
