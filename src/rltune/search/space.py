"""Parse a search space, ``name: [kind, args...]`` in YAML, and convert between parameters and Optuna's drawn values.

A kind may search on another scale than that of the value. Then Optuna's study has the searched quantity under another
label (``log2(minibatch_size)``, ``1-gamma``), and `Space.decode` returns the value.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError, choices
from rltune.search.conditions import (
    is_allowed,
    is_met,
    order_parameters,
    split_condition,
    unknown_parent_error,
    unreachable_value_error,
)
from rltune.search.dimensions import CONTINUOUS, KINDS, Dimension, parse_dimension

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Suggest = Callable[[str, "BaseDistribution"], Any]


@dataclass(frozen=True)
class Space:
    """The searched parameters of a sweep, and those that are fixed to a value.

    Attributes:
        dimensions: The searched parameters, each after its parents.
        fixed: The values of the other parameters by name.
        idle: Parameters that no trial of this sweep can have, each with the reason.
    """

    dimensions: tuple[Dimension, ...]
    fixed: Mapping[str, Any]
    idle: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parameters, searched and fixed."""
        return (*(dimension.name for dimension in self.dimensions), *self.fixed)

    @property
    def is_conditional(self) -> bool:
        """Whether the space is conditional, so that a trial may lack some parameters."""
        return any(dimension.when for dimension in self.dimensions)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions of the parameters by their labels, such as ``log2(minibatch_size)``."""
        return {dimension.label: dimension.distribution() for dimension in self.dimensions}

    def draw(self, suggest: Suggest) -> dict[str, Any]:
        """Draw a trial's parameters in Optuna's representation, skipping those whose condition is not met.

        Args:
            suggest: Returns the quantity for a label and its distribution.

        Returns:
            Quantities by label.
        """
        raw: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if is_met(dimension.when, values):
                raw[dimension.label] = suggest(dimension.label, dimension.distribution())
                values[dimension.name] = dimension.decode(raw[dimension.label])
        return raw

    def active_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return ``values`` without the parameters whose condition the other values do not meet.

        A parent that is missing from ``values`` may still be drawn so that it fits: it excludes nothing.
        """
        kept: dict[str, Any] = {}
        for dimension in self.dimensions:
            given = {parent: allowed for parent, allowed in dimension.when.items() if parent in values}
            if dimension.name in values and is_met(given, kept):
                kept[dimension.name] = values[dimension.name]
        searched = {dimension.name for dimension in self.dimensions}
        return {name: value for name, value in values.items() if name in kept or name not in searched}

    def decode(self, raw: Mapping[str, Any]) -> dict[str, Any]:
        """Convert the drawn values in Optuna's study, by label, to a trial's parameters by name."""
        drawn = [d for d in self.dimensions if not d.when or d.label in raw]
        return {d.name: d.decode(raw[d.label]) for d in drawn} | dict(self.fixed)

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert parameter values to Optuna's representation by label; values outside the space are left out."""
        raw = {}
        for dimension in self.dimensions:
            if dimension.name in values:
                try:
                    raw[dimension.label] = dimension.encode(values[dimension.name])
                except (ValueError, TypeError):
                    continue
        return raw

    def check_values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Check the values of a trial that a user enqueues, and add the parents' values that their conditions require.

        Args:
            values: The values by name; names with dots may be written as nested mappings.

        Raises:
            ConfigError: One is not searched, out of its range, or of a parameter whose condition the others do not
                meet.
        """
        by_name = {dimension.name: dimension for dimension in self.dimensions}
        given = dict(name_values(values, by_name))
        for name, value in given.items():
            if name not in by_name:
                why = f"is {self.fixed[name]} in each trial" if name in self.fixed else "is not searched"
                raise ConfigError(
                    f"space.{name}", value, f": {name} {why}", choices(name, by_name), f"leave space.{name} out"
                )
            try:
                if isinstance(value, bool) and by_name[name].kind != "choice":
                    raise ValueError
                by_name[name].encode(value)
            except (ValueError, TypeError):
                raise ConfigError(
                    f"space.{name}",
                    value,
                    "lies outside of the space",
                    str(by_name[name]),
                    f"space.{name}={by_name[name].ends()[0]}",
                ) from None
        # In the reversed order children come before their parents, so parents that a condition adds are checked, too.
        for dimension in reversed(self.dimensions):
            for parent, allowed in dimension.when.items() if dimension.name in given else ():
                if parent not in given and len(allowed) > 1:
                    raise ConfigError(
                        f"space.{dimension.name}",
                        given[dimension.name],
                        f": it has a condition, {dimension.condition}",
                        f"{parent} together with it, because a drawn {parent} may not meet the condition",
                        f"space.{parent}={allowed[0]}",
                    )
                given.setdefault(parent, allowed[0])
        for name in given.keys() - self.active_values(given).keys():
            raise ConfigError(
                f"space.{name}",
                given[name],
                f": it has a condition, {by_name[name].condition}",
                "values that go together",
                f"leave space.{name} out",
            )
        return given

    def is_fully_specified(self, raw: Mapping[str, Any]) -> bool:
        """Return whether the given values by label determine every parameter, so that the sampler draws nothing."""
        try:
            self.draw(lambda label, _: raw[label])
        except KeyError:
            return False
        return True

    def corners(self) -> list[dict[str, Any]]:
        """Return the extreme points of the space; before the first trial, each must give a valid configuration.

        The first are all parameters low and all high, and each of the two with one parameter at its other end. These
        2n + 2 points combine every end of one parameter with the opposite end of every other, as in a minibatch larger
        than its batch. The other values of a choice follow, each once. A parameter with a condition is moved at a point
        where its condition is met.
        """
        ends = {dimension.name: dimension.ends() for dimension in self.dimensions}
        points: list[dict[str, Any]] = []
        for side in (0, 1):
            base = {name: pair[side] for name, pair in ends.items()}
            points += [base, *(self._move(base, d, ends[d.name][1 - side]) for d in self.dimensions)]
            # A conditional parameter may be inactive at this base point. So a point is added that meets its condition
            # and has the same end of its range.
            points += [self._move(base, d, ends[d.name][side]) for d in self.dimensions if d.when]
        low = points[0]
        for dimension in self.dimensions:
            middle = dimension.args[1:-1] if dimension.kind == "choice" else ()
            # The choices between first and last are no ends, but each may be invalid in its own way.
            points += [self._move(low, dimension, value) for value in middle]
        whole = [{**self.active_values(point), **self.fixed} for point in points]
        return [point for index, point in enumerate(whole) if point not in whole[:index]]

    def count_points(self) -> int:
        """Count the configurations of a search space without continuous parameters."""
        parents = {parent for dimension in self.dimensions for parent in dimension.when}
        # The possible combinations of the parents' values, with the number of configurations that share each.
        combinations: list[tuple[dict[str, Any], int]] = [({}, 1)]
        for dimension in self.dimensions:
            extended: list[tuple[dict[str, Any], int]] = []
            for values, count in combinations:
                if not is_met(dimension.when, values):
                    extended.append((values, count))
                elif dimension.name in parents:
                    extended += [({**values, dimension.name: value}, count) for value in dimension.list_values()]
                else:
                    extended.append((values, count * dimension.count_values()))
            combinations = extended
        return sum(count for _, count in combinations)

    def _move(self, point: Mapping[str, Any], dimension: Dimension, value: Any) -> dict[str, Any]:
        """Return ``point`` with one parameter changed, and with its parents changed so that its condition is met."""
        moved = {**point, dimension.name: value}
        waiting = [dimension]
        by_name = {other.name: other for other in self.dimensions}
        while waiting:
            for parent, allowed in waiting.pop().when.items():
                if moved[parent] not in allowed:
                    moved[parent] = allowed[0]
                waiting.append(by_name[parent])
        return moved


def name_values(values: Mapping[str, Any], searched: Collection[str], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield values by dotted name; nested mappings are flattened, unless a mapping itself is a searched value."""
    for key, value in values.items():
        name = f"{above}.{key}" if above else str(key)
        if isinstance(value, Mapping) and name not in searched:
            yield from name_values(value, searched, name)
        else:
            yield name, value


def parse_space(raw: Mapping[str, Any], algo: Mapping[str, Any] | None = None) -> Space:
    """Parse the settings group ``space``.

    Args:
        raw: Name to ``[kind, args...]`` (searched), ``[when, {name: value}, form]`` (searched where the others have
            these values) or a plain value (fixed).
        algo: The algorithm file's values by name, which may be parents too.

    Raises:
        ConfigError: A kind is unknown or its arguments make no range. A condition names an unknown parent, wants a
            value that its parent never has, or waits for itself.
    """
    dimensions: dict[str, Dimension] = {}
    fixed: dict[str, Any] = {}
    when: dict[str, Mapping[str, Any]] = {}
    for key, written in raw.items():
        name = str(key)
        when[name], form = split_condition(name, written)
        if _is_range(form) and not _are_words_of_a_list(form, (algo or {}).get(name)):
            dimensions[name] = parse_dimension(name, str(form[0]), tuple(form[1:]))
        elif when[name]:  # A fixed value under a condition counts as a choice of one value.
            dimensions[name] = Dimension(name, "choice", (form,))
        else:
            fixed[name] = form
    return _resolve_conditions(dimensions, fixed, when, {**(algo or {}), **fixed})


def _is_range(form: Any) -> bool:
    return isinstance(form, Sequence) and not isinstance(form, str) and bool(form) and isinstance(form[0], str)


def _are_words_of_a_list(form: Sequence[Any], in_file: Any) -> bool:
    """Return whether a form fixes an argument that is a list, such as ``space.normalise=[rewards]``."""
    is_list = isinstance(in_file, Sequence) and not isinstance(in_file, str)
    return is_list and form[0] not in KINDS and all(isinstance(word, str) for word in form)


def _resolve_conditions(
    dimensions: Mapping[str, Dimension],
    fixed: Mapping[str, Any],
    when: Mapping[str, Mapping[str, Any]],
    constant: Mapping[str, Any],
) -> Space:
    """Check the conditions of all parameters; those on fixed parameters are evaluated and removed."""
    ordered: list[Dimension] = []
    idle: dict[str, str] = {}
    for name in order_parameters({name: when[name] for name in dimensions}):
        wanted: dict[str, tuple[Any, ...]] = {}
        for parent, value in when[name].items():
            if parent in dimensions:
                wanted[parent] = _resolve_wanted(dimensions[name], dimensions[parent], value)
                if parent in idle:
                    idle[name] = f"{parent} is not searched either"
            elif parent not in constant:
                raise unknown_parent_error(name, parent, [*dimensions, *constant])
            elif not is_allowed(constant[parent], value):
                idle[name] = f"{parent} is {constant[parent]}"
        if name not in idle:
            ordered.append(replace(dimensions[name], when=wanted))
    return Space(tuple(ordered), fixed, idle)


def _resolve_wanted(dimension: Dimension, parent: Dimension, value: Any) -> tuple[Any, ...]:
    """Return the values of ``parent`` that a condition allows; the condition may give one value or a list.

    Raises:
        ConfigError: The parent never has one of them.
    """
    if parent.kind == "choice" and value in parent.args:
        return (value,)  # A list that is one of the parent's choices counts as a single value.
    wanted = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    for wanted_value in wanted:
        try:
            if parent.kind in CONTINUOUS:
                raise ValueError
            parent.encode(wanted_value)
        except (ValueError, TypeError):
            raise unreachable_value_error(dimension.name, parent.name, wanted_value, str(parent)) from None
    return wanted
