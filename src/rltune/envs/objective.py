"""Score episodes by the sweep's objective: by the return, a key of the steps' infos, or a function of the user's.

Training, evaluation and certification score by the same function, so that the search optimizes what is certified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from rltune.envs.guest import call_guest, import_guest
from rltune.envs.spec import INFO, OBJECTIVE_USAGE, RETURN, EntryPoint, parse_scoring
from rltune.errors import Cause, ConfigError, GuestError, describe_exception
from rltune.records import Direction

Score = Callable[[float, int, Mapping[str, Any], Mapping[str, float]], float]
"""Computes an episode's score from its return, its length, the info of its last step, and its numbers by key of the
infos (`rltune.envs.meter`); NaN if it has no score."""

OBJECTIVE = "the objective"
"""The name of a call of the user's function."""


@dataclass(frozen=True)
class Objective:
    """The quantity that a sweep maximizes or minimizes, as the scores of its trials measure it.

    Attributes:
        name: ``return``, the key of the infos, or the name of the function.
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

    It raises a `GuestError` if the user's function raises, or gives no finite number.

    Args:
        settings: ``kind``, ``key`` and ``missing`` as in conf/run.yaml; empty for the return.

    Raises:
        ConfigError: The kind names no function.
    """
    kind, point = settings.get("kind", RETURN), parse_scoring(settings)
    if kind == RETURN:
        return lambda total, length, info, numbers: total
    if point is None:
        key, missing = str(settings["key"]), float(settings.get("missing", math.nan))
        return lambda total, length, info, numbers: missing if math.isnan(numbers[key]) else numbers[key]
    function = _import_function(kind, point)
    return lambda total, length, info, numbers: _call_function(kind, function, total, length, info)


def check_objective(objective: Mapping[str, Any]) -> None:
    """Refuse an objective whose settings contradict each other.

    Args:
        objective: ``kind``, ``key``, ``missing`` and ``direction``; empty for the return.

    Raises:
        ConfigError: Names the key.
    """
    if not objective:
        return
    kind, key = objective["kind"], objective.get("key")
    parse_scoring(objective)
    if (kind == INFO) != (key is not None):
        wrong = "without objective.key" if key is None else f"with objective.key={key}"
        raise ConfigError(
            "objective.kind",
            kind,
            wrong,
            "objective.key, a key of the steps' infos, with objective.kind=info and only there",
            f"objective.kind=info objective.key={key or 'is_success'}",
        )
    if kind != INFO and "missing" in objective:
        missing = objective["missing"]
        raise ConfigError(
            "objective.missing",
            missing,
            f"with objective.kind={kind}",
            "what counts for an episode whose infos lack objective.key, with objective.kind=info",
            "objective.missing=null",
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


def _call_function(kind: str, function: Callable[..., Any], *episode: Any) -> float:
    allowed = "a finite number, or true or false, for each episode"
    try:
        with call_guest(OBJECTIVE):
            value = function(*episode)
    except GuestError as fault:
        error = fault.rewrite(f": {fault.problem}", allowed, "correct it", key="objective.kind", value=kind)
        error.cause = Cause.OBJECTIVE
        raise error from fault.__cause__
    try:
        number = float(value)
    except Exception:  # Whatever its type raises: a tensor of two numbers is none, and an int may be too large.
        number = math.nan
    if not math.isfinite(number):
        problem = f"gives {value!r} for an episode"
        raise GuestError(
            problem, allowed, "correct it", key="objective.kind", value=kind, cause=Cause.OBJECTIVE, call=OBJECTIVE
        )
    return number
