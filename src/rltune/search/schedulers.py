"""Define stopping rules, and build the rule that a scheduler file describes.

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

from rltune.errors import ConfigError, choices, describe_exception
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
    """Let the trial train on."""


@dataclass(frozen=True)
class Stop:
    """Stop the trial for good.

    Attributes:
        env_steps: Where it was judged, in environment steps of each seed; at most the report's mark.
    """

    env_steps: int

    @property
    def reason(self) -> str:
        """Why such a trial ended, and why it may have taken more steps than those by which it was judged."""
        return f"stopped by the scheduler at {self.env_steps:,} environment steps, after the iteration that passed them"


Decision = GoOn | Stop
GO_ON = GoOn()


class StoppingRule(abc.ABC):
    """Decide after each report whether a trial goes on. Plain arithmetic: no Ray, no ledger.

    The constructor takes ``env_steps``, a trial's whole budget, and after it the arguments of the scheduler's file. The
    same reports in the same order must lead to the same decisions: a resumed sweep replays all reports of the ledger.

    Attributes:
        levels: The environment steps of the rungs at which trials are compared, ascending; the report draws them. Empty
            for a rule without rungs.
    """

    levels: Sequence[int] = ()

    @abc.abstractmethod
    def decide(self, report: Report) -> Decision:
        """Take in a trial's report and decide about the trial.

        Args:
            report: Of two scores the higher one is better, see `Minimizing`. The score is NaN before the first
                episode has ended: a rule that judges by it stops those whose episodes are long. A trial that failed
                and trains some steps again reports them again.
        """


class NoStopping(StoppingRule):
    """Let every trial run its whole budget.

    Args:
        env_steps: A trial's whole budget, in environment steps.
    """

    def __init__(self, env_steps: int) -> None:
        self.env_steps = env_steps

    def decide(self, report: Report) -> Decision:
        """Let the trial go on."""
        return GO_ON


class Minimizing(StoppingRule):
    """Let a rule compare trials whose lower scores are better, by handing the negatives of scores to it.

    Args:
        rule: A rule to which higher scores are better, as they are to every `StoppingRule`.
    """

    def __init__(self, rule: StoppingRule) -> None:
        self._rule, self.levels = rule, rule.levels

    def decide(self, report: Report) -> Decision:
        """Take in a trial's report and decide about the trial."""
        return self._rule.decide(replace(report, score=-report.score))


def replay_reports(rule: StoppingRule, reports: Iterable[Report]) -> dict[int, Decision]:
    """Replay reports to a new rule, and return for each trial the decision after its newest report.

    Args:
        rule: A new rule.
        reports: The reports of all trials, in the order in which they came.
    """
    return {report.number: rule.decide(report) for report in reports}


def build_stopping_rule(
    kind: str, args: Mapping[str, Any], env_steps: int, direction: Direction = Direction.MAX
) -> StoppingRule:
    """Build the stopping rule of a scheduler file.

    Args:
        kind: A name in RULES, or ``package.module:Class`` of a `StoppingRule`.
        args: The rule's arguments.
        env_steps: A trial's whole budget, in environment steps.
        direction: Which scores are better.

    Raises:
        ConfigError: The kind or an argument is unknown, missing or out of range.
    """
    cls = _import_rule(kind)
    arguments = _list_arguments(cls)
    if kind == "none":
        # With scheduler=none, the arguments of all rules are ignored, because an experiment may set those of ASHA.
        arguments = {name: False for other in RULES for name in _list_arguments(_import_rule(other))}
    for name in args:
        if name not in arguments:
            raise ConfigError(
                f"scheduler.args.{name}={args[name]}: the {kind} scheduler has no such argument",
                choices(name, arguments),
                f"correct or remove it: ~scheduler.args.{name}",
            )
    for name, required in arguments.items():
        if required and name not in args:
            raise ConfigError(
                f"scheduler.args.{name} has no value",
                f"a value for each argument of the {kind} scheduler: {', '.join(arguments)}",
                f"add scheduler.args.{name}=...",
            )
    try:
        rule: StoppingRule = cls(env_steps=env_steps, **({} if kind == "none" else args))
    except ConfigError:
        raise
    except Exception as error:  # A user's class may raise any exception when it is built.
        raise ConfigError(
            f"scheduler.args={dict(args)}: {describe_exception(error)}",
            f"values that {kind} accepts",
            "~scheduler.args",
        ) from None
    return rule if direction is Direction.MAX else Minimizing(rule)


def make_argument_error(name: str, value: Any, allowed: str, usual: float) -> ConfigError:
    """Return the error for a rule's argument that is out of range.

    Args:
        allowed: The allowed values, such as ``at least 2``.
        usual: A value to type instead.
    """
    key = f"scheduler.args.{name}"
    return ConfigError(f"{key}={value} is out of range", allowed, f"{key}={usual}")


def to_number(value: Any) -> float:
    """Return an argument as a number; NaN, which lies in no range, if it is not a number."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else math.nan


def _import_rule(kind: str) -> Any:
    return import_class(
        "scheduler",
        kind,
        RULES,
        "stopping rule (a rltune.search.schedulers.StoppingRule)",
        lambda cls: issubclass(cls, StoppingRule),
    )


def _list_arguments(cls: type) -> dict[str, bool]:
    """Return the arguments that a rule's file may set, and for each whether it must."""
    parameters = inspect.signature(cls).parameters.values()
    return {
        parameter.name: parameter.default is parameter.empty
        for parameter in parameters
        if parameter.name != "env_steps"
    }
