"""Import a class or function that a setting names as ``package.module:Name``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rltune.errors import ConfigError, describe_exception


def import_entry_point(key: str, target: str, what: str, accept: Callable[[Any], bool], usage: str, fix: str) -> Any:
    """Import the object that a setting names.

    Args:
        key: The setting, such as ``searcher.kind``.
        target: ``package.module:Name``.
        what: The kind of object, for the error.
        accept: Returns whether an object is of this kind, so that YAML cannot call any function of any module.
        usage: How the setting is written, for the error.
        fix: What to type instead if the object is of another kind.

    Raises:
        ConfigError: The object does not exist, or is of another kind.
    """
    module, _, name = target.partition(":")
    try:
        imported = getattr(importlib.import_module(module), name)
    except Exception as error:  # A user's module may raise anything while it is imported.
        raise ConfigError(
            f"{key}={target} cannot be imported: {describe_exception(error)}",
            usage,
            "install its package, or put its folder on PYTHONPATH",
        ) from None
    if not accept(imported):
        raise ConfigError(f"{key}={target} is no {what}", usage, fix)
    return imported


def is_subclass(base: type) -> Callable[[Any], bool]:
    """Return a check for `import_entry_point` that accepts the subclasses of ``base``."""
    return lambda imported: isinstance(imported, type) and issubclass(imported, base)
