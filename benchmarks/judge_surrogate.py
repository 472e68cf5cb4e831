"""A guess at what lies between the configurations of a pool, so that a proposal need not be put on one of them.

A forest's guesses are steps, and the highest lies below the best that was trained. The pool decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from sklearn.ensemble import RandomForestRegressor

from benchmarks.judge_pool import Array, Pool


class Surrogate:
    """A pool to which each proposal is added as it is, for one replay.

    Its mean curve is a forest's guess; its seeds differ from that as those of the nearest configuration do from theirs.

    Args:
        pool: The configurations that were trained.

    Attributes:
        curves: [seeds, points] by configuration.
        configurations: Values by name.
        drawn: Searched quantities by label.
    """

    def __init__(self, pool: Pool) -> None:
        self.name, self.family, self.marks, self.space = pool.name, pool.family, pool.marks, pool.space
        self.noise, self.num_seeds = pool.noise, pool.num_seeds
        self._pool = pool
        self.curves: list[Array] = []
        self.configurations: list[Mapping[str, Any]] = []
        self.drawn: list[Mapping[str, Any]] = []
        self._guesses: list[Array] = []

    def nearest(self, drawn: Mapping[str, Any], taken: Sequence[int]) -> int:
        """Add a proposal and return its place."""
        pool = self._pool
        guess = _fit(pool).predict(pool.locate(drawn)[None])[0]
        like = pool.curves[pool.nearest(drawn, ())]
        self.curves.append(guess + like - _mean(like))
        self.configurations.append(pool.space.decode(drawn))
        self.drawn.append(drawn)
        self._guesses.append(guess)
        return len(self.curves) - 1

    def score(self, index: int) -> float:
        """Return how good a choice is, on the pool's scale: the best guess may lie above 1."""
        return self._pool.rescale(float(self._guesses[index][-1]))


@cache
def _fit(pool: Pool) -> RandomForestRegressor:
    means = np.array([_mean(pool.fill(one)) for one in pool.curves])
    return RandomForestRegressor(100, min_samples_leaf=2, random_state=0).fit(pool.places, means)


def _mean(curves: Array) -> Array:
    """Return the mean over seeds; where none is left, nothing is known."""
    known = np.isfinite(curves)
    mean: Array = np.where(known, curves, 0).sum(axis=0) / np.maximum(1, known.sum(axis=0))
    return mean
