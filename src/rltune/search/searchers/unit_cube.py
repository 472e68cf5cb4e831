"""Map trials to points in a unit cube, with one axis per parameter on its linear or log scale."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

Array = NDArray[np.float64]


class UnitCube:
    """A unit cube whose axes are the parameters of a search space.

    The axis of a choice or of a range of integers is divided into a piece for each value.

    Args:
        space: Distributions by label, each of more than one value.
    """

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self._space = dict(space)
        self._counts = [
            len(distribution.choices) if isinstance(distribution, CategoricalDistribution) else 0
            for distribution in space.values()
        ]
        ranges = [
            (0, count - 1, 1, False)
            if count
            else (distribution.low, distribution.high, distribution.step or 0, distribution.log)
            for distribution, count in zip(space.values(), self._counts, strict=True)
        ]
        self._low, self._high, self._step = np.array([entry[:3] for entry in ranges], dtype=float).T
        self._log = np.array([entry[3] for entry in ranges])
        self._ends = self._scale(np.array([self._low - self._step / 2, self._high + self._step / 2]))

    def place(self, trials: Sequence[FrozenTrial]) -> Array:
        """Map trials to points of shape (trials, parameters); NaN for a parameter that a trial lacks."""
        raw = np.full((len(trials), len(self._space)), np.nan)
        for row, trial in zip(raw, trials, strict=True):
            for axis, (name, distribution) in enumerate(self._space.items()):
                if name in trial.params:
                    row[axis] = distribution.to_internal_repr(trial.params[name])
        return self._place(raw)

    def snap(self, places: Array) -> Array:
        """Round points to the centers of the intervals of discrete parameters."""
        return self._place(self._read(places))

    def expand(self, places: Array) -> Array:
        """Encode points as a model's inputs, of shape (points, inputs); choices are one-hot encoded."""
        raw, snapped = self._read(places), self.snap(places)
        columns = [
            raw[:, [axis]] == np.arange(count) if count else snapped[:, [axis]]
            for axis, count in enumerate(self._counts)
        ]
        return np.concatenate(columns, axis=1, dtype=float)

    def read(self, place: Array) -> dict[str, Any]:
        """Convert a point to parameter values by name."""
        raw = self._read(place[None])[0]
        return {
            name: distribution.to_external_repr(float(x))
            for (name, distribution), x in zip(self._space.items(), raw, strict=True)
        }

    def _scale(self, raw: Array) -> Array:
        return np.where(self._log, np.log(np.where(self._log, raw, 1.0)), raw)

    def _place(self, raw: Array) -> Array:
        low, high = self._ends
        return np.asarray((self._scale(raw) - low) / (high - low))

    def _read(self, places: Array) -> Array:
        low, high = self._ends
        scaled = low + places * (high - low)
        raw = np.where(self._log, np.exp(np.where(self._log, scaled, 0.0)), scaled)
        every = np.where(self._step > 0, self._step, 1.0)
        stepped = self._low + np.round((raw - self._low) / every) * every
        return np.clip(np.where(self._step > 0, stepped, raw), self._low, self._high)
