"""Parse conditional parameters: ``[when, {other: value}, range]`` is only drawn if another parameter has a value.

The parameter that a condition names is its parent. A list of values stands for any of them; where a condition names
several parents, all must fit. `rltune.search.space` draws by these conditions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rltune.errors import ABSENT, ConfigError, choices

WHEN = "when"
USAGE = "[when, {name: value}, [kind, args...]]"


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
    return all(parent in values and values[parent] in allowed for parent, allowed in when.items())


def is_allowed(value: Any, wanted: Any) -> bool:
    """Return whether a constant equals the value of a condition, or one of several values."""
    several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    return value == wanted or (several and value in wanted)


def order_parameters(when: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Sort parameters so that each comes after the parents of its condition; otherwise keep the order of the file.

    Raises:
        ConfigError: Conditions depend on each other in a circle.
    """
    ordered: list[str] = []
    waiting = list(when)
    while waiting:
        ready = next((name for name in waiting if not set(when[name]) & set(waiting)), None)
        if ready is None:
            raise _circle_error(when, waiting)
        ordered.append(ready)
        waiting.remove(ready)
    return ordered


def _circle_error(when: Mapping[str, Mapping[str, Any]], waiting: Sequence[str]) -> ConfigError:
    """Make the error for conditions that depend on each other; it names all parameters of the cycle."""
    path = [waiting[0]]
    while path[-1] not in path[:-1]:
        path.append(next(parent for parent in when[path[-1]] if parent in waiting))
    circle = path[path.index(path[-1]) :]
    return ConfigError(
        f"space.{circle[0]}",
        ABSENT,
        f": its condition depends on itself: {' <- '.join(circle)}",
        "conditions that lead to a parameter without one",
        f"drop one condition: write space.{circle[0]} as [kind, args...]",
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
    wanted = ", ".join(f"{name}={' or '.join(map(format_yaml_value, values))}" for name, values in when.items())
    return f"when {wanted}" if wanted else ""


def format_yaml_value(value: Any) -> str:
    """Format a value on one line as YAML writes it: ``true``, ``null``, ``[64, 64]``, ``{a: 1}``."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {format_yaml_value(item)}" for key, item in value.items()) + "}"
    return f"[{', '.join(map(format_yaml_value, value))}]" if isinstance(value, list | tuple) else str(value)


def _example(name: str) -> str:
    return f"space.{name}=[when,{{use_lstm:true}},[choice,64,128]]"
