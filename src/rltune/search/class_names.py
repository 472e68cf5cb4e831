"""Find the class of a searcher or scheduler that a settings file names as a short name or ``package.module:Class``.

A user's own class needs no entry in our files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rltune.config.entry_points import import_entry_point
from rltune.errors import ConfigError, choices


def import_class(group: str, kind: str, short: Mapping[str, str], what: str, is_valid: Callable[[type], bool]) -> Any:
    """Import the class that the setting ``searcher.kind`` or ``scheduler.kind`` names.

    Args:
        group: The configuration group, such as ``searcher``.
        kind: A short name, or ``package.module:Class``.
        short: ``package.module:Class`` by short name; the first one is suggested in errors.
        what: The expected kind of class, for error messages.
        is_valid: Whether a class is of that kind, so that YAML cannot call arbitrary functions.

    Raises:
        ConfigError: There is no class of this name, or it is of another kind.
    """
    usage, usual = f"a name, or package.module:Class of a {what}", f"{group}={next(iter(short))}"
    if kind not in short and ":" not in kind:
        raise ConfigError(f"{group}.kind", kind, "is unknown", f"{choices(kind, short)}; {usage}", usual)
    target = short.get(kind, kind)
    return import_entry_point(
        f"{group}.kind", target, what, lambda value: isinstance(value, type) and is_valid(value), usage, usual
    )
