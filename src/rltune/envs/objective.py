"""Score episodes by the sweep's objective: by the return, a key of the last step's info, or a function of the user's.

Training, evaluation and certification score by the same function, so that the search optimizes what is certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rltune.envs.guest import import_guest
from rltune.envs.spec import INFO, OBJECTIVE_USAGE, RETURN, EntryPoint, parse_scoring
from rltune.errors import ConfigError, GuestError, describe_exception
from rltune.records import Direction

Score = Callable[[float, int, Mapping[str, Any]], float]
"""Computes an episode's score from its return, its length and the info of its last step."""


@dataclass(frozen=True)
class Objective:
    """The quantity that a sweep maximizes or minimizes, as the scores of its trials measure it.

    Attributes:
        name: ``return``, the key of the last step's info, or the name of the function.
        direction: Whether a sweep maximizes or minimizes it.
    """

    name: str = RETURN
    direction: Direction = Direction.MAX

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any] | None) -> Objective:
        """Make the objective of a sweep's or an environment's settings; None and empty settings mean the return."""
        settings = settings or {}
        kind = str(settings.get("kind", RETURN))
        name = str(settings["key"]) if kind == INFO else EntryPoint.parse(kind).name
        return cls(name, Direction(settings.get("direction", Direction.MAX)))

    @property
    def label(self) -> str:
        """The objective's name for headings and axes; the direction is added if the objective is minimized."""
        return self.name if self.direction is Direction.MAX else f"{self.name} (less is better)"


def make_score(settings: Mapping[str, Any]) -> Score:
    """Return the function that scores an episode; if the objective is minimized, lower scores stay the better ones.

    Args:
        settings: ``kind`` and ``key`` as in conf/run.yaml; empty for the return.

    Raises:
        ConfigError: The kind names no function.
    """
    kind, point = settings.get("kind", RETURN), parse_scoring(settings)
    if kind == RETURN:
        return lambda episode_return, length, info: episode_return
    if point is None:
        key = str(settings["key"])
        return lambda episode_return, length, info: _read_info(key, info)
    function = _import_function(kind, point)
    return lambda episode_return, length, info: _require_number(
        "objective.kind", kind, function(episode_return, length, info)
    )


def check_objective(objective: Mapping[str, Any], *, vectorize: str, several_agents: bool) -> None:
    """Refuse an invalid objective, and one that cannot be measured with several agents or without single copies.

    Args:
        objective: ``kind``, ``key`` and ``direction``; empty for the return.
        vectorize: ``env.vectorize``.

    Raises:
        ConfigError: Names the key.
    """
    if not objective:
        return
    kind, key, direction = objective["kind"], objective.get("key"), objective["direction"]
    parse_scoring(objective)
    if (kind == INFO) != (key is not None):
        wrong = "without objective.key" if key is None else f"with objective.key={key}"
        raise ConfigError(
            "objective.kind",
            kind,
            wrong,
            "objective.key, a key of the last step's info, with objective.kind=info and only there",
            "objective.kind=info objective.key=is_success",
        )
    if several_agents:
        raise ConfigError(
            "objective.kind",
            kind,
            f"objective.direction={direction} with several agents (env.policies)",
            "the return, summed over the agents, and its maximum",
            "objective.kind=return objective.direction=max",
        )
    if vectorize == "vector_entry_point":
        raise ConfigError(
            "objective.kind",
            kind,
            f"with env.vectorize={vectorize}: the trial would not see how its episodes end",
            "an objective of your own with single copies of the environment",
            "env.vectorize=sync",
        )


def _import_function(kind: str, point: EntryPoint) -> Callable[..., Any]:
    try:
        function: Callable[..., Any] = getattr(import_guest(point.module), point.name)
    except (GuestError, AttributeError) as error:
        if isinstance(error, GuestError) and not isinstance(error.__cause__, Exception):
            raise
        raise ConfigError(
            "objective.kind",
            kind,
            f"cannot be imported: {describe_exception(error.__cause__ or error)}",
            OBJECTIVE_USAGE,
            "install its package, or put its folder on PYTHONPATH",
        ) from None
    if not callable(function):
        raise ConfigError("objective.kind", kind, "is no function", OBJECTIVE_USAGE, "objective.kind=return")
    return function


def _read_info(key: str, info: Mapping[str, Any]) -> float:
    if key not in info:
        keys = sorted(map(str, info))
        raise ConfigError(
            "objective.key",
            key,
            f": the info of an episode's last step has no such key, but {', '.join(keys) or 'nothing'}",
            "a key of that info, or a wrapper (env.wrappers) that adds the key",
            f"objective.key={keys[0] if keys else 'is_success'}",
        )
    return _require_number("objective.key", key, info[key])


def _require_number(key: str, setting: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise ConfigError(
            key,
            setting,
            f"gives {value!r} for an episode",
            "a finite number, or true or false",
            "objective.kind=return",
        )
    return number
