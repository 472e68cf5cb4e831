"""The search space: ``name: [kind, args...]`` from YAML to Optuna's distributions and back.

A kind may search on another scale than the value's own; the study then shows the searched quantity under its own
label (``log2(minibatch_size)``, ``1-gamma``), and `Space.decode` gives the value. ``[when, {other: value}, form]``
searches a parameter only where another one has a value (`rltune.conditions`). Runs in the driver.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rltune import conditions
from rltune.errors import ConfigError, choices

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SCALARS = (str, int, float, bool, type(None))
CONTINUOUS = ("uniform", "loguniform", "one_minus_loguniform")  # a condition on one exact value would never hold


@dataclass(frozen=True)
class Kind:
    """One way to search a value.

    Attributes:
        usage: How it is written, for error messages.
        num_args: How many arguments it takes; None for any number of at least one.
        integer: Whether its arguments must be integers.
        positive: Whether its arguments must be above zero.
    """

    usage: str
    num_args: int | None = 2
    integer: bool = False
    positive: bool = False


KINDS: Mapping[str, Kind] = {
    "uniform": Kind("[uniform, low, high]"),
    "loguniform": Kind("[loguniform, low, high], both above 0", positive=True),
    "quniform": Kind("[quniform, low, high, step]", num_args=3),
    "randint": Kind("[randint, low, high], integers, both ends included", integer=True),
    "lograndint": Kind("[lograndint, low, high], integers above 0, both ends included", integer=True, positive=True),
    "choice": Kind("[choice, first, second, ...]", num_args=None),
    "one_minus_loguniform": Kind("[one_minus_loguniform, low, high]: 1 - x with x log-uniform", positive=True),
    "pow2": Kind("[pow2, low, high]: powers of two, both ends included", integer=True, positive=True),
}


@dataclass(frozen=True)
class Dimension:
    """One searched parameter.

    Attributes:
        name: The argument's.
        kind: One of KINDS.
        args: What the kind takes.
        when: Other searched parameters, each with the values of which it must have one for this to be drawn; empty
            for one that is always drawn.
    """

    name: str
    kind: str
    args: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """The name of the searched quantity in the study."""
        return {"one_minus_loguniform": f"1-{self.name}", "pow2": f"log2({self.name})"}.get(self.kind, self.name)

    def distribution(self) -> BaseDistribution:
        """Optuna's distribution of the searched quantity."""
        from optuna import distributions as d

        build: Mapping[str, Callable[..., BaseDistribution]] = {
            "uniform": lambda low, high: d.FloatDistribution(low, high),
            "loguniform": lambda low, high: d.FloatDistribution(low, high, log=True),
            "quniform": lambda low, high, step: d.FloatDistribution(low, high, step=step),
            "randint": lambda low, high: d.IntDistribution(low, high),
            "lograndint": lambda low, high: d.IntDistribution(low, high, log=True),
            "choice": lambda *values: d.CategoricalDistribution([_pack(value) for value in values]),
            "one_minus_loguniform": lambda low, high: d.FloatDistribution(low, high, log=True),
            "pow2": lambda low, high: d.IntDistribution(int(math.log2(low)), int(math.log2(high))),
        }
        return build[self.kind](*self.args)

    def decode(self, raw: Any) -> Any:
        """The value that a trial gets for the searched quantity ``raw``."""
        if self.kind == "choice":
            return next(value for value in self.args if _pack(value) == raw)
        if self.kind == "one_minus_loguniform":
            return 1.0 - raw
        return 2 ** int(raw) if self.kind == "pow2" else raw

    def encode(self, value: Any) -> Any:
        """The searched quantity that gives ``value``.

        Raises:
            ValueError: The value lies outside this dimension.
        """
        if self.kind == "choice":
            raw: Any = _pack(value)
        elif self.kind == "one_minus_loguniform":
            # 1 - 0.95 is 0.05 plus a rounding error: an end of the range must count as inside it.
            raw = next((end for end in self.args if math.isclose(1.0 - value, end, rel_tol=1e-9)), 1.0 - value)
        elif self.kind == "pow2":
            raw = math.log2(value)
        else:
            raw = value
        distribution = self.distribution()
        if isinstance(raw, float) and self.kind in ("randint", "lograndint", "pow2"):
            raw = int(raw) if raw.is_integer() else math.nan
        internal = distribution.to_internal_repr(raw)  # raises ValueError for an unknown choice
        if not distribution._contains(internal):
            raise ValueError(f"{self.name}={value} is outside {self}")
        return raw

    def ends(self) -> tuple[Any, Any]:
        """The values at its two ends, for the checks before the first trial."""
        if self.kind == "choice":
            return self.args[0], self.args[-1]
        low, high = self.args[:2]
        return (1.0 - high, 1.0 - low) if self.kind == "one_minus_loguniform" else (low, high)

    @property
    def condition(self) -> str:
        """When it is drawn, in words; empty for always."""
        return conditions.shown(self.when)

    def __str__(self) -> str:
        return f"{conditions.plain([self.kind, *self.args])} {self.condition}".rstrip()


Suggest = Callable[[str, "BaseDistribution"], Any]


@dataclass(frozen=True)
class Space:
    """The searched parameters of a sweep and those that are fixed.

    Attributes:
        dimensions: What is searched, each after those that its condition names.
        fixed: Values by name.
        idle: Parameters whose condition can hold in no trial of this sweep, with the reason.
    """

    dimensions: tuple[Dimension, ...]
    fixed: Mapping[str, Any]
    idle: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """All names, searched and fixed."""
        return (*(dimension.name for dimension in self.dimensions), *self.fixed)

    @property
    def conditional(self) -> bool:
        """Whether trials may differ in what they have."""
        return any(dimension.when for dimension in self.dimensions)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Optuna's distributions by the label of the searched quantity."""
        return {dimension.label: dimension.distribution() for dimension in self.dimensions}

    def draw(self, suggest: Suggest) -> dict[str, Any]:
        """Ask for one trial's searched quantities, those alone whose conditions hold.

        Args:
            suggest: Gives the quantity for a label and its distribution.

        Returns:
            Quantities by label.
        """
        raw: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if conditions.hold(dimension.when, values):
                raw[dimension.label] = suggest(dimension.label, dimension.distribution())
                values[dimension.name] = dimension.decode(raw[dimension.label])
        return raw

    def active(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """``values`` without those of parameters whose condition fails among them; of what is missing, none does."""
        kept: dict[str, Any] = {}
        for dimension in self.dimensions:
            mine = {name: allowed for name, allowed in dimension.when.items() if name in values}
            if dimension.name in values and conditions.hold(mine, kept):
                kept[dimension.name] = values[dimension.name]
        searched = {dimension.name for dimension in self.dimensions}
        return {name: value for name, value in values.items() if name in kept or name not in searched}

    def decode(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A trial's values by name, from what the study holds for it (labels)."""
        mine = [d for d in self.dimensions if not d.when or d.label in raw]
        return {d.name: d.decode(raw[d.label]) for d in mine} | dict(self.fixed)

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """The searched quantities for ``values``; those outside the space are left to the sampler."""
        raw = {}
        for dimension in self.dimensions:
            if dimension.name in values:
                try:
                    raw[dimension.label] = dimension.encode(values[dimension.name])
                except (ValueError, TypeError):
                    continue
        return raw

    def corners(self) -> list[dict[str, Any]]:
        """Points at the ends of the space at which a configuration must build.

        All low and all high, and each of the two with one parameter at its other end: this meets every pair of one
        parameter's end with another's opposite end (a minibatch larger than its batch, say) in 2n + 2 points. The
        other values of a choice follow, each once. A parameter with a condition is moved where its condition holds.
        """
        ends = {dimension.name: dimension.ends() for dimension in self.dimensions}
        points: list[dict[str, Any]] = []
        for side in (0, 1):
            base = {name: pair[side] for name, pair in ends.items()}
            points += [base, *(self._moved(base, d, ends[d.name][1 - side]) for d in self.dimensions)]
            # Where conditions hold that do not at this end: their parameters at this end too.
            points += [self._moved(base, d, ends[d.name][side]) for d in self.dimensions if d.when]
        low = points[0]
        for dimension in self.dimensions:
            middle = dimension.args[1:-1] if dimension.kind == "choice" else ()
            points += [self._moved(low, dimension, value) for value in middle]  # each may fail in a way of its own
        active = [{**self.active(point), **self.fixed} for point in points]
        return [point for place, point in enumerate(active) if point not in active[:place]]

    def _moved(self, point: Mapping[str, Any], dimension: Dimension, value: Any) -> dict[str, Any]:
        """``point`` with one parameter at another value, and its conditions fulfilled."""
        moved = {**point, dimension.name: value}
        waiting = [dimension]
        by_name = {one.name: one for one in self.dimensions}
        while waiting:
            for name, allowed in waiting.pop().when.items():
                if moved[name] not in allowed:
                    moved[name] = allowed[0]
                waiting.append(by_name[name])
        return moved


def parse(raw: Mapping[str, Any], algo: Mapping[str, Any] | None = None) -> Space:
    """Read the ``space`` group.

    Args:
        raw: Name to ``[kind, args...]`` (searched), ``[when, {name: value}, form]`` (searched where the others have
            these values) or a plain value (fixed).
        algo: The algorithm file's values by name, which a condition may name too.

    Raises:
        ConfigError: A kind is unknown or its arguments make no range; a condition names what is not there, wants what
            cannot be, or goes round in a circle.
    """
    found: dict[str, Dimension] = {}
    fixed: dict[str, Any] = {}
    when: dict[str, Mapping[str, Any]] = {}
    for name, entry in raw.items():
        own, form = conditions.split(str(name), entry)
        if isinstance(form, Sequence) and not isinstance(form, str) and form and isinstance(form[0], str):
            found[str(name)] = _dimension(str(name), str(form[0]), tuple(form[1:]))
        elif own:  # a plain value under a condition is a choice of one
            found[str(name)] = Dimension(str(name), "choice", (form,))
        else:
            fixed[str(name)] = form
        when[str(name)] = own
    return _with_conditions(found, fixed, when, {**(algo or {}), **fixed})


def _with_conditions(
    found: Mapping[str, Dimension],
    fixed: Mapping[str, Any],
    when: Mapping[str, Mapping[str, Any]],
    constant: Mapping[str, Any],
) -> Space:
    """The space with its conditions checked, those on constants decided at once."""
    ordered: list[Dimension] = []
    idle: dict[str, str] = {}
    for name in conditions.order({name: when[name] for name in found}):
        wanted: dict[str, tuple[Any, ...]] = {}
        for control, value in when[name].items():
            if control in found:
                wanted[control] = _reachable(found[name], found[control], value)
                if control in idle:
                    idle[name] = f"{control} is not searched either"
            elif control not in constant:
                raise conditions.unknown(name, control, [*found, *constant])
            elif not conditions.equal(constant[control], value):
                idle[name] = f"{control} is {constant[control]}"
        if name not in idle:
            ordered.append(replace(found[name], when=wanted))
    return Space(tuple(ordered), fixed, idle)


def _reachable(dimension: Dimension, control: Dimension, value: Any) -> tuple[Any, ...]:
    """The values of ``control`` that a condition wants, one or several.

    Raises:
        ConfigError: It never has one of them.
    """
    if control.kind == "choice" and value in control.args:
        return (value,)
    wanted = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for one in wanted:
        try:
            if control.kind in CONTINUOUS:
                raise ValueError
            control.encode(one)
        except (ValueError, TypeError):
            raise conditions.unreachable(dimension.name, control.name, one, str(control)) from None
    return wanted


def _dimension(name: str, kind: str, args: tuple[Any, ...]) -> Dimension:
    shown = f"space.{name}=[{', '.join(str(part) for part in (kind, *args))}]"
    if kind not in KINDS:
        known = [*KINDS, conditions.WHEN]
        raise ConfigError(f"{shown}: unknown kind '{kind}'", choices(kind, known), f"space.{name}=[uniform,0.1,0.9]")
    rule = KINDS[kind]
    fix = f"write space.{name} as {rule.usage}"
    if (rule.num_args is None and not args) or (rule.num_args is not None and len(args) != rule.num_args):
        raise ConfigError(f"{shown}: wrong number of arguments", rule.usage, fix)
    if kind == "choice":
        return Dimension(name, kind, args)
    if not all(isinstance(arg, int | float) and not isinstance(arg, bool) and math.isfinite(arg) for arg in args):
        raise ConfigError(f"{shown}: arguments must be numbers", rule.usage, fix)
    if rule.integer:
        if any(float(arg) != int(arg) for arg in args):
            raise ConfigError(f"{shown}: arguments must be integers", rule.usage, fix)
        args = tuple(int(arg) for arg in args)
    if rule.positive and min(args) <= 0:
        raise ConfigError(f"{shown}: arguments must be above 0", rule.usage, fix)
    if args[0] > args[1] or (kind == "quniform" and args[2] <= 0):
        raise ConfigError(f"{shown}: the range is empty", "low <= high, step > 0", fix)
    if kind == "quniform":  # Optuna rounds the upper end down to a multiple, with a warning at every question
        low, high, step = args
        args = (low, round(low + step * math.floor((high - low) / step + 1e-9), 12), step)
    if kind == "pow2" and any(arg & (arg - 1) for arg in args):
        raise ConfigError(f"{shown}: not powers of two", rule.usage, f"space.{name}=[pow2,64,256]")
    return Dimension(name, kind, args)


def _pack(value: Any) -> Any:
    """A choice as Optuna may store it: lists and mappings as JSON text, so that the dashboard shows them whole."""
    return value if isinstance(value, SCALARS) else json.dumps(value)
