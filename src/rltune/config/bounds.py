"""Declare the allowed values of settings at the fields of the schema, and refuse all others."""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from operator import attrgetter
from typing import Any, get_args, get_origin, get_type_hints

from omegaconf import MISSING

from rltune.errors import ABSENT, ConfigError, choices, nearest, spell

TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
EXAMPLES = {
    "env.id": "env.id=CartPole-v1, or env.id=module:Name-v0 of a package or of a file in this folder",
    "policy": "policy=sweep:latest, or policy=models:/<name>@champion",
}


@dataclass(frozen=True)
class Bounds:
    """The allowed values of a setting. None is also allowed if the setting's type includes it.

    Attributes:
        minimum: The smallest number; None if numbers are not allowed.
        maximum: The largest number. The default excludes infinity alone, which ``math.inf`` allows.
        exclusive_minimum: Whether the minimum itself is excluded.
        choices: The words that are allowed. ``package.module:Class`` stands for the name of any class or function.
        example: A value that errors suggest; None is the nearest choice, or the minimum.
    """

    minimum: float | None = None
    maximum: float = sys.float_info.max
    exclusive_minimum: bool = False
    choices: tuple[str, ...] = ()
    example: Any = None

    def __str__(self) -> str:
        words = f"one of: {', '.join(self.choices)}" if self.minimum is None else ", ".join(self.choices)
        if self.minimum is None:
            return words
        if self.minimum == -math.inf:
            numbers = "of any size"
        elif self.exclusive_minimum:
            numbers = f"above {_format(self.minimum)}"
        elif self.maximum < sys.float_info.max:
            numbers = f"from {_format(self.minimum)} to {_format(self.maximum)}"
        else:
            numbers = f"at least {_format(self.minimum)}"
        return f"{numbers}, or {words}" if words else numbers

    def allows(self, value: Any) -> bool:
        """Return whether a value is allowed."""
        if isinstance(value, str):
            return value in self.choices or (":" in value and any(":" in choice for choice in self.choices))
        if self.minimum is None or isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.minimum <= value <= self.maximum and not (self.exclusive_minimum and value == self.minimum)

    def check(self, key: str, value: Any, written: Any = None) -> None:
        """Raise an error if a value is not allowed.

        Args:
            key: The setting.
            value: Its value. A list is allowed if it has elements and all of them are allowed.
            written: What the setting says, if ``value`` is only a part of it.

        Raises:
            ConfigError: The value is not allowed.
        """
        is_list = isinstance(value, Sequence) and not isinstance(value, str)
        if value is None or (all(map(self.allows, value)) and len(value) if is_list else self.allows(value)):
            return
        fix = f"{key}={self.suggest(value)}"
        if self.minimum is None:
            raise ConfigError(key, value, "is unknown", choices(str(value), self.choices), fix)
        if written is None:
            raise ConfigError(key, value, "is out of range", str(self), fix)
        raise ConfigError(key, written, f": {spell(value)} is out of range", str(self), fix)

    def suggest(self, value: Any) -> str:
        """Return an allowed value for an error to suggest."""
        if self.minimum is None:
            return nearest(str(value), self.choices) or self.choices[0]
        return _format(self.minimum if self.example is None else self.example)


def _format(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) and math.isfinite(value) else str(value)


def bounded(default: Any = MISSING, **bounds: Any) -> Any:
    """Return a dataclass field that declares `Bounds`.

    Args:
        default: The field's default. The defaults of most settings are in conf/ instead.
        **bounds: The attributes of `Bounds`.
    """
    return field(default=default, metadata={"bounds": Bounds(**bounds)})


@functools.cache
def read_types(schema: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields by name, with annotations resolved."""
    return get_type_hints(schema)


@functools.cache
def list_bounds(schema: type) -> dict[str, Bounds]:
    """List the bounds of all settings in a schema, by their dotted keys."""
    types = read_types(schema)
    listed: dict[str, Bounds] = {}
    for setting in fields(schema):
        if is_dataclass(types[setting.name]):
            nested = list_bounds(types[setting.name])
            listed |= {f"{setting.name}.{key}": bounds for key, bounds in nested.items()}
        elif "bounds" in setting.metadata:
            listed[setting.name] = setting.metadata["bounds"]
    return listed


def find_type(schema: type, key: str) -> Any:
    """Find a setting's type in the schema, such as ``float | None`` for ``budget.wall_time_s``; None for any type."""
    kind: Any = schema
    for part in key.split("."):
        kind = read_types(kind).get(part) if isinstance(kind, type) and is_dataclass(kind) else None
    return kind


def find_item_type(schema: type, key: str) -> Any:
    """Find the type of the items of a setting that is a list; None for any other setting."""
    kind = find_type(schema, key)
    lists = [part for part in (kind, *get_args(kind)) if get_origin(part) is list]
    return get_args(lists[0])[0] if lists else None


def describe_allowed(schema: type, key: str) -> str:
    """Describe the allowed values of a setting in words, such as ``a whole number, at least 1, or null``.

    Returns:
        The description; empty for a key with values of any type, as those of ``algo`` and ``space`` have.
    """
    kind, bounds = find_type(schema, key), list_bounds(schema).get(key)
    types = (kind, *get_args(kind))
    if get_origin(kind) is dict:
        return "{name: value}"
    if find_item_type(schema, key):
        return "a list, such as [first,second]" + (", or null" if type(None) in types else "")
    name = name_type(schema, key)
    if bounds is not None:
        name = str(bounds) if bounds.minimum is None else f"{name}, {bounds}"
    comma = "," if bounds is not None else ""
    return f"{name}{comma} or null" if name and type(None) in types else name


def name_type(schema: type, key: str) -> str:
    """Name the type of a setting's values, such as ``a whole number``; empty for one that has no name."""
    kind = find_type(schema, key)
    return next((TYPES[part] for part in (kind, *get_args(kind)) if part in TYPES), "")


@functools.cache
def list_keys(schema: type) -> list[str]:
    """List the dotted keys of all settings in a schema."""
    keys: list[str] = []
    for name, kind in read_types(schema).items():
        keys += [f"{name}.{key}" for key in list_keys(kind)] if is_dataclass(kind) else [name]  # type: ignore[arg-type]  # a class can be hashed
    return keys


@dataclass
class Checked:
    """The base class of settings that are complete and within their bounds, however an instance was made."""

    def __post_init__(self) -> None:
        """Check this instance.

        Raises:
            ConfigError: A value is missing or lies outside of its bounds.
        """
        check_settings(self)


def check_settings(settings: Any) -> None:
    """Refuse an instance of a schema with a value that is missing or lies outside of its bounds.

    Raises:
        ConfigError: Names the key and the value, what is allowed, and what to type.
    """
    schema: type = type(settings)
    all_bounds = list_bounds(schema)
    for key in list_keys(schema):
        value = attrgetter(key)(settings)
        if isinstance(value, str) and value == MISSING:
            raise make_missing_error(key)
        if key in all_bounds:
            all_bounds[key].check(key, value)


def make_missing_error(key: str) -> ConfigError:
    """Make the error for a setting that has no value."""
    fix = f"add {EXAMPLES.get(key, f'{key}=...')}"
    return ConfigError(key, ABSENT, "has no value", "a value for every key", fix)
