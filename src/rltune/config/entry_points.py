"""Import what a setting names as ``package.module:Name``: a class or a function that none of our files lists."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rltune.errors import ConfigError, describe_exception


def import_entry_point(key: str, target: str, what: str, is_one: Callable[[Any], bool], usage: str, fix: str) -> Any:
    """Import what the setting ``key`` names.

    Args:
        key: The setting, such as ``searcher.kind``.
        target: ``package.module:Name``.
        what: What it is to be, for a person.
        is_one: Whether it is. YAML must not be able to call anything of any module.
        usage: How it is written, for a person.
        fix: What to type instead.

    Raises:
        ConfigError: There is nothing of this name, or it is something else.
    """
    module, _, name = target.partition(":")
    try:
        found = getattr(importlib.import_module(module), name)
    except Exception as error:  # a module raises whatever it likes while it is imported
        raise ConfigError(
            f"{key}={target} cannot be imported: {describe_exception(error)}",
            usage,
            "install its package, or put its folder on PYTHONPATH",
        ) from None
    if not is_one(found):
        raise ConfigError(f"{key}={target} is no {what}", usage, fix)
    return found


def is_subclass(base: type) -> Callable[[Any], bool]:
    """Return a check for `import_entry_point`: whether something is a class that derives from ``base``."""
    return lambda found: isinstance(found, type) and issubclass(found, base)
