"""Import a class or function that a setting names as ``package.module:Name``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from rltune.errors import ConfigError, describe_exception, nearest


def import_entry_point(key: str, target: str, what: str, accepts: Callable[[Any], bool], usage: str, fix: str) -> Any:
    """Import the class or function that a setting names, and check that it is of the right kind.

    Args:
        key: The setting, such as ``searcher.kind``.
        target: Its value, ``package.module:Name``.
        what: The kind of object that the error asks for.
        accepts: Returns whether an object is of this kind. A YAML file must not be able to call any function at all.
        usage: The description of allowed values in the error.
        fix: The suggestion in the error.

    Raises:
        ConfigError: There is no object of this name, or it is of another kind.
    """
    module, _, name = target.partition(":")
    close = None
    try:
        imported = importlib.import_module(module)
        if not hasattr(imported, name):
            close = nearest(name, [each for each, value in vars(imported).items() if accepts(value)])
        loaded = getattr(imported, name)
    except Exception as error:  # A user's module may raise anything when it is imported.
        raise ConfigError(
            key,
            target,
            f"cannot be imported: {describe_exception(error)}",
            usage,
            f"{key}={module}:{close}" if close else "install its package, or put its folder on PYTHONPATH",
        ) from None
    if not accepts(loaded):
        raise ConfigError(key, target, f"is no {what}", usage, fix)
    return loaded


def is_subclass(base: type) -> Callable[[Any], bool]:
    """Make a check for `import_entry_point` that accepts ``base`` and its subclasses."""
    return lambda loaded: isinstance(loaded, type) and issubclass(loaded, base)
