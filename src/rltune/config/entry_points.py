"""Import a class or function that a setting names as ``package.module:Name``."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Iterator
from typing import Any

from rltune.errors import GUEST_FAULTS, ConfigError, RltuneError, UnavailableError, describe_exception, nearest


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
    except GUEST_FAULTS as error:  # A user's module may raise anything when it is imported.
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


@contextlib.contextmanager
def naming_setting(key: str, value: Any, allowed: str, fix: str) -> Iterator[None]:
    """Turn an exception of a user's class into an error that names the setting, unless it is an `RltuneError`.

    Args:
        key: The setting that names the class or its arguments.
        value: Its value.
        allowed: What the error says is allowed.
        fix: The suggestion in the error.

    Raises:
        UnavailableError: What the class needs does not answer, so that the same command may succeed later.
        ConfigError: The class has raised something else.
    """
    try:
        yield
    except (RltuneError, ImportError):
        raise
    except (ConnectionError, TimeoutError) as error:
        raise UnavailableError(f": {describe_exception(error)}", allowed, fix, key=key, value=value) from error
    except GUEST_FAULTS as error:
        raise ConfigError(key, value, f": {describe_exception(error)}", allowed, fix) from error


def is_subclass(base: type) -> Callable[[Any], bool]:
    """Make a check for `import_entry_point` that accepts ``base`` and its subclasses."""
    return lambda loaded: isinstance(loaded, type) and issubclass(loaded, base)
