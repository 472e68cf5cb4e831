"""Measure an episode while it is played: its return, its length, the user's own metrics and its score.

Whoever steps an environment measures by it, in training (`rltune.envs.rewards`) and in evaluations, so that the search
optimizes, and a report shows, what is certified.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rltune.envs.episode import EpisodeRecord
from rltune.envs.objective import make_score
from rltune.envs.spec import LAST, EnvSpec
from rltune.envs.step_count import read_reward
from rltune.errors import RewardError


def _find_larger(one: float, other: float) -> float:
    """Return the larger of two numbers; NaN if one is NaN, whatever their order."""
    return other if other > one or other != other else one


def _find_smaller(one: float, other: float) -> float:
    """Return the smaller of two numbers; NaN if one is NaN, whatever their order."""
    return other if other < one or other != other else one


_COMBINE: dict[str, Callable[[float, float], float] | None] = {
    LAST: None,
    "sum": operator.add,
    "mean": operator.add,
    "max": _find_larger,
    "min": _find_smaller,
}


def find_value(info: Mapping[str, Any], key: str) -> Any:
    """Return what an info has under a key, whose points lead into nested infos; None if there is nothing."""
    if (value := info.get(key)) is not None or "." not in key:
        return value
    for part in key.split("."):
        info = info.get(part) if isinstance(info, Mapping) else None  # type: ignore[assignment]
    return info


def list_keys(info: Mapping[str, Any]) -> list[str]:
    """List the keys of an info, with points for those of the infos in it."""
    nested = {key: list_keys(value) for key, value in info.items() if isinstance(value, Mapping)}
    return [name for key in info for name in ([f"{key}.{part}" for part in nested[key]] if key in nested else [key])]


def read_number(value: Any) -> float:
    """Return the number in an info, which may be of any type of number, or an array of one; NaN if it is none."""
    try:
        return read_reward(value)
    except RewardError:
        return math.nan


class InfoReductions:
    """Reduces values in the infos of an episode's steps to one number each.

    Each number is read at its step: an environment may return the same dict at all of them.

    Args:
        reductions: How each key's values become one number, see `rltune.envs.spec.REDUCTIONS`.
    """

    def __init__(self, reductions: Mapping[str, str]) -> None:
        self._keys = list(reductions)
        self._parts = [(index, key, "." in key, _COMBINE[reductions[key]]) for index, key in enumerate(self._keys)]
        self._means = [index for index, key in enumerate(self._keys) if reductions[key] == "mean"]
        self.begin()

    def begin(self) -> None:
        """Begin an episode."""
        self._values: list[float | None] = [None] * len(self._keys)
        self._counts = [0] * len(self._keys)

    def add(self, info: Mapping[str, Any]) -> None:
        """Add a step."""
        values = self._values
        for index, key, is_nested, combine in self._parts:
            value = info.get(key)
            if value is None and (not is_nested or (value := find_value(info, key)) is None):
                continue
            number = value if type(value) is float else read_number(value)
            before = values[index]
            values[index] = number if before is None or combine is None else combine(before, number)
            self._counts[index] += 1

    def collect(self) -> dict[str, float]:
        """Return the episode's numbers by key; NaN for one that no step had, or that is not finite."""
        numbers = [math.nan if value is None else value for value in self._values]
        for index in self._means:
            numbers[index] /= max(1, self._counts[index])
        finite = (number if math.isfinite(number) else math.nan for number in numbers)
        return dict(zip(self._keys, finite, strict=True))


class EpisodeMeter:
    """Measures one episode after another.

    Args:
        spec: What the environment is, and what is measured in it.

    Attributes:
        total: The return so far, in the environment's own rewards.
        length: The steps so far.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._objective, self._metrics = spec.objective, tuple(spec.metrics)
        self._score = make_score(spec.objective)
        self._infos = InfoReductions(spec.measured) if spec.measured else None
        self.begin()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the score's function, which may not be picklable."""
        return {**self.__dict__, "_score": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled meter."""
        self.__dict__.update(state, _score=make_score(state["_objective"]))

    def begin(self) -> None:
        """Begin an episode."""
        self.total, self.length = 0.0, 0
        if self._infos:
            self._infos.begin()

    def add(self, reward: float, info: Mapping[str, Any]) -> None:
        """Add a step."""
        self.total, self.length = self.total + reward, self.length + 1
        if self._infos:
            self._infos.add(info)

    def collect(self) -> dict[str, float]:
        """Return the numbers of the infos so far, by key; NaN for one that no step had, or that is not finite."""
        return self._infos.collect() if self._infos else {}

    def describe(self, info: Mapping[str, Any]) -> EpisodeRecord:
        """Return what the episode is worth that has ended, or was cut, with the last step that was added.

        Args:
            info: That of its last step.

        Raises:
            ConfigError: The user's function gives no score.
        """
        values = self.collect()
        score = self._score(self.total, self.length, info, values)
        return EpisodeRecord(self.total, self.length, score, metrics=tuple(values[name] for name in self._metrics))


def average(records: Sequence[EpisodeRecord], names: Sequence[str]) -> dict[str, tuple[float, int]]:
    """Return each metric's mean over the episodes that have it, and how many these are; NaN where none has it.

    Args:
        records: The episodes.
        names: The metrics of which the records have the values, in their order.
    """
    columns = zip(*(record.metrics for record in records), strict=True)
    means = {}
    for name, column in zip(names, columns, strict=False):
        present = [value for value in column if value == value]
        means[name] = (sum(present) / len(present) if present else math.nan, len(present))
    return means
