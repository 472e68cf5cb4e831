"""Parse conditional parameters: ``[when, {other: value}, range]`` is only drawn if another parameter has a value.

The parameter that a condition names is its parent. A list of values stands for any of them, and ``'> 2'`` for all that
are larger; where a condition names several parents, all must fit. `rltune.search.space` draws by these conditions.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rltune.config.criteria import read_bound
from rltune.errors import ABSENT, ConfigError, choices

WHEN = "when"
USAGE = "[when, {name: value}, [kind, args...]]"
_SIGNS: Mapping[str, Callable[[float, float], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class Comparison:
    """A condition that many values of a parent meet, such as ``> 2``.

    Attributes:
        text: The comparison as users type it.
        sign: One of ``<``, ``<=``, ``>`` and ``>=``.
        limit: The number with which the parent's value is compared.
    """

    text: str
    sign: str
    limit: float

    def is_met(self, value: Any) -> bool:
        """Return whether a value is a number for which the comparison holds."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and _SIGNS[self.sign](value, self.limit)

    def __str__(self) -> str:
        return repr(self.text)


def read_allowed(value: Any) -> Any:
    """Return a value of a condition, or the comparison that its text says."""
    bound = read_bound(value)
    return Comparison(value.strip(), *bound) if bound else value


def split_condition(name: str, form: Any) -> tuple[Mapping[str, Any], Any]:
    """Split a parameter's setting into its condition, empty for an unconditional parameter, and its range.

    Raises:
        ConfigError: It begins with ``when`` but is not a condition.
    """
    if not (isinstance(form, Sequence) and not isinstance(form, str) and form and form[0] == WHEN):
        return {}, form
    if len(form) != 3 or not isinstance(form[1], Mapping) or not form[1]:
        raise ConfigError(f"space.{name}", form, ": no condition", USAGE, f"'{_example(name)}'")
    return {str(parent): value for parent, value in form[1].items()}, form[2]


def is_met(when: Mapping[str, Iterable[Any]], values: Mapping[str, Any]) -> bool:
    """Return whether all parents are in ``values`` with a value that the condition allows."""
    return all(parent in values and is_among(values[parent], allowed) for parent, allowed in when.items())


def is_among(value: Any, allowed: Iterable[Any]) -> bool:
    """Return whether a parent's value is one of those that a condition allows."""
    return any(each.is_met(value) if isinstance(each, Comparison) else each == value for each in allowed)


def is_allowed(value: Any, wanted: Any) -> bool:
    """Return whether a constant equals the value of a condition, or one of several values."""
    several = wanted if isinstance(wanted, Sequence) and not isinstance(wanted, str) else (wanted,)
    return bool(value == wanted) or is_among(value, map(read_allowed, several))


def order_parameters(parents: Mapping[str, Iterable[str]]) -> list[str]:
    """Sort parameters so that each comes after those on which it depends; otherwise keep the order of the file.

    Args:
        parents: The names in each parameter's condition and at the ends of its range.

    Raises:
        ConfigError: Parameters depend on each other in a circle.
    """
    ordered: list[str] = []
    waiting = list(parents)
    while waiting:
        ready = next((name for name in waiting if not set(parents[name]) & set(waiting)), None)
        if ready is None:
            raise _circle_error(parents, waiting)
        ordered.append(ready)
        waiting.remove(ready)
    return ordered


def _circle_error(parents: Mapping[str, Iterable[str]], waiting: Sequence[str]) -> ConfigError:
    """Make the error for parameters that depend on each other; it names all parameters of the cycle."""
    path = [waiting[0]]
    while path[-1] not in path[:-1]:
        path.append(next(parent for parent in parents[path[-1]] if parent in waiting))
    circle = path[path.index(path[-1]) :]
    return ConfigError(
        f"space.{circle[0]}",
        ABSENT,
        f": it depends on itself: {' <- '.join(circle)}",
        "conditions and bounds that lead to a parameter without one",
        f"drop one of them: write space.{circle[0]} as [kind, args...]",
    )


def unknown_parent_error(name: str, parent: str, names: Iterable[str]) -> ConfigError:
    """Make the error for a condition on a parameter that does not exist."""
    return ConfigError(
        f"space.{name}",
        ABSENT,
        f": its condition names '{parent}', which neither the space nor the algorithm's file has",
        choices(parent, set(names) - {name}),
        f"correct the name, or drop it with ~space.{name}",
    )


def unreachable_value_error(name: str, parent: str, value: Any, parent_shown: str) -> ConfigError:
    """Make the error for a condition that no trial can meet."""
    return ConfigError(
        f"space.{name}",
        ABSENT,
        f": its condition wants {parent}={format_yaml_value(value)}, which {parent} never is",
        f"a value that {parent} is drawn with: {parent_shown}, or one of a range of integers",
        f"correct the value, or drop it with ~space.{name}",
    )


def format_condition(when: Mapping[str, Sequence[Any]]) -> str:
    """Format a condition for messages, such as ``when a=1 or 2, b=true``; empty for an unconditional parameter."""
    wanted = [
        f"{name}{' ' if isinstance(values[0], Comparison) else '='}"
        + " or ".join(each.text if isinstance(each, Comparison) else format_yaml_value(each) for each in values)
        for name, values in when.items()
    ]
    return f"when {', '.join(wanted)}" if wanted else ""


def format_yaml_value(value: Any) -> str:
    """Format a value on one line as YAML writes it: ``true``, ``null``, ``[64, 64]``, ``{a: 1}``."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {format_yaml_value(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(format_yaml_value, value))}]" if isinstance(value, list | tuple) else str(value)


def _example(name: str) -> str:
    return f"space.{name}=[when,{{use_lstm:true}},[choice,64,128]]"
