"""Build the rule that stops weak trials, as a scheduler file describes it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from rltune.errors import ConfigError, choices
from rltune.search.successive_halving import SuccessiveHalving

# An experiment sets ASHA's arguments, and a person may run it with scheduler=none: it ignores them in silence.
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "asha": ("grace_fraction", "reduction_factor"),
    "none": ("grace_fraction", "reduction_factor"),
}


class StoppingRule(Protocol):
    """Decide after each report whether a trial goes on. Plain arithmetic: no Ray, no ledger."""

    def report(self, number: int, env_steps: int, objective: float) -> int | None:
        """Record a trial's report.

        Args:
            number: The trial.
            env_steps: How many environment steps it has trained.
            objective: Its objective; NaN before its first episode has ended.

        Returns:
            The environment steps at which the trial must stop; None if it goes on.
        """

    def replay(self, trials: Iterable[tuple[int, Mapping[int, float]]]) -> None:
        """Rebuild what the rule knows from earlier reports: numbers, and objectives by environment steps, in any order.

        Verdicts are not asked for: what was stopped is in the ledger.
        """


def build_stopping_rule(kind: str, args: Mapping[str, Any], env_steps: int) -> StoppingRule | None:
    """Build the stopping rule of a scheduler file; None means that no trial is stopped early.

    Args:
        kind: A name in ARGUMENTS.
        args: The rule's arguments.
        env_steps: A trial's whole budget, in environment steps.

    Raises:
        ConfigError: The kind or an argument is unknown or out of range.
    """
    if kind not in ARGUMENTS:
        raise ConfigError(f"scheduler.kind={kind} is unknown", choices(kind, ARGUMENTS), "scheduler=asha")
    for name in args:
        if name not in ARGUMENTS[kind]:
            raise ConfigError(
                f"scheduler.args.{name}={args[name]}: the {kind} scheduler has no such argument",
                choices(name, ARGUMENTS[kind]),
                f"correct or remove it: ~scheduler.args.{name}",
            )
    if kind == "none":
        return None
    grace, factor = (_to_number(args.get(name)) for name in ARGUMENTS["asha"])
    if not 0 < grace <= 1:
        raise ConfigError(
            f"scheduler.args.grace_fraction={args.get('grace_fraction')} is out of range",
            "above 0, at most 1",
            "scheduler.args.grace_fraction=0.1",
        )
    if not factor >= 2:
        raise ConfigError(
            f"scheduler.args.reduction_factor={args.get('reduction_factor')} is out of range",
            "at least 2",
            "scheduler.args.reduction_factor=3",
        )
    return SuccessiveHalving(env_steps, grace, factor)


def _to_number(value: Any) -> float:
    """Return the value as a number; NaN, which lies in no range, where it is none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
