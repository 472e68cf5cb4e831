"""Place trials in a unit cube: one axis a parameter, on the scale on which it is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import FrozenTrial

Array = NDArray[np.float64]


class UnitCube:
    """The space of some distributions as a unit cube.

    A choice has an axis too, cut into a piece for each value, as has a range of integers.

    Args:
        space: Distributions by label, each of more than one value.
    """

    def __init__(self, space: Mapping[str, BaseDistribution]) -> None:
        self._space = dict(space)
        self._counts = [len(one.choices) if isinstance(one, CategoricalDistribution) else 0 for one in space.values()]
        ranges = [
            (0, count - 1, 1, False) if count else (one.low, one.high, one.step or 0, one.log)
            for one, count in zip(space.values(), self._counts, strict=True)
        ]
        self._low, self._high, self._step = np.array([one[:3] for one in ranges], dtype=float).T
        self._log = np.array([one[3] for one in ranges])
        self._ends = self._scale(np.array([self._low - self._step / 2, self._high + self._step / 2]))

    def place(self, trials: Sequence[FrozenTrial]) -> Array:
        """Place trials: [trials, parameters], NaN where a trial lacks one."""
        raw = np.full((len(trials), len(self._space)), np.nan)
        for row, trial in zip(raw, trials, strict=True):
            for axis, (name, distribution) in enumerate(self._space.items()):
                if name in trial.params:
                    row[axis] = distribution.to_internal_repr(trial.params[name])
        return self._place(raw)

    def snap(self, places: Array) -> Array:
        """Move places to the middle of their pieces, where axes have some."""
        return self._place(self._read(places))

    def expand(self, places: Array) -> Array:
        """Return a model's inputs, [places, inputs]: a choice has one for each of its values."""
        raw, snapped = self._read(places), self.snap(places)
        columns = [
            raw[:, [axis]] == np.arange(count) if count else snapped[:, [axis]]
            for axis, count in enumerate(self._counts)
        ]
        return np.concatenate(columns, axis=1, dtype=float)

    def read(self, place: Array) -> dict[str, Any]:
        """Return the values at a place, by label."""
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
