"""Convert the ranges of a search space to Optuna's distributions, and drawn values to a trial's parameters.

A kind may search on another scale than that of the value; `Dimension.encode` and `Dimension.decode` convert. An end of
a range may be the name of another parameter: `Dimension.given` returns the range of a trial in which that one has a
value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from rltune.errors import ConfigError, choices, nearest, spell
from rltune.other_tools import Answer, find_answer
from rltune.search.conditions import WHEN, format_condition, format_yaml_value

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

SCALARS = (str, int, float, bool, type(None))  # Optuna can store values of these types in a categorical distribution.
# A condition must not name a parameter of these kinds, because a continuous draw never equals an exact value.
CONTINUOUS = ("uniform", "loguniform", "one_minus_loguniform")


OR = "or"  # [or, value, range] or [or, range, value] adds a value at an end of a range.
FOREIGN: Mapping[str, tuple[str, ...]] = {
    "low": ("min", "low", "lower", "minimum", "min_value"),
    "high": ("max", "high", "upper", "maximum", "max_value"),
    "ends": ("bounds", "range"),
    "values": ("values", "value", "choices", "categories", "grid_search", "sequence"),
    "step": ("q", "step", "step_size"),
    "log": ("log", "log_scale"),
    "word": ("distribution", "type", "value_type", "name", "scale"),
}
"""The keys of mappings with which Weights & Biases, Optuna, Ray, Ax and others write ranges, by what they mean."""
NO_VALUES: Mapping[str, Any] = MappingProxyType({})
SHARE = 1 / 5  # The width of a value beside a continuous range, as a fraction of the range's.
PLACE_DIGITS = 12  # A value at a place in a range has so many digits, so that it does not depend on rounding errors.


@dataclass(frozen=True)
class Kind:
    """The name and arguments with which a kind of range, such as ``loguniform``, is written.

    Attributes:
        usage: The form in which it is written, for error messages.
        num_args: The numbers of arguments that it takes; empty for any number of at least one.
        integer: Whether its arguments must be integers.
        positive: Whether its arguments must be above zero.
        example: Arguments for errors to suggest.
    """

    usage: str
    num_args: tuple[int, ...] = (2,)
    integer: bool = False
    positive: bool = False
    example: tuple[Any, ...] = (0.1, 1)


KINDS: Mapping[str, Kind] = {
    "uniform": Kind("[uniform, low, high]"),
    "loguniform": Kind("[loguniform, low, high], both above 0", positive=True, example=(0.0001, 0.01)),
    "quniform": Kind("[quniform, low, high, step]", num_args=(3,), example=(0.1, 1, 0.1)),
    "randint": Kind(
        "[randint, low, high] or [randint, low, high, step], integers, both ends included",
        num_args=(2, 3),
        integer=True,
        example=(1, 10),
    ),
    "lograndint": Kind(
        "[lograndint, low, high], integers above 0, both ends included", integer=True, positive=True, example=(1, 100)
    ),
    "choice": Kind("[choice, first, second, ...]", num_args=(), example=(1, 2)),
    "one_minus_loguniform": Kind(
        "[one_minus_loguniform, low, high]: 1 - x with x log-uniform", positive=True, example=(0.001, 0.1)
    ),
    "pow2": Kind(
        "[pow2, low, high]: powers of two, both ends included", integer=True, positive=True, example=(64, 256)
    ),
}


class _Axis(NamedTuple):
    """The quantity that is searched for a numeric range, and beside it the room for values that lie outside.

    Attributes:
        low: The lower end of the range.
        high: The upper end.
        step: The distance of possible quantities; 0 if it is continuous.
        log: Whether its logarithm is drawn evenly.
        below: The number of values below the range.
        above: The number of values above the range.
    """

    low: float
    high: float
    step: float
    log: bool
    below: int
    above: int

    @property
    def ends(self) -> tuple[float, float]:
        """The ends of the range on the scale on which it is drawn evenly; a step has its half on each side."""
        return self.scale(self.low - self.step / 2), self.scale(self.high + self.step / 2)

    @property
    def room(self) -> float:
        """The width of a value beside the range, on the same scale."""
        low, high = self.ends
        return self.step if self.step and not self.log else (high - low) * SHARE or 1.0

    @property
    def whole(self) -> tuple[float, float]:
        """The ends of the range with the values beside it, on the same scale."""
        low, high = self.ends
        return low - self.below * self.room, high + self.above * self.room

    def scale(self, quantity: float) -> float:
        """Return the point of a quantity on the scale on which it is drawn evenly."""
        return math.log(quantity) if self.log else quantity

    def at(self, point: float) -> float:
        """Return the quantity at a point of the scale."""
        return math.exp(point) if self.log else point

    def find_slot(self, quantity: float) -> int:
        """Return 0 for a quantity in the range, else the number of its value: -1 is the first one below."""
        (low, high), point = self.ends, self.scale(quantity)
        if self.below and point < low:
            return -min(self.below, 1 + int((low - point) / self.room))
        return min(self.above, 1 + int((point - high) / self.room)) if self.above and point > high else 0

    def at_slot(self, slot: int) -> float:
        """Return the quantity in the middle of a value beside the range, see `find_slot`."""
        if self.step and not self.log:
            return round((self.low if slot < 0 else self.high) + slot * self.step, PLACE_DIGITS)
        low, high = self.ends
        return self.at(low + (slot + 0.5) * self.room if slot < 0 else high + (slot - 0.5) * self.room)

    def to_place(self, quantity: float) -> float:
        """Convert a quantity to its place between 0 and 1 in the range and the values beside it."""
        low, high = self.whole
        return (self.scale(quantity) - low) / (high - low) if high > low else 0.5

    def from_place(self, place: float) -> float:
        """Convert a place between 0 and 1 to a quantity."""
        low, high = self.whole
        point = low + min(max(place, 0.0), 1.0) * (high - low)
        # An end may be a value of another parameter with all its digits, which rounding would change.
        for end, quantity in zip(self.ends, (self.low, self.high), strict=True):
            if abs(point - end) <= 10**-PLACE_DIGITS * (high - low):
                return quantity
        quantity = self.at(point)
        if self.find_slot(quantity):
            return quantity
        if self.step:
            quantity = self.low + self.step * round((quantity - self.low) / self.step)
        elif self.log:
            quantity = float(f"{quantity:.{PLACE_DIGITS}g}")
        else:
            quantity = round(quantity, PLACE_DIGITS - math.ceil(math.log10(max(abs(self.low), abs(self.high)))))
        return min(max(quantity, self.low), self.high)


@dataclass(frozen=True)
class Dimension:
    """A searched parameter with its range and its condition.

    Attributes:
        name: The argument that it sets.
        kind: One of KINDS.
        args: The arguments of the kind. The first two may be names of other searched parameters, whose values are then
            the ends of the range, except for a choice.
        when: The parents: other searched parameters, and for each the values at which this one is drawn. Empty for a
            parameter that is always drawn.
        before: Values that belong below the range.
        after: Values that belong above it.
        elsewhere: The values of the parameters in ``args`` in trials in which they are not drawn.
        is_listed: Whether the number of the value in its list is drawn where the range itself cannot be listed for
            all trials at once, as a grid needs it.
    """

    name: str
    kind: str
    args: tuple[Any, ...]
    when: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    before: tuple[Any, ...] = ()
    after: tuple[Any, ...] = ()
    elsewhere: Mapping[str, Any] = field(default_factory=dict)
    is_listed: bool = False

    @property
    def bounds(self) -> tuple[str, ...]:
        """The other parameters whose values are ends of the range."""
        return () if self.kind == "choice" else tuple(arg for arg in self.args if isinstance(arg, str))

    @property
    def label(self) -> str:
        """The parameter's name in Optuna's study, such as ``log2(minibatch_size)`` if its exponent is drawn.

        If an end of the range is another parameter, then the place in the range is drawn: ``size/batch_size``.
        """
        label = {"one_minus_loguniform": f"1-{self.name}", "pow2": f"log2({self.name})"}.get(self.kind, self.name)
        label = "/".join((self.name, *self.bounds)) if self.bounds else label
        return f" {OR} ".join([*map(format_yaml_value, self.before), label, *map(format_yaml_value, self.after)])

    @property
    def form(self) -> list[Any]:
        """The range as it is written, without its condition."""
        form = [self.kind, *self.args]
        return [OR, *self.before, form, *self.after] if self.before or self.after else form

    @property
    def is_whole(self) -> bool:
        """Whether each number that is drawn is an integer."""
        values = (*self.before, *self.after, *(self.args if self.kind == "choice" else ()))
        if any(map(holds_float, values)):
            return False
        return self.kind == "choice" or KINDS[self.kind].integer or self._has_whole_steps()

    def _has_whole_steps(self) -> bool:
        return self.kind == "quniform" and all(
            isinstance(arg, int | float) and arg == int(arg) for arg in (self.args[0], self.args[2])
        )

    def to_whole(self) -> list[Any]:
        """Return the form of a range or choice of whole numbers that is closest to this one, for advice."""
        if self.kind == "choice":
            values = [round_all(value) for value in self.args]
            return ["choice", *(value for place, value in enumerate(values) if value not in values[:place])]
        low, high, *step = self.args
        low, high = (
            end if isinstance(end, str) else int(turn(end)) for end, turn in ((low, math.ceil), (high, math.floor))
        )
        kind = "lograndint" if self.kind == "loguniform" and (isinstance(low, str) or low > 0) else "randint"
        if not isinstance(low, str) and not isinstance(high, str):
            high = max(low, high)
        form = [kind, low, high, *(max(1, round(each)) for each in step)]
        return [OR, *round_all(self.before), form, *round_all(self.after)] if self.before or self.after else form

    def given(self, values: Mapping[str, Any]) -> Dimension:
        """Return this parameter with the range that it has in a trial: numbers in the place of names.

        Args:
            values: The values of the trial's other parameters by name.

        Raises:
            ValueError: A parameter that bounds the range has no number there, or the range is empty.
        """
        if not self.bounds:
            return self
        named = {name: values.get(name, self.elsewhere.get(name)) for name in self.bounds}
        args = tuple(named[arg] if isinstance(arg, str) else arg for arg in self.args)
        return replace(self, args=_fit_args(self.kind, args))

    def distribution(self, values: Mapping[str, Any] = NO_VALUES) -> BaseDistribution:
        """Return the Optuna distribution from which this parameter is drawn.

        Args:
            values: The values of the trial's other parameters, on which only a listed range depends.
        """
        from optuna import distributions as d

        if self.kind == "choice":
            return d.CategoricalDistribution([pack_value(value) for value in self.args])
        if self._is_drawn_by_number:
            return d.IntDistribution(0, self.given(values).count_values() - 1)
        if self.bounds:
            return d.FloatDistribution(0.0, 1.0)
        axis = self.axis
        is_extended = axis.below or axis.above
        if KINDS[self.kind].integer and not (is_extended and axis.log):
            step = int(axis.step)
            return d.IntDistribution(
                int(axis.low) - step * axis.below, int(axis.high) + step * axis.above, log=axis.log, step=step
            )
        if self.kind == "quniform":
            low = axis.at_slot(-axis.below) if axis.below else axis.low
            high = axis.at_slot(axis.above) if axis.above else axis.high
            return d.FloatDistribution(low, high, step=axis.step)
        ends = [axis.at(end) for end in axis.whole]
        for side, num_beside in enumerate((axis.below, axis.above)):
            if not num_beside and not axis.step:  # Its logarithm would have lost a digit.
                ends[side] = axis[side]
        return d.FloatDistribution(*ends, log=axis.log)

    @property
    def _is_drawn_by_number(self) -> bool:
        return self.is_listed and self.kind not in CONTINUOUS and bool(self.bounds or self.before or self.after)

    @property
    def axis(self) -> _Axis:
        """The quantity that is searched; all arguments are numbers."""
        low, high = self.args[:2]
        if self.kind == "pow2":
            low, high = int(low).bit_length() - 1, int(high).bit_length() - 1
        step = self.args[2] if len(self.args) > 2 else int(KINDS[self.kind].integer)
        is_log = self.kind in ("loguniform", "lograndint", "one_minus_loguniform") and low < high
        below, above = self._beside
        return _Axis(low, high, step, is_log, len(below), len(above))

    @property
    def _beside(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The values below and above the searched quantity, the nearest first."""
        below, above = self.before[::-1], self.after
        return (above, below) if self.kind == "one_minus_loguniform" else (below, above)

    def decode(self, raw: Any, values: Mapping[str, Any] = NO_VALUES) -> Any:
        """Convert a value drawn by Optuna, such as an exponent of 2, to the parameter's value.

        Args:
            raw: The drawn value.
            values: The values of the trial's other parameters, of which some may bound the range.
        """
        if self.kind == "choice":
            return next(value for value in self.args if pack_value(value) == raw)
        dimension = self.given(values)
        if self._is_drawn_by_number:
            return dimension.get_value(int(raw))
        axis = dimension.axis
        quantity = axis.from_place(raw) if self.bounds else raw
        if slot := axis.find_slot(quantity):
            below, above = self._beside
            return below[-slot - 1] if slot < 0 else above[slot - 1]
        return dimension.convert(quantity)

    def convert(self, quantity: Any) -> Any:
        """Convert a searched quantity in the range to the parameter's value."""
        if self.kind == "one_minus_loguniform":
            # `find_quantity` takes what is as close to an end for the end.
            return 1.0 - next((end for end in self.args[:2] if math.isclose(quantity, end, rel_tol=2e-9)), quantity)
        if KINDS[self.kind].integer:
            low, high = self.axis[:2]
            whole = min(max(round(quantity), int(low)), int(high))
            return 2**whole if self.kind == "pow2" else whole
        if self.kind == "quniform":
            # An end may be a value of another parameter with all its digits, which rounding would leave.
            low, high = self.axis[:2]
            return round(quantity) if self._has_whole_steps() else min(max(round(quantity, PLACE_DIGITS), low), high)
        return quantity

    def encode(self, value: Any, values: Mapping[str, Any] = NO_VALUES) -> Any:
        """Convert a parameter's value to the value that Optuna would draw for it.

        Args:
            value: The value.
            values: The values of the trial's other parameters, of which some may bound the range.

        Raises:
            ValueError: The value lies outside this dimension.
        """
        if self.kind == "choice":
            raw = pack_value(value)
            if raw not in map(pack_value, self.args):  # Optuna, which imports slowly, is not needed to say so.
                raise ValueError(f"{self.name}={value} is outside {self}")
            return raw
        dimension = self.given(values)
        quantity = dimension.find_quantity(value)
        if self._is_drawn_by_number:
            return dimension.find_number(quantity)
        return dimension.axis.to_place(quantity) if self.bounds else quantity

    def find_quantity(self, value: Any) -> Any:
        """Return the searched quantity of a value; all arguments are numbers.

        Raises:
            ValueError: The value lies outside of the range and is none of those beside it.
        """
        axis = self.axis
        for sign, beside in zip((-1, 1), self._beside, strict=True):
            for number, other in enumerate(beside):
                if _is_same(other, value):
                    quantity = axis.at_slot(sign * (number + 1))
                    return round(quantity) if KINDS[self.kind].integer and not axis.log else quantity
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise ValueError(f"{self.name}={value} is no number")
        quantity = value
        if self.kind == "one_minus_loguniform":
            # Because of rounding, 1 - 0.95 is not exactly 0.05; a value at an end of the range must still be accepted.
            ends = self.args[:2]
            quantity = next((end for end in ends if math.isclose(1.0 - value, end, rel_tol=1e-9)), 1.0 - value)
        elif self.kind == "pow2":
            quantity = math.log2(value) if value > 0 else math.nan
        if KINDS[self.kind].integer and isinstance(quantity, float) and quantity.is_integer():
            quantity = int(quantity)
        steps = (quantity - axis.low) / (axis.step or math.inf)
        if not (axis.low <= quantity <= axis.high and abs(steps - round(steps)) < 1e-8):
            raise ValueError(f"{self.name}={value} is outside {self}")
        return quantity

    def find_number(self, quantity: float) -> int:
        """Return the number of a searched quantity in the list of all values."""
        axis = self.axis
        slot = axis.find_slot(quantity)
        last = round((axis.high - axis.low) / axis.step)
        number = round((quantity - axis.low) / axis.step)
        return axis.below + (slot if slot < 0 else last + slot if slot else number)

    def get_value(self, number: int) -> Any:
        """Return the value with a number in the list of all values, by which a grid names it."""
        axis, (below, above) = self.axis, self._beside
        number, last = number - axis.below, round((axis.high - axis.low) / axis.step)
        if number < 0:
            return below[-number - 1]
        return above[number - last - 1] if number > last else self.convert(axis.low + number * axis.step)

    @property
    def num_marks(self) -> int:
        """The number of the values that `list_marks` returns, whatever the other parameters' values are."""
        return len(self.args) if self.kind == "choice" else 2 + len(self.before) + len(self.after)

    def list_marks(self) -> list[Any]:
        """List the values at which a trial may differ in kind: all choices; or the ends and the values beside them."""
        if self.kind == "choice":
            return list(self.args)
        low, high = self.args[:2]
        ends = (1.0 - high, 1.0 - low) if self.kind == "one_minus_loguniform" else (low, high)
        return [*self.before, *ends, *self.after]

    def ends(self) -> tuple[Any, Any]:
        """Return the lowest and the highest value, or the first and the last choice."""
        marks = self.list_marks()
        return marks[0], marks[-1]

    def spread(self, count: int) -> list[Any]:
        """Return ``count`` values of a continuous range, evenly spaced on its scale, and the values beside it."""
        plain = replace(self, before=(), after=())
        points = [plain.convert(plain.axis.from_place(place / (count - 1))) for place in range(count)]
        return [*self.before, *sorted({float(f"{point:.4g}") for point in points}), *self.after]

    def count_values(self) -> int:
        """Count the possible values of a parameter that is not continuous."""
        if self.kind == "choice":
            return len(self.list_values())
        axis = self.axis
        return round((axis.high - axis.low) / axis.step) + 1 + axis.below + axis.above

    def list_values(self) -> list[Any]:
        """List the possible values of a parameter that is not continuous."""
        if self.kind == "choice":
            return [value for place, value in enumerate(self.args) if value not in self.args[:place]]
        return [self.get_value(number) for number in range(self.count_values())]

    @property
    def condition(self) -> str:
        """The condition of this parameter for messages, such as ``when a=1``; empty for an unconditional parameter."""
        return format_condition(self.when)

    def __str__(self) -> str:
        return f"{format_yaml_value(self.form)} {self.condition}".rstrip()


def holds_float(value: Any) -> bool:
    """Return whether a value is a float, or a list with one in it."""
    return isinstance(value, float) or (isinstance(value, list | tuple) and any(map(holds_float, value)))


def round_all(value: Any) -> Any:
    """Round a float, and the floats in a list."""
    if isinstance(value, list | tuple):
        return [round_all(part) for part in value]
    return round(value) if isinstance(value, float) else value


def _is_same(value: Any, other: Any) -> bool:
    """Return whether two values are equal, and both or none of them a truth value: 0 is not false."""
    return bool(value == other) and isinstance(value, bool) == isinstance(other, bool)


def _fit_args(kind: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Narrow a range of numbers to the values that its kind has.

    Raises:
        ValueError: An argument is no number, or there is no value between the ends.
    """
    if not all(isinstance(arg, int | float) and not isinstance(arg, bool) and math.isfinite(arg) for arg in args):
        raise ValueError("its end is no number")
    low, high, *step = args
    if KINDS[kind].positive and low <= 0:
        raise ValueError("its end is not above 0")
    if KINDS[kind].integer:
        low, high = math.ceil(low), math.floor(high)
    if low > high:
        raise ValueError("its range is empty")
    if kind == "pow2":
        low, high = 1 << (low - 1).bit_length(), 1 << high.bit_length() - 1
    elif step and KINDS[kind].integer:
        high = low + step[0] * ((high - low) // step[0])
    elif step:
        # Optuna would round the upper end down to a multiple of the step itself, with a warning at every proposal.
        high = max(low, round(low + step[0] * math.floor((high - low) / step[0] + 1e-9), PLACE_DIGITS))
    if low > high:
        raise ValueError("its range is empty")
    return (low, high, *step)


def parse_range(name: str, form: Sequence[Any], names: Collection[str] = ()) -> Dimension:
    """Parse the range of one parameter with the values beside it, ``[or, 0, [loguniform, 1e-5, 1e-2]]``.

    Args:
        name: The argument that is searched.
        form: The range as it is written.
        names: As for `parse_dimension`.

    Raises:
        ConfigError: It is no range.
    """
    kind, *args = form
    if kind != OR:
        return parse_dimension(name, str(kind), tuple(args), names)
    key = f"space.{name}"
    usage = "[or, value, [kind, low, high]] for a value below a range, [or, [kind, low, high], value] for one above it"
    places = [place for place, arg in enumerate(args) if not isinstance(arg, SCALARS)]
    if len(places) != 1 or len(args) < 2 or not isinstance(args[places[0]], Sequence):
        plain = [arg for arg in args if isinstance(arg, SCALARS)]
        usual = f"{key}=" + (spell(["choice", *plain]) if plain and not places else "[or,0,[loguniform,1e-05,0.01]]")
        raise ConfigError(key, list(form), ": one range and at least one value belong to it", usage, usual)
    inner, (before, after) = args[places[0]], (tuple(args[: places[0]]), tuple(args[places[0] + 1 :]))
    if not inner or inner[0] in ("choice", OR, WHEN):
        values = inner[1:] if inner[:1] == ["choice"] else []
        usual = f"{key}={spell(['choice', *before, *values, *after])}"
        raise ConfigError(key, list(form), ": values belong to a range of numbers", usage, usual)
    dimension = parse_dimension(name, str(inner[0]), tuple(inner[1:]), names)
    return replace(dimension, before=before, after=after)


def parse_dimension(name: str, kind: str, args: tuple[Any, ...], names: Collection[str] = ()) -> Dimension:
    """Parse the range of one parameter, and refuse invalid arguments.

    Args:
        name: The argument that is searched.
        kind: One of KINDS.
        args: The arguments of the kind.
        names: The other searched parameters, which may be ends of the range.

    Raises:
        ConfigError: The kind is unknown, or its arguments are invalid.
    """
    key, form = f"space.{name}", [kind, *args]
    if kind not in KINDS:
        raise _unknown_kind_error(name, kind, args)
    rule = KINDS[kind]
    usual = f"{key}={spell([kind, *rule.example])}"
    if len(args) not in rule.num_args if rule.num_args else not args:
        raise ConfigError(key, form, ": wrong number of arguments", rule.usage, usual)
    if kind == "choice":
        return Dimension(name, kind, args)
    if unknown := [arg for arg in args[:2] if isinstance(arg, str) and arg not in names]:
        others = {*names} - {name}
        # A shortened name, such as train_batch, is no close match by its letters.
        begun = [other for other in sorted(others) if other.startswith(unknown[0])]
        close = begun[0] if len(begun) == 1 else nearest(unknown[0], others)
        raise ConfigError(
            key,
            form,
            f": '{unknown[0]}' is neither a number nor a parameter with one",
            choices(unknown[0], others, close) if others else rule.usage,
            f"{key}={spell([kind, *(close if arg == unknown[0] else arg for arg in args)])}" if close else usual,
        )
    numbers = [arg for number, arg in enumerate(args) if number >= 2 or not isinstance(arg, str)]
    if not all(isinstance(arg, int | float) and not isinstance(arg, bool) and math.isfinite(arg) for arg in numbers):
        raise ConfigError(key, form, ": arguments must be numbers", rule.usage, usual)
    if rule.integer and any(float(arg) != int(arg) for arg in numbers):
        rounded = [max(1, round(arg)) if rule.positive else round(arg) for arg in numbers]
        is_fit = kind != "pow2" and len(numbers) == len(args) and rounded[0] < rounded[1] and 0 not in rounded[2:]
        fix = f"{key}={spell([kind, *rounded])}" if is_fit else usual
        raise ConfigError(key, form, ": arguments must be integers", rule.usage, fix)
    if rule.integer:
        args = tuple(arg if isinstance(arg, str) else int(arg) for arg in args)
    if rule.positive and min(numbers, default=1) <= 0:
        low, high = 1 if rule.integer else max(numbers) / 1000, max(numbers)
        fix = f"{key}={spell([kind, low, high])}" if high > low > 0 and kind != "pow2" else usual
        if min(numbers) == 0 and high > low > 0 and kind != "pow2":
            fix += f", or with zero {key}={spell([OR, 0, [kind, low, high]])}"
        raise ConfigError(key, form, ": arguments must be above 0", rule.usage, fix)
    if len(args) > 2 and args[2] <= 0:
        fix = f"{key}={spell([kind, *args[:2], abs(args[2]) or (1 if rule.integer else 0.1)])}"
        raise ConfigError(key, form, ": the range is empty", "step > 0", fix)
    if kind == "pow2" and any(arg & (arg - 1) for arg in args if not isinstance(arg, str)):
        raise ConfigError(key, form, ": not powers of two", rule.usage, usual)
    if any(isinstance(arg, str) for arg in args):
        return Dimension(name, kind, args)
    if args[0] > args[1]:
        turned = spell([kind, args[1], args[0], *args[2:]])
        raise ConfigError(key, form, ": its ends are in the wrong order", "low <= high", f"{key}={turned}")
    return Dimension(name, kind, _fit_args(kind, args))


def _unknown_kind_error(name: str, kind: str, args: tuple[Any, ...]) -> ConfigError:
    """Make the error for a kind that does not exist, with the range that was probably meant."""
    answer = find_answer("kind", kind) or Answer()
    close = answer.names[0] if answer.names else nearest(kind, KINDS) or "loguniform"
    fix = answer.fix.format(name=name, value=spell(list(args))[1:-1])
    if not fix:
        try:
            fitting = parse_dimension(name, close, args[: max(KINDS[close].num_args, default=len(args))]).args
        except ConfigError:
            fitting = KINDS[close].example
        fix = f"space.{name}={spell([close, *fitting])}"
    allowed = answer.note or choices(kind, [*KINDS, OR, WHEN], close)
    return ConfigError(f"space.{name}", [kind, *args], f": unknown kind '{kind}'", allowed, fix)


def translate_mapping(mapping: Mapping[str, Any]) -> Any:
    """Translate a range in the form of another tool, ``{min: 0.1, max: 0.4}``, to a range of ours, for advice.

    Returns:
        The range, or the one value that it has; None if it is no range of another tool.
    """
    words = {str(word).lower(): value for word, value in mapping.items()}
    if not words or not words.keys() <= {word for row in FOREIGN.values() for word in row}:
        return None
    if any(isinstance(value, list | tuple) and value and value[0] in (*KINDS, OR, WHEN) for value in words.values()):
        return None  # A parameter of this name has a range.
    meant = {role: next((words[word] for word in row if word in words), None) for role, row in FOREIGN.items()}
    values, step = meant["values"], meant["step"]
    if values is not None:
        return ["choice", *values] if isinstance(values, list | tuple) else values
    low, high = meant["ends"] if isinstance(meant["ends"], list | tuple) and len(meant["ends"]) == 2 else (None, None)
    ends: list[Any] = [meant["low"] if low is None else low, meant["high"] if high is None else high]
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in ends) or ends[0] >= ends[1]:
        return None
    text = " ".join(str(words[word]).lower() for word in FOREIGN["word"] if word in words)
    if all(isinstance(end, int) for end in ends) and "float" not in text:
        is_step = isinstance(step, int) and step > 1
        kind = "lograndint" if (meant["log"] or "log" in text) and ends[0] > 0 else "randint"
        return [kind, *ends, step] if is_step and kind == "randint" else [kind, *ends]
    if meant["log"] or "log" in text:
        return ["loguniform" if ends[0] > 0 else "uniform", *ends]
    if isinstance(step, int | float) and step > 0:
        return ["quniform", *ends, step]
    return ["uniform" if "uniform" in text or meant["log"] is False else guess_kind([*map(float, ends)]), *ends]


def make_mapping_error(name: str, mapping: Mapping[str, Any]) -> ConfigError:
    """Make the error for a range in the form of another tool, with the list to type in its place."""
    form = translate_mapping(mapping)
    form = ["loguniform", *KINDS["loguniform"].example] if form is None else form
    return ConfigError(
        f"space.{name}",
        dict(mapping),
        ": a range is no mapping but a list",
        "[kind, ...], such as [loguniform,0.0001,0.01]; see docs/search-spaces.md",
        f"space.{name}={spell(form)}",
    )


def guess_kind(values: Sequence[float]) -> str:
    """Guess which kind of range a user meant by a list of numbers, such as ``[1e-4, 1e-2]``, for advice."""
    low, high = min(values), max(values)
    if len(values) != 2 or values[0] >= values[1]:
        return "choice"
    if all(isinstance(value, int) for value in values):
        return "pow2" if low > 0 and all(math.log2(value).is_integer() for value in values) else "randint"
    return "loguniform" if low > 0 and high >= 10 * low else "uniform"


def is_on_range(raw: Any, distribution: Any) -> bool:
    """Return whether a quantity is one that an Optuna distribution has."""
    if not hasattr(distribution, "low"):
        return raw in distribution.choices
    steps = (raw - distribution.low) / (distribution.step or math.inf)
    return bool(distribution.low <= raw <= distribution.high and abs(steps - round(steps)) < 1e-8)


def pack_value(value: Any) -> Any:
    """Return a choice in a type that Optuna can store; lists and mappings become JSON text."""
    return value if isinstance(value, SCALARS) else json.dumps(value)
