"""Read what a sweep judges trials by: the direction of scores, the constraints, and the second objective.

Constraints and the second objective are about a quantity that trials measure, such as ``train_s``. Of a trial that was
stopped, the training seconds of the whole budget are those per environment step times the budget; any other quantity is
that of its newest report. Nothing heavy is imported.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rltune.config.settings_file import flatten_settings
from rltune.errors import ConfigError
from rltune.records import Check, Direction, TrialRecord

TRAIN_S = "train_s"
_BOUND = re.compile(r"\s*(<=|<|>=|>)\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Constraint:
    """A bound on what a trial measures.

    Attributes:
        name: What is measured.
        sign: ``<``, ``<=``, ``>`` or ``>=``.
        limit: The bound itself.
    """

    name: str
    sign: str
    limit: float

    @property
    def bound(self) -> str:
        """The bound as it is typed: ``< 60``."""
        return f"{self.sign} {self.limit:.10g}"

    def check(self, value: float) -> Check:
        """Check a measured value; NaN is one that was not measured."""
        excess = value - self.limit if self.sign.startswith("<") else self.limit - value
        if not excess and self.sign in ("<", ">"):
            excess = math.ulp(0.0)  # to Optuna zero keeps a bound
        return Check(self.name, self.bound, value, excess)


@dataclass(frozen=True)
class Criteria:
    """What a sweep judges trials by.

    Attributes:
        constraints: A trial that breaks one cannot win.
        second: What the second objective measures; None without one.
        second_direction: Which values of the second objective are better.
        env_steps: A trial's whole budget.
        direction: Which scores are better.
    """

    constraints: tuple[Constraint, ...] = ()
    second: str | None = None
    second_direction: Direction = Direction.MIN
    env_steps: int = 0
    direction: Direction = Direction.MAX

    def judge(self, record: TrialRecord) -> TrialRecord:
        """Return a trial with its checks and its second objective."""
        if not self.constraints and self.second is None:
            return record
        checks = tuple(one.check(self._measure(record, one.name)) for one in self.constraints)
        second = math.nan if self.second is None else self._measure(record, self.second)
        return replace(record, checks=checks, second=second if math.isfinite(second) else None)

    def _measure(self, record: TrialRecord, name: str) -> float:
        if name != TRAIN_S:
            return record.numbers.get(name, math.nan)
        if not record.env_steps:
            return math.nan
        return record.train_s * max(1.0, self.env_steps / record.env_steps)


NO_CRITERIA = Criteria()


def read_criteria(settings: Mapping[str, Any]) -> Criteria:
    """Read a sweep's criteria from its settings; older ones have none.

    Args:
        settings: As ``config.yaml`` has them, or the same of a `RunConfig` (``dataclasses.asdict``).

    Raises:
        ConfigError: A constraint is not a bound.
    """
    objective = settings.get("objective") or {}
    second = objective.get("second") or {}
    return Criteria(
        constraints=parse_constraints(settings.get("constraints") or {}),
        second=second.get("key"),
        second_direction=Direction(second.get("direction", Direction.MIN)),
        env_steps=int((settings.get("budget") or {}).get("env_steps") or 0),
        direction=Direction(objective.get("direction", Direction.MAX)),
    )


def parse_constraints(raw: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """Parse the constraints of a request: ``{"train_s": "< 60"}``; a value of None is no constraint.

    ``learner/vf_loss`` may be ``{"learner": {"vf_loss": ...}}``: Hydra's keys have no slash.

    Raises:
        ConfigError: A value is no bound.
    """
    return tuple(_parse_bound(name, text) for name, text in flatten_settings(raw, "/") if text is not None)


def _parse_bound(name: str, text: Any) -> Constraint:
    found = _BOUND.fullmatch(str(text))
    try:
        limit = float(found[2]) if found else math.nan
    except ValueError:  # two points
        limit = math.nan
    if found and math.isfinite(limit):
        return Constraint(name, found[1], limit)
    usual = f"{text:g}" if isinstance(text, int | float) and math.isfinite(text) else "60"
    raise ConfigError(
        f"constraints.{name}={text} is no bound",
        "one of < <= > >= and a number, or null",
        f"'constraints.{name}=< {usual}'",
    )
