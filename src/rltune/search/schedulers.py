"""The interface of stopping rules, and the function that builds the rule of a scheduler file.

A rule is a class, which its file names by ``package.module:Class`` or by a short name of RULES. The arguments of its
constructor are those that the file may set; it refuses values itself, by `make_argument_error`.
"""

from __future__ import annotations

import abc
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rltune.config.entry_points import naming_setting
from rltune.errors import ABSENT, ConfigError, choices
from rltune.records import Direction, Report
from rltune.search.class_names import import_class

RULES: Mapping[str, str] = {
    "asha": "rltune.search.successive_halving:SuccessiveHalving",
    "hyperband": "rltune.search.hyperband:Hyperband",
    "median": "rltune.search.median_stopping:MedianStopping",
    "none": "rltune.search.schedulers:NoStopping",
}


@dataclass(frozen=True)
class GoOn:
    """The decision that a trial continues."""


@dataclass(frozen=True)
class Stop:
    """The decision that a trial is stopped for good.

    Attributes:
        env_steps: Where it was judged, in environment steps of each seed; at most the report's mark.
    """

    env_steps: int

    @property
    def reason(self) -> str:
        """Describe for users at which step the trial was judged, and why it may have taken more steps than that."""
        return f"stopped by the scheduler at {self.env_steps:,} environment steps, after the iteration that passed them"


Decision = GoOn | Stop
GO_ON = GoOn()


class StoppingRule(abc.ABC):
    """A rule that decides after each report whether the trial continues. Plain arithmetic: no Ray, no ledger.

    The constructor takes ``env_steps``, a trial's whole budget, and after it the arguments of the scheduler's file. The
    same reports in the same order must lead to the same decisions: a resumed sweep replays all reports of the ledger.

    Attributes:
        levels: The environment steps of the rungs at which trials are compared, ascending; the report draws them. Empty
            for a rule without rungs.
    """

    levels: Sequence[int] = ()

    @abc.abstractmethod
    def decide(self, report: Report) -> Decision:
        """Record a trial's report, and decide whether the trial continues.

        Args:
            report: Of two scores the higher one is better, see `Minimizing`. The score is NaN before the first
                episode has ended: a rule that judges by it stops those whose episodes are long. A trial that failed
                and trains some steps again reports them again.
        """


class NoStopping(StoppingRule):
    """The rule of ``scheduler=none``: every trial runs for its whole budget.

    Args:
        env_steps: A trial's whole budget, in environment steps.
    """

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps

    def decide(self, report: Report) -> Decision:
        """Let the trial continue."""
        return GO_ON


class Minimizing(StoppingRule):
    """Adapt a rule, which prefers higher scores, to an objective that is minimized, by negating the scores.

    Args:
        rule: A rule to which higher scores are better, as they are to every `StoppingRule`.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self._rule, self.levels = rule, rule.levels

    def decide(self, report: Report) -> Decision:
        """Negate the report's score, and let the adapted rule decide."""
        return self._rule.decide(replace(report, score=-report.score))


def replay_reports(rule: StoppingRule, reports: Iterable[Report]) -> dict[int, Decision]:
    """Feed the reports of a resumed sweep to a new rule, and return its last decision for each trial.

    Args:
        rule: A new rule.
        reports: The reports of all trials, in the order in which they came.
    """
    return {report.number: rule.decide(report) for report in reports}


def build_stopping_rule(
    kind: str, args: Mapping[str, Any], env_steps: int, direction: Direction = Direction.MAX
) -> StoppingRule:
    """Build the stopping rule that a scheduler file describes.

    Args:
        kind: A name in RULES, or ``package.module:Class`` of a `StoppingRule`.
        args: The rule's arguments.
        env_steps: A trial's whole budget, in environment steps.
        direction: Which scores are better.

    Raises:
        ConfigError: The kind or an argument is unknown, missing or out of range.
    """
    cls, arguments = _import_rule(kind), list_rule_arguments(kind)
    for name in args:
        if name not in arguments:
            raise ConfigError(
                f"scheduler.args.{name}",
                args[name],
                f": the {kind} scheduler has no such argument",
                choices(name, arguments),
                f"correct or remove it: ~scheduler.args.{name}",
            )
    for name, required in arguments.items():
        if required and name not in args:
            raise ConfigError(
                f"scheduler.args.{name}",
                ABSENT,
                "has no value",
                f"a value for each argument of the {kind} scheduler: {', '.join(arguments)}",
                f"add scheduler.args.{name}=...",
            )
    with naming_setting("scheduler.args", dict(args), f"values that {kind} accepts", "~scheduler.args"):
        rule: StoppingRule = cls(env_steps=env_steps, **({} if kind == "none" else args))
    return rule if direction is Direction.MAX else Minimizing(rule)


def make_argument_error(name: str, value: Any, allowed: str, usual: float) -> ConfigError:
    """Make the error for an argument of a stopping rule that is out of range.

    Args:
        allowed: The allowed values, such as ``at least 2``.
        usual: A value to type instead.
    """
    key = f"scheduler.args.{name}"
    return ConfigError(key, value, "is out of range", allowed, f"{key}={usual}")


def to_number(value: Any) -> float:
    """Convert an argument to a float; anything but a number becomes NaN, which fails every range check."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _import_rule(kind: str) -> Any:
    return import_class(
        "scheduler",
        kind,
        RULES,
        "stopping rule (a rltune.search.schedulers.StoppingRule)",
        lambda cls: issubclass(cls, StoppingRule),
    )


def list_rule_arguments(kind: str) -> dict[str, bool]:
    """List the arguments of a stopping rule that ``scheduler.args`` may set, and whether each is required.

    Raises:
        ConfigError: There is no stopping rule of this name.
    """
    if kind == "none":
        # With scheduler=none, arguments of other rules are ignored, because an experiment file may set those of ASHA.
        return {name: False for other in RULES if other != kind for name in list_rule_arguments(other)}
    parameters = inspect.signature(_import_rule(kind)).parameters.values()
    return {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.name != "env_steps"
    }
