"""Find the class that a searcher file or a scheduler file names: by a short name, or as ``package.module:Class``.

A class of one's own is imported by its name: none of our files lists it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rltune.config.entry_points import import_entry_point
from rltune.errors import ConfigError, choices


def import_class(group: str, kind: str, short: Mapping[str, str], what: str, is_one: Callable[[type], bool]) -> Any:
    """Import the class that ``<group>.kind`` names.

    Args:
        group: Of the configuration, such as ``searcher``.
        kind: A short name, or ``package.module:Class``.
        short: ``package.module:Class`` by short name, the usual one first.
        what: What the class is to be, for a person.
        is_one: Whether it is. YAML must not be able to call anything of any module.

    Raises:
        ConfigError: There is no class of this name, or it is something else.
    """
    usage, usual = f"a name, or package.module:Class of a {what}", f"{group}={next(iter(short))}"
    if kind not in short and ":" not in kind:
        raise ConfigError(f"{group}.kind={kind} is unknown", f"{choices(kind, short)}; {usage}", usual)
    target = short.get(kind, kind)
    return import_entry_point(
        f"{group}.kind", target, what, lambda found: isinstance(found, type) and is_one(found), usage, usual
    )
