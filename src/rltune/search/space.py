"""The search space: ``name: [kind, args...]`` from YAML to Optuna's distributions and back.

A kind may search on another scale than the value's own; the study then shows the searched quantity under its own
label (``log2(minibatch_size)``, ``1-gamma``), and `Space.decode` gives the value. ``[when, {other: value}, form]``
searches a parameter only where another one has a value (`rltune.search.conditions`). Runs in the driver.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rltune.search.conditions import (
    conditions_hold,
    equal_values,
    find_unknown_parent,
    find_unreachable_value,
    order_parameters,
    split_condition,
)
from rltune.search.dimensions import CONTINUOUS, Dimension, parse_dimension

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution


def _is_on_range(raw: Any, distribution: Any) -> bool:
    """Tell whether a number lies between the ends of a distribution, and on one of its steps."""
    steps = (raw - distribution.low) / (distribution.step or math.inf)
    return bool(distribution.low <= raw <= distribution.high and abs(steps - round(steps)) < 1e-8)


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
            if conditions_hold(dimension.when, values):
                raw[dimension.label] = suggest(dimension.label, dimension.distribution())
                values[dimension.name] = dimension.decode(raw[dimension.label])
        return raw

    def active(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """``values`` without those of parameters whose condition fails among them; of what is missing, none does."""
        kept: dict[str, Any] = {}
        for dimension in self.dimensions:
            mine = {name: allowed for name, allowed in dimension.when.items() if name in values}
            if dimension.name in values and conditions_hold(mine, kept):
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


def parse_space(raw: Mapping[str, Any], algo: Mapping[str, Any] | None = None) -> Space:
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
        own, form = split_condition(str(name), entry)
        if isinstance(form, Sequence) and not isinstance(form, str) and form and isinstance(form[0], str):
            found[str(name)] = parse_dimension(str(name), str(form[0]), tuple(form[1:]))
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
    for name in order_parameters({name: when[name] for name in found}):
        wanted: dict[str, tuple[Any, ...]] = {}
        for control, value in when[name].items():
            if control in found:
                wanted[control] = _reachable(found[name], found[control], value)
                if control in idle:
                    idle[name] = f"{control} is not searched either"
            elif control not in constant:
                raise find_unknown_parent(name, control, [*found, *constant])
            elif not equal_values(constant[control], value):
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
            raise find_unreachable_value(dimension.name, control.name, one, str(control)) from None
    return wanted
