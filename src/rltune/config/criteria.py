"""The criteria by which a sweep compares trials: direction of scores, constraints and second objective.

Constraints and the second objective concern a quantity that trials measure, such as ``train_s``. If a trial was stopped
early, then its training time per environment step is extrapolated to the whole budget; any other quantity is that of
its newest report. Nothing heavy is imported.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from rltune.config.early_end import NEVER, EarlyEnd
from rltune.errors import ConfigError
from rltune.formatting import flatten_settings
from rltune.records import Check, Direction, TrialRecord

TRAIN_S = "train_s"
_BOUND = re.compile(r"\s*(<=|<|>=|>)\s*([-+]?[\d.]+(?:e[-+]?\d+)?)\s*", re.IGNORECASE)


@dataclass(frozen=True)
class Constraint:
    """A constraint on a quantity that trials measure, such as ``train_s < 60``.

    Attributes:
        name: The quantity.
        sign: ``<``, ``<=``, ``>`` or ``>=``.
        limit: The bound itself.
    """

    name: str
    sign: str
    limit: float

    @property
    def bound(self) -> str:
        """The constraint's sign and limit as users type them: ``< 60``."""
        return f"{self.sign} {self.limit:.10g}"

    def check(self, value: float) -> Check:
        """Compare a measured value with the limit; NaN means that the trial did not measure it."""
        excess = value - self.limit if self.sign.startswith("<") else self.limit - value
        if not excess and self.sign in ("<", ">"):
            excess = math.ulp(0.0)  # Optuna counts an excess of zero as feasible.
        return Check(self.name, self.bound, value, excess)


@dataclass(frozen=True)
class Criteria:
    """The criteria by which a sweep compares its trials.

    Attributes:
        constraints: A trial that breaks one of them cannot win.
        second: The quantity of the second objective; None without one.
        second_direction: Which values of the second objective are better.
        env_steps: A trial's whole budget.
        direction: Which scores are better.
        early_end: When trials end before their budget is spent.
    """

    constraints: tuple[Constraint, ...] = ()
    second: str | None = None
    second_direction: Direction = Direction.MIN
    env_steps: int = 0
    direction: Direction = Direction.MAX
    early_end: EarlyEnd = NEVER

    def judge(self, record: TrialRecord) -> TrialRecord:
        """Return a trial's record with the results of its constraints and the value of its second objective."""
        if not self.constraints and self.second is None:
            return record
        checks = tuple(constraint.check(self._measure(record, constraint.name)) for constraint in self.constraints)
        second = math.nan if self.second is None else self._measure(record, self.second)
        return replace(record, checks=checks, second=second if math.isfinite(second) else None)

    def _measure(self, record: TrialRecord, name: str) -> float:
        if name != TRAIN_S:
            return record.numbers.get(name, math.nan)
        if not record.env_steps:
            return math.nan
        if record.state == "COMPLETE":  # It may have ended early, as `budget.target` has it.
            return record.train_s
        return record.train_s * max(1.0, self.env_steps / record.env_steps)


NO_CRITERIA = Criteria()


def read_criteria(settings: Mapping[str, Any]) -> Criteria:
    """Read a sweep's criteria from its settings, which are empty where they cannot be read.

    Args:
        settings: The settings in ``config.yaml``, or a `RunConfig` as a dictionary (``dataclasses.asdict``).

    Raises:
        ConfigError: A constraint is not a bound.
    """
    objective = settings.get("objective") or {}
    second, budget = objective.get("second") or {}, settings.get("budget") or {}
    direction = Direction(objective.get("direction", Direction.MAX))
    return Criteria(
        constraints=parse_constraints(settings.get("constraints") or {}),
        second=second.get("key"),
        second_direction=Direction(second.get("direction", Direction.MIN)),
        env_steps=int(budget.get("env_steps") or 0),
        direction=direction,
        early_end=EarlyEnd(budget.get("target"), budget.get("plateau"), direction),
    )


def parse_constraints(raw: Mapping[str, Any]) -> tuple[Constraint, ...]:
    """Parse constraints such as ``{"train_s": "< 60"}``; a value of None is no constraint.

    ``learner/vf_loss`` may be written as ``{"learner": {"vf_loss": ...}}``, because keys of Hydra cannot have a slash.

    Raises:
        ConfigError: A value is not a bound.
    """
    return tuple(_parse_bound(name, text) for name, text in flatten_settings(raw, "/") if text is not None)


def read_bound(text: Any) -> tuple[str, float] | None:
    """Read a comparison as users type it, ``> 2``: its sign and its limit; None for anything else."""
    match = _BOUND.fullmatch(text) if isinstance(text, str) else None
    with contextlib.suppress(ValueError):  # The regular expression also matches 1.2.3, which is no float.
        if match and math.isfinite(limit := float(match[2])):
            return match[1], limit
    return None


def _parse_bound(name: str, text: Any) -> Constraint:
    if bound := read_bound(text):
        return Constraint(name, *bound)
    usual = f"{text:g}" if isinstance(text, int | float) and math.isfinite(text) else "60"
    raise ConfigError(
        f"constraints.{name}",
        text,
        "is no bound",
        "one of < <= > >= and a number, or null",
        f"'+constraints.{name.replace('/', '.')}=< {usual}'",
    )
