"""Measure an episode while it is played: its return, its length, the user's own metrics and its score.

Whoever steps an environment measures by it, in training (`rltune.envs.rewards`) and in evaluations, so that the search
optimizes, and a report shows, what is certified.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rltune.envs.episode import EpisodeRecord
from rltune.envs.objective import make_score
from rltune.envs.spec import LAST, EnvSpec
from rltune.envs.step_count import read_reward
from rltune.errors import RewardError

# An integer of any size may be too large for a float.
_SCALARS = frozenset((float, bool, np.bool_, np.float32, np.float64, np.int32, np.int64))


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
    return [
        name for key in info for name in ([f"{key}.{part}" for part in nested[key]] if key in nested else [str(key)])
    ]


def read_number(value: Any) -> float:
    """Return the number in an info, which may be of any type of number, or an array of one; NaN if it is none."""
    if type(value) in _SCALARS:
        return float(value)
    if isinstance(value, np.ndarray) and value.size == 1 and value.dtype.kind in "biuf":
        return float(value.item())
    try:
        return read_reward(value)
    except RewardError:
        return math.nan


class EpisodeMeter:
    """Measures one episode after another.

    Each number of an info is read at its step: an environment may return the same dict at all of them.

    Args:
        spec: What the environment is, and what is measured in it.

    Attributes:
        total: The return so far, in the environment's own rewards.
        length: The steps so far.
    """

    def __init__(self, spec: EnvSpec) -> None:
        self._objective, self._metrics = spec.objective, tuple(spec.metrics)
        self._score = make_score(spec.objective)
        measured = spec.measured
        self._parts = [(index, key, measured[key]) for index, key in enumerate(measured)]
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
        self._values: list[float | None] = [None] * len(self._parts)
        self._counts = [1] * len(self._parts)  # How many values a sum has.

    def add(self, reward: float, info: Mapping[str, Any]) -> None:
        """Add a step. This is part of a hot loop, so that it calls few functions."""
        self.total += reward
        self.length += 1
        values = self._values
        for index, key, reduction in self._parts:
            number = info.get(key)
            if type(number) is not float:
                if number is None and (number := find_value(info, key)) is None:
                    continue
                number = read_number(number)
            if (before := values[index]) is None or reduction == LAST:
                values[index] = number
            elif reduction == "max":
                # Once it is NaN it stays so, as a sum does.
                if number > before or number != number:
                    values[index] = number
            elif reduction == "min":
                if number < before or number != number:
                    values[index] = number
            else:
                values[index] = before + number
                self._counts[index] += 1

    def collect(self) -> dict[str, float]:
        """Return the numbers of the infos so far, by key; NaN for one that no step had, or that is not finite."""
        numbers = {}
        for index, key, reduction in self._parts:
            number = math.nan if (value := self._values[index]) is None else value
            number = number / self._counts[index] if reduction == "mean" else number
            numbers[key] = number if math.isfinite(number) else math.nan
        return numbers

    def describe(self, info: Mapping[str, Any]) -> EpisodeRecord:
        """Return what the episode is worth that has ended, or was cut, with the last step that was added.

        Args:
            info: That of its last step.

        Raises:
            GuestError: The user's function raises, or gives no score.
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
    means = {}
    for index, name in enumerate(names):
        # An env runner of the user's may leave no records.
        present = [value for record in records if record.metrics and not math.isnan(value := record.metrics[index])]
        means[name] = (sum(present) / len(present) if present else math.nan, len(present))
    return means
