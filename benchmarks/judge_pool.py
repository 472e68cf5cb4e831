"""Learning curves of configurations that were all trained, and the search space that they were drawn from.

A folder has ``curves.npz``, an array [configurations, seeds, points] a pair of algorithm and environment, and
``configurations.json.gz``, by pair ``env_steps`` of the points and ``configurations``: ARLBench's curves (Becktepe et
al. 2024), repacked, are such a folder.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import rankdata, spearmanr
from sklearn.ensemble import ExtraTreesRegressor

from rltune.search.space import Space, parse_space

Array = NDArray[np.float64]
MAX_CHOICES = 8  # a parameter of so few values is a choice


@dataclass(frozen=True, eq=False)
class Pool:
    """The configurations of one pair, with all their curves.

    Attributes:
        name: ``<algorithm>_<family>_<environment>``.
        curves: [configurations, seeds, points]; NaN where a run had diverged. None is further below the median
            configuration than the best is above it: diverged runs hold values down to -1e21.
        marks: Environment steps of the points.
        configurations: Values by name; a parameter that a configuration does not have is left out.
        space: What they were drawn from, as it is seen in them.
        is_plain: Whether `nearest` counts all axes alike.
    """

    name: str
    curves: Array
    marks: tuple[int, ...]
    configurations: tuple[Mapping[str, Any], ...]
    space: Space
    is_plain: bool = False

    @property
    def algorithm(self) -> str:
        """``ppo``, ``dqn`` or ``sac``."""
        return self.name.split("_")[0]

    @property
    def family(self) -> str:
        """The environment's: ``cc``, ``box2d``, ``brax``, ``minigrid``, ``atari``."""
        return self.name.split("_")[1]

    @property
    def num_seeds(self) -> int:
        """How often each configuration was trained."""
        return self.curves.shape[1]

    @cached_property
    def worth(self) -> Array:
        """Return each configuration's true return: over all seeds at the last point; a diverged run has the floor."""
        worth: Array = self.fill(self.curves)[:, :, -1].mean(axis=1)
        return worth

    def fill(self, curves: Array) -> Array:
        """Put the floor where a run had diverged."""
        return np.where(np.isnan(curves), _find_floor(self.curves), curves)

    @cached_property
    def noise(self) -> float:
        """Return how far seeds of one configuration lie apart at the end, of the middle configuration."""
        last = self.curves[:, :, -1]
        return float(np.median([one[np.isfinite(one)].std() for one in last if np.isfinite(one).any()]))

    def score(self, index: int) -> float:
        """Return how good a choice is: 0 is the median configuration, 1 the best."""
        return self.rescale(float(self.worth[index]))

    def rescale(self, worth: float) -> float:
        """Return a true return on the scale of `score`."""
        middle, best = float(np.median(self.worth)), float(self.worth.max())
        return (worth - middle) / (best - middle)

    def nearest(self, drawn: Mapping[str, Any], taken: Sequence[int]) -> int:
        """Return the configuration that is the most like a proposal.

        Args:
            drawn: The searched quantities by label.
            taken: Configurations that were tried already; each is tried once.
        """
        apart = measure_distances(self.places, self.locate(drawn), self.stretch)
        apart[list(taken)] = np.inf
        return int(apart.argmin())

    @cached_property
    def stretch(self) -> Array:
        """Return by how much each axis is stretched: by what it matters, or not at all."""
        if self.is_plain:
            return np.ones(self.places.shape[1])
        return self.weigh_axes(np.arange(len(self.configurations)))

    def weigh_axes(self, rows: NDArray[np.int64]) -> Array:
        """Weigh the axes by what they matter for the worth: importances of a forest, of a choice's axes together.

        Args:
            rows: The configurations that the forest is fitted to.
        """
        ranks = rankdata(self.worth[rows]) - 0.5
        forest = ExtraTreesRegressor(200, min_samples_leaf=3, max_features=0.8, bootstrap=True, random_state=0)
        forest.fit(np.nan_to_num(self.places[rows], nan=0.5), ndtri(ranks / len(rows)))
        widths = [len(one.args) if one.kind == "choice" else 1 for one in self.space.dimensions]
        parts = np.split(forest.feature_importances_, np.cumsum(widths)[:-1])
        return np.concatenate([np.full(len(part), part.sum()) for part in parts])

    def measure_likeness(self) -> dict[str, float]:
        """Measure how well the nearest other configuration stands for one: the rank correlation of their worths.

        Returns:
            ``plain``: where all axes count alike. ``stretched``: where each counts by what it matters for the other
            half of the configurations, so that none has a say in which one is near to it.
        """
        halves = np.array_split(np.random.default_rng(0).permutation(len(self.configurations)), 2)
        plain, stretched = np.zeros_like(self.worth), np.zeros_like(self.worth)
        for rows, others in (halves, halves[::-1]):
            stretch = self.weigh_axes(others)
            for row in rows:
                plain[row] = self._worth_beside(int(row), np.ones_like(stretch))
                stretched[row] = self._worth_beside(int(row), stretch)
        found = {"plain": plain, "stretched": stretched}
        return {name: float(spearmanr(self.worth, beside).statistic) for name, beside in found.items()}

    def _worth_beside(self, row: int, stretch: Array) -> float:
        apart = measure_distances(self.places, self.places[row], stretch)
        apart[row] = np.inf
        return float(self.worth[apart.argmin()])

    @cached_property
    def drawn(self) -> list[dict[str, Any]]:
        """Return each configuration's searched quantities by label."""
        return [self.space.encode(values) for values in self.configurations]

    @cached_property
    def places(self) -> Array:
        """Return where each configuration lies, as `locate` has it."""
        return np.array([self.locate(drawn) for drawn in self.drawn])

    def locate(self, drawn: Mapping[str, Any]) -> Array:
        """Place quantities in the unit cube: a choice has one axis a value; what is not there is NaN, no distance."""
        place: list[float] = []
        for dimension in self.space.dimensions:
            value = drawn.get(dimension.label)
            if dimension.kind == "choice":
                place += [math.nan if value is None else float(value == one) / math.sqrt(2) for one in dimension.args]
            elif value is None:
                place.append(math.nan)
            else:
                low, high = map(float, dimension.args)
                is_log = dimension.kind.startswith("log")
                low, high, value = (math.log(x) for x in (low, high, value)) if is_log else (low, high, value)
                place.append(_place(value, low, high))
        return np.array(place)


def measure_distances(places: Array, place: Array, stretch: Array) -> Array:
    """Return how far each place lies from one, squared; an axis that either lacks counts nothing."""
    return np.asarray(np.nansum((stretch * (places - place)) ** 2, axis=1))


def read_pools(folder: Path) -> list[Pool]:
    """Read all pairs of a folder, by name.

    Raises:
        ValueError: The folder lacks a file, or the files do not fit together.
    """
    files = folder / "curves.npz", folder / "configurations.json.gz"
    if missing := [file.name for file in files if not file.is_file()]:
        raise ValueError(f"{folder} lacks {' and '.join(missing)}")
    curves = np.load(files[0])
    with gzip.open(files[1], "rt") as file:
        told = json.load(file)
    if set(curves.files) != set(told):
        raise ValueError(f"{folder}: curves.npz and configurations.json.gz name different pairs")
    return [_read_pool(name, curves[name], told[name]) for name in sorted(curves.files)]


def _read_pool(name: str, raw: NDArray[np.float32], told: Mapping[str, Any]) -> Pool:
    curves = raw.astype(np.float64)
    curves[~np.isfinite(curves)] = np.nan
    curves = np.maximum(curves, _find_floor(curves))  # NaN stays NaN
    configurations = [
        {key: tuple(value) if isinstance(value, list) else value for key, value in one.items() if value != ""}
        for one in told["configurations"]
    ]
    if curves.shape[0] != len(configurations) or curves.shape[2] != len(_marks_of(told, curves.shape[2])):
        raise ValueError(f"{name}: {curves.shape[0]} curves of {len(configurations)} configurations")
    return Pool(name, curves, _marks_of(told, curves.shape[2]), tuple(configurations), _read_space(configurations))


def _find_floor(curves: Array) -> float:
    """Return what a run counts at least: as far below the median configuration as the best is above it.

    Where most configurations are the best, as far as a curve can tell, it is the worst one's return.
    """
    ends = [np.median(one[np.isfinite(one)]) for one in curves[:, :, -1] if np.isfinite(one).any()]
    spread = np.max(ends) - np.median(ends)
    return float(np.median(ends) - spread if spread else np.min(ends))


def _marks_of(told: Mapping[str, Any], num_points: int) -> tuple[int, ...]:
    steps = told["env_steps"]
    if isinstance(steps, int | float):
        return tuple(round(steps * point / num_points) for point in range(1, num_points + 1))
    return tuple(int(step) for step in steps)


def _read_space(configurations: Sequence[Mapping[str, Any]]) -> Space:
    """Infer the space: ranges from least to greatest, and a parent for what only some configurations have."""
    names = list(dict.fromkeys(name for one in configurations for name in one))
    forms: dict[str, Any] = {}
    for name in names:
        values = [one[name] for one in configurations if name in one]
        form = _infer_range(values)
        if form is None:
            forms[name] = values[0]
            continue
        parents = [
            parent
            for parent in names
            if all(isinstance(one.get(parent), bool) and one[parent] == (name in one) for one in configurations)
        ]
        forms[name] = ["when", {parents[0]: True}, form] if parents and len(values) < len(configurations) else form
    return parse_space(forms)


def _infer_range(values: Sequence[Any]) -> list[Any] | None:
    """Return the form of a space's parameter; None where all values are one."""
    distinct = sorted(set(values))
    if len(distinct) == 1:
        return None
    if len(distinct) <= MAX_CHOICES:
        return ["choice", *distinct]
    low, high = distinct[0], distinct[-1]
    middle = float(np.median(values))
    # The pool was drawn evenly: on the scale on which the median is nearer to the middle.
    is_log = low > 0 and abs(_place(math.log(middle), math.log(low), math.log(high)) - 0.5) < abs(
        _place(middle, low, high) - 0.5
    )
    if all(float(value).is_integer() for value in distinct):
        return ["lograndint" if is_log else "randint", int(low), int(high)]
    return ["loguniform" if is_log else "uniform", float(low), float(high)]


def _place(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)
