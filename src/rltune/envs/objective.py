"""Say what an episode is worth: its return, or what the request's objective makes of its return, length and last info.

Training, evaluation and certification ask the same function, so that what is searched for is what is certified.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rltune.errors import ConfigError, choices, describe_exception

Score = Callable[[float, int, Mapping[str, Any]], float]
"""From an episode's return, its length and the info of its last step to what it is worth; the higher, the better."""

RETURN, INFO = "return", "info"
DIRECTIONS = ("max", "min")
ENDS = {
    "low": "high",
    "high": "low",
    "certified_low": "certified_high",
    "certified_high": "certified_low",
    "min": "max",
    "max": "min",
}
"""The ends of intervals, which a negative exchanges."""
SCORES = frozenset({*ENDS, "objective", "score", "best_score", "search_score", "failed_score", "certified_score"})
SCORES |= {"certified_iqm", "iqm", "raw_iqm", "mean", "min", "max", "scores"}
"""The names under which scores, and differences of two, are logged and kept."""
USAGE = "return, info with objective.key, or package.module:function of an episode's return, length and last info"


def make_score(objective: Mapping[str, Any]) -> Score:
    """Return what scores an episode.

    Args:
        objective: ``kind``, ``key`` and ``direction`` as in conf/run.yaml; empty for the return. What is to be small is
            negated here and nowhere else, as scikit-learn's scorers do: of scores the higher one is always the better
            one. `Shown` turns them back for a person.

    Raises:
        ConfigError: It names no function.
    """
    kind, sign = objective.get("kind", RETURN), -1 if _is_cost(objective) else 1
    if kind == RETURN:
        return lambda total, length, info: sign * total
    if kind == INFO:
        key = str(objective["key"])
        return lambda total, length, info: sign * _read_info(key, info)
    own = _import_function(kind)

    def score(total: float, length: int, info: Mapping[str, Any]) -> float:
        return sign * _require_number(f"objective.kind={kind}", own(total, length, info))

    return score


@dataclass(frozen=True)
class Shown:
    """Shows scores to a person: under their name, and as the values that the person knows.

    Attributes:
        name: ``return``, ``is_success``, the function's.
        is_cost: Whether less is better. Its scores are negatives, see `make_score`.
    """

    name: str = RETURN
    is_cost: bool = False

    @classmethod
    def of(cls, objective: Mapping[str, Any] | None) -> Shown:
        """Return what shows an objective's scores; None and an empty one are the return's."""
        found = objective or {}
        kind = str(found.get("kind", RETURN))
        return cls(str(found["key"]) if kind == INFO else kind.rpartition(":")[2], _is_cost(found))

    @property
    def label(self) -> str:
        """Its name for headings and axes, which says its direction where that is not the usual one."""
        return f"{self.name} (less is better)" if self.is_cost else self.name

    def __call__(self, score: float | None) -> float | None:
        """Return a score, or a difference of two, as the person knows it."""
        return 0.0 - score if self.is_cost and score is not None else score  # of 0.0 no -0.0

    def turn(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return named numbers, of which those that are scores (`SCORES`) are as the person knows them.

        Args:
            row: What a trial logs, or a certification's record has. What it has beside scores stays as it is.
        """
        if not self.is_cost:
            return dict(row)
        turned = {}
        for name, value in row.items():
            section, slash, last = name.rpartition("/")
            shown = f"{section}{slash}{ENDS.get(last, last)}"
            if last in SCORES:
                value = [self(one) for one in value] if isinstance(value, list | tuple) else self(value)
            turned[shown] = value
        return turned


def _is_cost(objective: Mapping[str, Any]) -> bool:
    return objective.get("direction") == "min"


AS_RETURN = Shown()
"""What shows returns."""


def check_objective(objective: Mapping[str, Any], *, env_runners: int, vectorize: str, several_agents: bool) -> None:
    """Refuse an objective that is none, or that cannot be had where other processes or several agents sample.

    Args:
        objective: As for `make_score`.
        env_runners: How many processes sample besides the trial's own.
        vectorize: ``env.vectorize``.
        several_agents: Whether there are.

    Raises:
        ConfigError: Names the key.
    """
    if not objective:
        return
    kind, key, direction = objective["kind"], objective.get("key"), objective["direction"]
    if kind not in (RETURN, INFO) and ":" not in kind:
        raise ConfigError(f"objective.kind={kind}", USAGE, choices(kind, (RETURN, INFO)))
    if (kind == INFO) != (key is not None):
        which = "without objective.key" if key is None else f"with objective.key={key}"
        raise ConfigError(
            f"objective.kind={kind} {which}",
            "objective.key, a key of the last step's info, with objective.kind=info and only there",
            "objective.kind=info objective.key=is_success",
        )
    if direction not in DIRECTIONS:
        raise ConfigError(f"objective.direction={direction}", choices(direction, DIRECTIONS), "objective.direction=max")
    make_score(objective)
    if several_agents:
        raise ConfigError(
            f"objective.kind={kind} objective.direction={direction} with several agents (env.policies)",
            "the return, summed over the agents, and its maximum",
            "objective.kind=return objective.direction=max",
        )
    places = (("algo.env_runners.num_env_runners", env_runners, (0,)), ("env.vectorize", vectorize, ("sync", "auto")))
    for place, value, allowed in places:
        if value not in allowed:
            raise ConfigError(
                f"objective.kind={kind} with {place}={value}: the trial would not see how its episodes end",
                "an own objective where the trial's own process steps environments one by one",
                f"{place}={allowed[0]}",
            )


def _import_function(kind: str) -> Callable[..., Any]:
    module, _, name = kind.partition(":")
    try:
        found: Callable[..., Any] = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module raises whatever it likes while it is imported
        raise ConfigError(
            f"objective.kind={kind} cannot be imported: {describe_exception(error)}",
            USAGE,
            "install its package, or put its folder on PYTHONPATH",
        ) from None
    if not callable(found):
        raise ConfigError(f"objective.kind={kind} is no function", USAGE, "objective.kind=return")
    return found


def _read_info(key: str, info: Mapping[str, Any]) -> float:
    if key not in info:
        known = ", ".join(sorted(map(str, info))) or "nothing"
        raise ConfigError(
            f"objective.key={key}: the info of an episode's last step has no such key, but {known}",
            "a key that is there, or a wrapper (env.wrappers) that adds it",
            f"objective.key={next(iter(sorted(map(str, info))), 'is_success')}",
        )
    return _require_number(f"objective.key={key}", info[key])


def _require_number(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            f"{what} gives {value!r} for an episode", "a finite number, or true or false", "objective.kind=return"
        )
    return number
