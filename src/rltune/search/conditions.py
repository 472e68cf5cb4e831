"""Conditions of a search space: ``[when, {other: value}, form]`` draws a parameter only where another has a value.

Here are their form, their order and their errors; `rltune.search.space` draws by them. A list of values
stands for any of them, several names must all hold. Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rltune.errors import ConfigError, choices

WHEN = "when"
USAGE = "[when, {name: value}, [kind, args...]]"


def split_condition(name: str, entry: Any) -> tuple[Mapping[str, Any], Any]:
    """A parameter's condition, empty without one, and its form.

    Raises:
        ConfigError: It begins as a condition and is none.
    """
    if not (isinstance(entry, Sequence) and not isinstance(entry, str) and entry and entry[0] == WHEN):
        return {}, entry
    if len(entry) != 3 or not isinstance(entry[1], Mapping) or not entry[1]:
        raise ConfigError(f"space.{name}={to_plain_value(entry)}: no condition", USAGE, f"'{_example(name)}'")
    return {str(key): value for key, value in entry[1].items()}, entry[2]


def conditions_hold(when: Mapping[str, Iterable[Any]], values: Mapping[str, Any]) -> bool:
    """Whether all named parameters are there and have one of their values."""
    return all(name in values and values[name] in allowed for name, allowed in when.items())


def equal_values(have: Any, wanted: Any) -> bool:
    """Whether a constant is what a condition wants: the value, or one of several."""
    several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
    return have == wanted or (several and have in wanted)


def order_parameters(when: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Names so that each comes after those that its condition names; otherwise as they were written.

    Raises:
        ConfigError: Conditions wait for each other.
    """
    done: list[str] = []
    waiting = list(when)
    while waiting:
        ready = next((name for name in waiting if not set(when[name]) & set(waiting)), None)
        if ready is None:
            raise _circular(when, waiting)
        done.append(ready)
        waiting.remove(ready)
    return done


def _circular(when: Mapping[str, Mapping[str, Any]], waiting: Sequence[str]) -> ConfigError:
    """Name the circle, from one of its members round to itself."""
    path = [waiting[0]]
    while path[-1] not in path[:-1]:
        path.append(next(name for name in when[path[-1]] if name in waiting))
    circle = path[path.index(path[-1]) :]
    return ConfigError(
        f"space.{circle[0]}: its condition waits for itself: {' <- '.join(circle)}",
        "conditions that lead to a parameter without one",
        f"drop one condition: write space.{circle[0]} as [kind, args...]",
    )


def find_unknown_parent(name: str, control: str, known: Iterable[str]) -> ConfigError:
    """The error for a condition on a parameter that does not exist."""
    return ConfigError(
        f"space.{name}: its condition names '{control}', which neither the space nor the algorithm's file has",
        choices(control, set(known) - {name}),
        f"correct the name, or drop it with ~space.{name}",
    )


def find_unreachable_value(name: str, control: str, value: Any, control_shown: str) -> ConfigError:
    """The error for a condition that no trial can fulfil."""
    return ConfigError(
        f"space.{name}: its condition wants {control}={to_plain_value(value)}, which {control} never is",
        f"a value that {control} is drawn with: {control_shown}, or one of a range of integers",
        f"correct the value, or drop it with ~space.{name}",
    )


def format_condition(when: Mapping[str, Sequence[Any]]) -> str:
    """A condition in words: the values that each name must have one of."""
    wanted = ", ".join(f"{name}={' or '.join(map(to_plain_value, values))}" for name, values in when.items())
    return f"when {wanted}" if wanted else ""


def to_plain_value(value: Any) -> str:
    """A value as YAML writes it."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {to_plain_value(one)}" for key, one in value.items()) + "}"
    return f"[{', '.join(map(to_plain_value, value))}]" if isinstance(value, list | tuple) else str(value)


def _example(name: str) -> str:
    return f"space.{name}=[when,{{use_lstm:true}},[choice,64,128]]"
