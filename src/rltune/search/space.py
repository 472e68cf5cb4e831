"""Parse a search space, ``name: [kind, args...]`` in YAML, and convert between parameters and Optuna's drawn values.

A kind may search on another scale than that of the value. Then Optuna's study has the searched quantity under another
label (``log2(minibatch_size)``, ``1-gamma``), and `Space.decode` returns the value.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError, choices, spell
from rltune.search.conditions import (
    Comparison,
    is_allowed,
    is_among,
    is_met,
    order_parameters,
    read_allowed,
    split_condition,
    unknown_parent_error,
    unreachable_value_error,
)
from rltune.search.dimensions import CONTINUOUS, KINDS, NO_VALUES, OR, Dimension, is_on_range, parse_range

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

    def list_for_grid(self) -> Space:
        """Return this space with ranges that a grid can list although they depend on other parameters' values."""
        return replace(self, dimensions=tuple(replace(dimension, is_listed=True) for dimension in self.dimensions))

    def distributions(self, values: Mapping[str, Any] = NO_VALUES) -> dict[str, BaseDistribution]:
        """Return Optuna's distributions of the parameters by their labels, such as ``log2(minibatch_size)``.

        Args:
            values: A trial's values by name, on which only the ranges of a grid depend; those of parameters that the
                trial lacks are left out there.
        """
        values = {**self.fixed, **values}
        drawn = [each for each in self.dimensions if not each.is_listed or each.name in values]
        return {dimension.label: dimension.distribution(values) for dimension in drawn}

    def draw(self, suggest: Suggest) -> dict[str, Any]:
        """Draw a trial's parameters in Optuna's representation, skipping those whose condition is not met.

        Args:
            suggest: Returns the quantity for a label and its distribution.

        Returns:
            Quantities by label.
        """
        raw: dict[str, Any] = {}
        values = dict(self.fixed)
        for dimension in self.dimensions:
            if is_met(dimension.when, values):
                raw[dimension.label] = suggest(dimension.label, dimension.distribution(values))
                values[dimension.name] = dimension.decode(raw[dimension.label], values)
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
        values: dict[str, Any] = {}
        for dimension in self.dimensions:
            if not dimension.when or dimension.label in raw:
                values[dimension.name] = dimension.decode(raw[dimension.label], {**self.fixed, **values})
        return values | dict(self.fixed)

    def encode(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Convert parameter values to Optuna's representation by label; values outside the space are left out.

        A value whose range depends on a parameter that will be drawn is left out, too.
        """
        raw: dict[str, Any] = {}
        placed, drawn_later = dict(self.fixed), set[str]()
        for dimension in self.dimensions:
            if dimension.name in values and drawn_later.isdisjoint(dimension.bounds):
                try:
                    raw[dimension.label] = dimension.encode(values[dimension.name], placed)
                    placed[dimension.name] = values[dimension.name]
                    continue
                except (ValueError, TypeError):
                    pass
            if all(name in drawn_later or is_met({name: allowed}, placed) for name, allowed in dimension.when.items()):
                drawn_later.add(dimension.name)
        return raw

    def place(
        self, params: Mapping[str, Any], drawn: Mapping[str, Any]
    ) -> dict[str, tuple[Any, BaseDistribution]] | None:
        """Return what a sampler sees as drawn in a trial, with distributions; None if its values are not in the space.

        Args:
            params: The trial's values by name.
            drawn: What was drawn for it, perhaps from other ranges.
        """
        values = self.active_values(params)
        encoded = self.encode(values)
        if not self.is_fully_specified(encoded):
            return None
        distributions = self.distributions(values)
        # Only what was drawn tells a sampler the place in a range; a value may stand for several.
        is_current = (
            drawn.keys() == encoded.keys()
            and all(
                is_on_range(drawn[label], distribution)
                for label, distribution in distributions.items()
                if label in drawn
            )
            and self.decode(drawn).items() >= values.items()
        )
        return {label: (drawn[label] if is_current else raw, distributions[label]) for label, raw in encoded.items()}

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
        values = {**self.fixed, **given}
        for dimension in self.dimensions:
            name = dimension.name
            if name not in given:
                continue
            searched = [parent for parent in dimension.bounds if parent in by_name and parent not in values]
            if lacking := [parent for parent in searched if self._may_draw(by_name[parent], values)]:
                raise ConfigError(
                    f"space.{name}",
                    given[name],
                    f": its range depends on {lacking[0]}",
                    f"{lacking[0]} together with it",
                    f"space.{lacking[0]}={self.list_marks(lacking[0])[0]}",
                )
            try:
                dimension.encode(given[name], values)
            except (ValueError, TypeError):
                raise ConfigError(
                    f"space.{name}",
                    given[name],
                    "lies outside of the space",
                    str(self._find_range(dimension, values)),
                    f"space.{name}={spell(self._find_range(dimension, values).ends()[0])}",
                ) from None
        # In the reversed order children come before their parents, so parents that a condition adds are checked, too.
        for dimension in reversed(self.dimensions):
            for parent, allowed in dimension.when.items() if dimension.name in given else ():
                if parent in given:
                    continue
                if len(allowed) > 1 or isinstance(allowed[0], Comparison):
                    fitting = next((mark for mark in self.list_marks(parent) if is_among(mark, allowed)), allowed[0])
                    raise ConfigError(
                        f"space.{dimension.name}",
                        given[dimension.name],
                        f": it has a condition, {dimension.condition}",
                        f"{parent} together with it, because a drawn {parent} may not meet the condition",
                        f"space.{parent}={spell(fitting)}",
                    )
                given[parent] = allowed[0]
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
        than its batch. The other values of a choice follow, and the ends of ranges with values beside them, each once.
        A parameter with a condition is moved at a point where its condition is met, and one whose range depends on
        others within the range that it has there.
        """
        return [dict(point) for point in self._corners]

    @functools.cached_property
    def _corners(self) -> list[dict[str, Any]]:
        """The `corners`, which a check of a sweep reads some twenty times."""
        points: list[dict[str, Any] | None] = []
        for side in (0, -1):
            points += [self._find_point(side)]
            points += [self._find_point(side, dimension, -1 - side) for dimension in self.dimensions]
            # A conditional parameter may be inactive at this base point. So a point is added that meets its condition
            # and has the same end of its range.
            points += [self._find_point(side, dimension, side) for dimension in self.dimensions if dimension.when]
        for dimension in self.dimensions:
            # What lies between the first and the last mark is no end, but each may be invalid in its own way.
            points += [self._find_point(0, dimension, mark) for mark in range(1, dimension.num_marks - 1)]
        drawable = [point for point in points if point is not None]
        return [point for index, point in enumerate(drawable) if point not in drawable[:index]]

    def find_point(self, name: str) -> dict[str, Any]:
        """Return a point at which a searched parameter is drawn."""
        dimension = next(dimension for dimension in self.dimensions if dimension.name == name)
        return self._find_point(0, dimension, 0) or self._find_point(-1, dimension, 0) or {}

    def list_marks(self, name: str) -> list[Any]:
        """List the values of a parameter at the corners of the space, each once: its ends among them."""
        values = [point[name] for point in self.corners() if name in point]
        return [value for place, value in enumerate(values) if value not in values[:place]]

    def _find_point(self, side: int, moved: Dimension | None = None, mark: int = 0) -> dict[str, Any] | None:
        """Return the point with all parameters at one end, but one at another mark; None if it cannot have a value.

        The parents of that one have values that meet its condition. If they can only have these in a range that depends
        on other parameters, then these are at their other ends.

        Args:
            side: The place of the end among the marks of each parameter: 0 or -1.
            moved: The parameter that is elsewhere.
            mark: The place of its value among its marks.
        """
        by_name = {dimension.name: dimension for dimension in self.dimensions}
        wanted: dict[str, tuple[Any, ...]] = {}
        waiting = [moved] if moved else []
        while waiting:
            for parent, allowed in waiting.pop().when.items():
                wanted[parent] = allowed
                waiting.append(by_name[parent])
        bounds = {bound for name in wanted for bound in by_name[name].bounds}
        for turned in (set[str](), bounds):
            values = dict(self.fixed)
            for dimension in self.dimensions:
                if not is_met(dimension.when, values):
                    continue
                marks = dimension.given(values).list_marks()
                value = marks[-1 - side if dimension.name in turned else side]
                if moved and dimension.name == moved.name:
                    value = marks[mark]
                elif not is_among(value, wanted.get(dimension.name, (value,))):
                    exact = [each for each in wanted[dimension.name] if not isinstance(each, Comparison)]
                    fitting = (each for each in (*exact, *marks) if self._is_possible(dimension, each, values, wanted))
                    value = next(fitting, value)
                values[dimension.name] = value
            if not moved or moved.name in values:
                point = {name: values[name] for name in by_name if name in values}
                return {**point, **self.fixed}
        return None

    def _is_possible(
        self, dimension: Dimension, value: Any, values: Mapping[str, Any], wanted: Mapping[str, tuple[Any, ...]]
    ) -> bool:
        """Return whether a parameter can have a value that conditions want, where others have values."""
        try:
            dimension.encode(value, values)
        except (ValueError, TypeError):
            return False
        return is_among(value, wanted[dimension.name])

    def _may_draw(self, dimension: Dimension, values: Mapping[str, Any]) -> bool:
        """Return whether a parameter may be drawn in a trial that has the given values, and perhaps others."""
        by_name = {each.name: each for each in self.dimensions}
        return all(
            is_among(values[parent], allowed) if parent in values else self._may_draw(by_name[parent], values)
            for parent, allowed in dimension.when.items()
        )

    def _find_range(self, dimension: Dimension, values: Mapping[str, Any]) -> Dimension:
        """Return a parameter's range in a trial; the range as it is written if it is empty there."""
        try:
            return dimension.given(values)
        except ValueError:
            return dimension

    def count_points(self, enough: float = math.inf) -> int | None:
        """Count the configurations of a search space; None if a parameter is continuous.

        Args:
            enough: Counting ends once there are so many, and the number that is returned is a lower bound.
        """
        if any(dimension.kind in CONTINUOUS for dimension in self.dimensions):
            return None
        parents = {name for dimension in self.dimensions for name in (*dimension.when, *dimension.bounds)}
        # The possible combinations of the parents' values, with the number of configurations that share each.
        combinations: list[tuple[dict[str, Any], int]] = [({}, 1)]
        for dimension in self.dimensions:
            extended: list[tuple[dict[str, Any], int]] = []
            for values, count in combinations:
                if not is_met(dimension.when, values):
                    extended.append((values, count))
                    continue
                plain = dimension.given({**self.fixed, **values})
                size = plain.count_values()
                if dimension.name not in parents:
                    extended.append((values, count * size))
                elif len(extended) + size >= enough:
                    return len(extended) + size
                else:
                    extended += [({**values, dimension.name: value}, count) for value in plain.list_values()]
            combinations = extended
        return sum(count for _, count in combinations)


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
    forms: dict[str, Any] = {}
    for key, written in raw.items():
        when[str(key)], forms[str(key)] = split_condition(str(key), written)
    for name, form in forms.items():
        if _is_range(form) and not _are_words_of_a_list(form, (algo or {}).get(name)):
            dimensions[name] = parse_range(name, form, {*forms, *(algo or {})})
        elif when[name]:  # A fixed value under a condition counts as a choice of one value.
            dimensions[name] = Dimension(name, "choice", (form,))
        else:
            fixed[name] = form
    return _resolve_parents(dimensions, fixed, when, {**(algo or {}), **fixed})


def _is_range(form: Any) -> bool:
    return isinstance(form, Sequence) and not isinstance(form, str) and bool(form) and isinstance(form[0], str)


def _are_words_of_a_list(form: Sequence[Any], in_file: Any) -> bool:
    """Return whether a form fixes an argument that is a list, such as ``space.normalise=[rewards]``."""
    is_list = isinstance(in_file, Sequence) and not isinstance(in_file, str)
    return is_list and form[0] not in (*KINDS, OR) and all(isinstance(word, str) for word in form)


def _resolve_parents(
    dimensions: Mapping[str, Dimension],
    fixed: Mapping[str, Any],
    when: Mapping[str, Mapping[str, Any]],
    constant: Mapping[str, Any],
) -> Space:
    """Check the conditions and bounds of all parameters; those on fixed parameters are evaluated and removed."""
    ordered: list[Dimension] = []
    idle: dict[str, str] = {}
    for name in order_parameters({name: (*when[name], *each.bounds) for name, each in dimensions.items()}):
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
            searched = {each.name: each for each in ordered}
            ordered.append(replace(_resolve_bounds(dimensions[name], searched, constant), when=wanted))
    return _check_ranges(Space(tuple(ordered), fixed, idle))


def _resolve_bounds(dimension: Dimension, searched: Mapping[str, Dimension], constant: Mapping[str, Any]) -> Dimension:
    """Put numbers in the place of the names of parameters that are not searched.

    Raises:
        ConfigError: A parameter at an end of the range has no number, or the range is then empty.
    """
    named = {name: constant.get(name) for name in dimension.bounds if name not in searched}
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in named.values()):
        raise _make_empty_error(dimension, constant, "its end is no number")
    resolved = replace(
        dimension, args=tuple(named.get(arg, arg) if isinstance(arg, str) else arg for arg in dimension.args)
    )
    # A parent with a condition has the value of the algorithm's file in trials in which it is not drawn.
    elsewhere = {name: constant.get(name) for name in resolved.bounds if searched[name].when}
    if not resolved.bounds and dimension.bounds:
        try:
            return dimension.given(constant)
        except ValueError as error:
            raise _make_empty_error(dimension, constant, str(error)) from None
    is_coarse = any(not searched[name].is_whole for name in resolved.bounds)
    if len(resolved.bounds) > 1 and (resolved.kind == "pow2" or (KINDS[resolved.kind].integer and is_coarse)):
        raise ConfigError(
            f"space.{dimension.name}",
            dimension.form,
            ": between two other parameters there may be no such value",
            "a number at one of the ends",
            f"space.{dimension.name}={spell([resolved.kind, 1, resolved.bounds[1]])}",
        )
    return replace(resolved, elsewhere=elsewhere)


def _check_ranges(space: Space) -> Space:
    """Refuse a space with a point at which a range that depends on other parameters is empty, and idle conditions."""
    for dimension in space.dimensions:
        for point in _list_bounding_points(space, dimension):
            if is_met(dimension.when, point):
                try:
                    dimension.given(point)
                except ValueError as error:
                    raise _make_empty_error(dimension, {**dimension.elsewhere, **point}, str(error)) from None
    return space


def _list_bounding_points(space: Space, dimension: Dimension) -> Iterator[dict[str, Any]]:
    """Yield the extreme points of what a parameter's range depends on; none of a range between numbers.

    Unlike those of `Space.corners`, they combine each mark of a parameter, such as a choice in the middle, with those
    of all others on which the ends depend.
    """
    ends, related, before = set(dimension.bounds), {*dimension.bounds, *dimension.when}, list[Dimension]()
    for each in reversed(space.dimensions[: space.dimensions.index(dimension)]):
        ends |= set(each.bounds) if each.name in ends else set()
        if each.name in related:
            related |= {*each.bounds, *each.when}
            before.insert(0, each)
    roots = [each for each in before if each.name in ends and not each.bounds]
    for marks in itertools.product(*(each.list_marks() for each in roots)) if ends else ():
        given = {each.name: mark for each, mark in zip(roots, marks, strict=True)}
        placed = [
            replace(each, kind="choice", args=(given[each.name],), before=(), after=()) if each.name in given else each
            for each in before
        ]
        yield from replace(space, dimensions=tuple(placed)).corners()


def _make_empty_error(dimension: Dimension, values: Mapping[str, Any], problem: str) -> ConfigError:
    """Make the error for a range that is empty where other parameters have their values."""
    low, high = dimension.args[:2]
    ends: list[Any] = [values.get(arg) if isinstance(arg, str) else arg for arg in (low, high)]
    shown = ", ".join(f"{name}={spell(values.get(name))}" for name in dimension.bounds)
    fix = f"~space.{dimension.name}"
    is_named = isinstance(low, str) and isinstance(high, str)
    if not is_named and all(isinstance(end, int | float) and not isinstance(end, bool) and end > 0 for end in ends):
        least = min(ends)
        least = 2 ** int(math.log2(least)) if dimension.kind == "pow2" and least >= 1 else least
        args = [least if isinstance(low, int | float) else low, high if isinstance(high, str) else max(ends)]
        fix = f"space.{dimension.name}={spell([dimension.kind, *args, *dimension.args[2:]])}"
    return ConfigError(
        f"space.{dimension.name}",
        dimension.form,
        f": {problem} with {shown}",
        "ends between which there are values in every trial",
        fix,
    )


def _resolve_wanted(dimension: Dimension, parent: Dimension, value: Any) -> tuple[Any, ...]:
    """Return the values of ``parent`` that a condition allows; the condition may give one value or a list.

    Raises:
        ConfigError: The parent never has one of them.
    """
    if parent.kind == "choice" and value in parent.args:
        return (value,)  # A list that is one of the parent's choices counts as a single value.
    wanted = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,)
    allowed = tuple(each if parent.kind == "choice" and each in parent.args else read_allowed(each) for each in wanted)
    for each in allowed if not parent.bounds else ():
        if not _can_meet(parent, each):
            raise unreachable_value_error(dimension.name, parent.name, each, str(parent))
    return allowed


def _can_meet(parent: Dimension, allowed: Any) -> bool:
    """Return whether some value of a parameter is one that a condition allows.

    A continuous range never has exactly a value, only the values beside it are drawn often.
    """
    if isinstance(allowed, Comparison) or parent.kind in CONTINUOUS:
        is_continuous = parent.kind in CONTINUOUS and not isinstance(allowed, Comparison)
        marks = (*parent.before, *parent.after) if is_continuous else parent.list_marks()
        return any(is_among(mark, (allowed,)) for mark in marks)
    try:
        parent.encode(allowed)
    except (ValueError, TypeError):
        return False
    return True
