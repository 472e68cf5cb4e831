"""Convert the ranges of a search space to Optuna's distributions, and drawn values to a trial's parameters.

A kind may search on another scale than that of the value; `Dimension.encode` and `Dimension.decode` convert.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError, choices, nearest, spell
from rltune.other_tools import Answer, find_answer
from rltune.search.conditions import WHEN, format_condition, format_yaml_value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SCALARS = (str, int, float, bool, type(None))  # Optuna can store values of these types in a categorical distribution.
# A condition must not name a parameter of these kinds, because a continuous draw never equals an exact value.
CONTINUOUS = ("uniform", "loguniform", "one_minus_loguniform")


@dataclass(frozen=True)
class Kind:
    """The name and arguments with which a kind of range, such as ``loguniform``, is written.

    Attributes:
        usage: The form in which it is written, for error messages.
        num_args: The number of its arguments; None for any number of at least one.
        integer: Whether its arguments must be integers.
        positive: Whether its arguments must be above zero.
        example: Arguments for errors to suggest.
    """

    usage: str
    num_args: int | None = 2
    integer: bool = False
    positive: bool = False
    example: tuple[Any, ...] = (0.1, 1)


KINDS: Mapping[str, Kind] = {
    "uniform": Kind("[uniform, low, high]"),
    "loguniform": Kind("[loguniform, low, high], both above 0", positive=True, example=(0.0001, 0.01)),
    "quniform": Kind("[quniform, low, high, step]", num_args=3, example=(0.1, 1, 0.1)),
    "randint": Kind("[randint, low, high], integers, both ends included", integer=True, example=(1, 10)),
    "lograndint": Kind(
        "[lograndint, low, high], integers above 0, both ends included", integer=True, positive=True, example=(1, 100)
    ),
    "choice": Kind("[choice, first, second, ...]", num_args=None, example=(1, 2)),
    "one_minus_loguniform": Kind(
        "[one_minus_loguniform, low, high]: 1 - x with x log-uniform", positive=True, example=(0.001, 0.1)
    ),
    "pow2": Kind(
        "[pow2, low, high]: powers of two, both ends included", integer=True, positive=True, example=(64, 256)
    ),
}


@dataclass(frozen=True)
class Dimension:
    """A searched parameter with its range and its condition.

    Attributes:
        name: The argument that it sets.
        kind: One of KINDS.
        when: The parents: other searched parameters, and for each the values at which this one is drawn. Empty for a
            parameter that is always drawn.
    """

    name: str
    kind: str
    args: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The parameter's name in Optuna's study, such as ``log2(minibatch_size)`` if its exponent is drawn."""
        return {"one_minus_loguniform": f"1-{self.name}", "pow2": f"log2({self.name})"}.get(self.kind, self.name)

    def distribution(self) -> BaseDistribution:
        """Return the Optuna distribution from which this parameter is drawn."""
        from optuna import distributions as d

        build: Mapping[str, Callable[..., BaseDistribution]] = {
            "uniform": lambda low, high: d.FloatDistribution(low, high),
            "loguniform": lambda low, high: d.FloatDistribution(low, high, log=True),
            "quniform": lambda low, high, step: d.FloatDistribution(low, high, step=step),
            "randint": lambda low, high: d.IntDistribution(low, high),
            "lograndint": lambda low, high: d.IntDistribution(low, high, log=True),
            "choice": lambda *values: d.CategoricalDistribution([pack_value(value) for value in values]),
            "one_minus_loguniform": lambda low, high: d.FloatDistribution(low, high, log=True),
            "pow2": lambda low, high: d.IntDistribution(int(math.log2(low)), int(math.log2(high))),
        }
        return build[self.kind](*self.args)

    def decode(self, raw: Any) -> Any:
        """Convert a value drawn by Optuna, such as an exponent of 2, to the parameter's value."""
        if self.kind == "choice":
            return next(value for value in self.args if pack_value(value) == raw)
        if self.kind == "one_minus_loguniform":
            return 1.0 - raw
        return 2 ** int(raw) if self.kind == "pow2" else raw

    def encode(self, value: Any) -> Any:
        """Convert a parameter's value to the value that Optuna would draw for it.

        Raises:
            ValueError: The value lies outside this dimension.
        """
        if self.kind == "choice":
            raw: Any = pack_value(value)
        elif self.kind == "one_minus_loguniform":
            # Because of rounding, 1 - 0.95 is not exactly 0.05; a value at an end of the range must still be accepted.
            raw = next((end for end in self.args if math.isclose(1.0 - value, end, rel_tol=1e-9)), 1.0 - value)
        elif self.kind == "pow2":
            raw = math.log2(value)
        else:
            raw = value
        distribution = self.distribution()
        if isinstance(raw, float) and self.kind in ("randint", "lograndint", "pow2"):
            raw = int(raw) if raw.is_integer() else math.nan
        distribution.to_internal_repr(raw)  # For a value that is not among the choices, Optuna raises ValueError here.
        if self.kind != "choice" and not _is_on_range(raw, distribution):
            raise ValueError(f"{self.name}={value} is outside {self}")
        return raw

    def ends(self) -> tuple[Any, Any]:
        """Return the lowest and the highest value of the range, or the first and the last choice."""
        if self.kind == "choice":
            return self.args[0], self.args[-1]
        low, high = self.args[:2]
        return (1.0 - high, 1.0 - low) if self.kind == "one_minus_loguniform" else (low, high)

    def spread(self, count: int) -> list[float]:
        """Return ``count`` values of a continuous range, evenly spaced on its linear or log scale, with four digits."""
        low, high = map(float, self.args[:2])
        parts = [place / (count - 1) for place in range(count)]
        raw = [low + part * (high - low) if self.kind == "uniform" else low * (high / low) ** part for part in parts]
        return sorted({float(f"{self.decode(quantity):.4g}") for quantity in raw})

    def count_values(self) -> int:
        """Count the possible values of a parameter that is not continuous."""
        if self.kind == "choice":
            return len(self.list_values())
        distribution: Any = self.distribution()
        num_steps: int = round((distribution.high - distribution.low) / distribution.step)
        return num_steps + 1

    def list_values(self) -> list[Any]:
        """List the possible values of a parameter that is not continuous."""
        if self.kind == "choice":
            return [value for place, value in enumerate(self.args) if value not in self.args[:place]]
        distribution: Any = self.distribution()
        return [self.decode(distribution.low + place * distribution.step) for place in range(self.count_values())]

    @property
    def condition(self) -> str:
        """The condition of this parameter for messages, such as ``when a=1``; empty for an unconditional parameter."""
        return format_condition(self.when)

    def __str__(self) -> str:
        return f"{format_yaml_value([self.kind, *self.args])} {self.condition}".rstrip()


def parse_dimension(name: str, kind: str, args: tuple[Any, ...]) -> Dimension:
    """Parse the range of one parameter, and refuse invalid arguments.

    Args:
        name: The argument that is searched.
        kind: One of KINDS.

    Raises:
        ConfigError: The kind is unknown, or its arguments are invalid.
    """
    key, form = f"space.{name}", [kind, *args]
    if kind not in KINDS:
        raise _unknown_kind_error(name, kind, args)
    rule = KINDS[kind]
    usual = f"{key}={spell([kind, *rule.example])}"
    if (rule.num_args is None and not args) or (rule.num_args is not None and len(args) != rule.num_args):
        raise ConfigError(key, form, ": wrong number of arguments", rule.usage, usual)
    if kind == "choice":
        return Dimension(name, kind, args)
    if not all(isinstance(arg, int | float) and not isinstance(arg, bool) and math.isfinite(arg) for arg in args):
        raise ConfigError(key, form, ": arguments must be numbers", rule.usage, usual)
    if rule.integer:
        if any(float(arg) != int(arg) for arg in args):
            rounded = [max(1, round(arg)) if rule.positive else round(arg) for arg in args]
            fix = usual if kind == "pow2" or rounded[0] >= rounded[1] else f"{key}={spell([kind, *rounded])}"
            raise ConfigError(key, form, ": arguments must be integers", rule.usage, fix)
        args = tuple(int(arg) for arg in args)
    if rule.positive and min(args) <= 0:
        low = 1 if rule.integer else max(args) / 1000
        fix = f"{key}={spell([kind, low, max(args)])}" if max(args) > low > 0 and kind != "pow2" else usual
        raise ConfigError(key, form, ": arguments must be above 0", rule.usage, fix)
    if args[0] > args[1]:
        turned = spell([kind, args[1], args[0], *args[2:]])
        raise ConfigError(key, form, ": its ends are in the wrong order", "low <= high", f"{key}={turned}")
    if kind == "quniform" and args[2] <= 0:
        fix = f"{key}={spell([kind, *args[:2], abs(args[2]) or 0.1])}"
        raise ConfigError(key, form, ": the range is empty", "step > 0", fix)
    # Optuna would round the upper end down to a multiple of the step itself, with a warning at every proposal.
    if kind == "quniform":
        low, high, step = args
        args = (low, round(low + step * math.floor((high - low) / step + 1e-9), 12), step)
    if kind == "pow2" and any(arg & (arg - 1) for arg in args):
        raise ConfigError(key, form, ": not powers of two", rule.usage, usual)
    return Dimension(name, kind, args)


def _unknown_kind_error(name: str, kind: str, args: tuple[Any, ...]) -> ConfigError:
    """Make the error for a kind that does not exist, with the range that was probably meant."""
    answer = find_answer("kind", kind) or Answer()
    close = answer.names[0] if answer.names else nearest(kind, KINDS) or "loguniform"
    fix = answer.fix.format(name=name, value=spell(list(args))[1:-1])
    if not fix:
        try:
            fitting = parse_dimension(name, close, args[: KINDS[close].num_args]).args
        except ConfigError:
            fitting = KINDS[close].example
        fix = f"space.{name}={spell([close, *fitting])}"
    allowed = answer.note or choices(kind, [*KINDS, WHEN], close)
    return ConfigError(f"space.{name}", [kind, *args], f": unknown kind '{kind}'", allowed, fix)


def guess_kind(values: Sequence[float]) -> str:
    """Guess which kind of range a user meant by a list of numbers, such as ``[1e-4, 1e-2]``, for advice."""
    low, high = min(values), max(values)
    if len(values) != 2 or values[0] >= values[1]:
        return "choice"
    if all(isinstance(value, int) for value in values):
        return "pow2" if low > 0 and all(math.log2(value).is_integer() for value in values) else "randint"
    return "loguniform" if low > 0 and high >= 10 * low else "uniform"


def _is_on_range(raw: Any, distribution: Any) -> bool:
    """Return whether a number is within the bounds of an Optuna distribution and a multiple of its step."""
    steps = (raw - distribution.low) / (distribution.step or math.inf)
    return bool(distribution.low <= raw <= distribution.high and abs(steps - round(steps)) < 1e-8)


def pack_value(value: Any) -> Any:
    """Return a choice in a type that Optuna can store; lists and mappings become JSON text."""
    return value if isinstance(value, SCALARS) else json.dumps(value)
