"""Replace private names of other libraries, but only in tested versions; one switch turns all replacements off.

A private name may be gone in the next release. So all replacements are off with a minor version of Ray that was not
tested, and with ``RLTUNE_COMPAT=off``, which shows whether a fault is ours or the library's. Sweeps are slower then.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, ParamSpec, TypeVar

from packaging.version import Version

# The first and the last minor version with which `tests/compat` and whole sweeps passed. Raise the last one when the
# contract tests pass with it.
TESTED = {"ray": ("2.60", "2.60"), "torch": ("2.8", "2.14")}
SWITCH = "RLTUNE_COMPAT"
Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")
logger = logging.getLogger("rltune")


def are_replacements_on() -> bool:
    """Return whether private names may be used: Ray's version was tested, and ``RLTUNE_COMPAT`` is not ``off``."""
    return os.environ.get(SWITCH, "").lower() != "off" and _is_ray_tested()


def switched(plain: Callable[[], Any]) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """Make a decorator that calls the function if replacements are on, and ``plain`` otherwise.

    Args:
        plain: Returns what the function returns with the switch off.
    """

    def decorate(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        @functools.wraps(function)
        def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Answer:
            return function(*args, **kwargs) if are_replacements_on() else plain()

        return call

    return decorate


def is_tested(library: str) -> bool:
    """Return whether the minor version of an installed library is in the range of `TESTED`."""
    first, last = (Version(version) for version in TESTED[library])
    version = Version(find_version(library))
    return first <= Version(f"{version.major}.{version.minor}") <= last


@functools.cache
def _is_ray_tested() -> bool:
    """Return whether Ray's version was tested; if not, log once that sweeps will be slower."""
    if is_tested("ray"):
        return True
    version = f"ray {find_version('ray')} (tested with {' to '.join(dict.fromkeys(TESTED['ray']))})"
    logger.warning("%s: rltune's speed-ups of Ray and RLlib are off, which makes sweeps slower", version)
    return False


@functools.cache
def find_version(library: str) -> str:
    """Return the installed version of a library without importing it."""
    return importlib.metadata.version(library)


def read_versions() -> None:
    """Read the versions of all libraries in `TESTED`, which forked processes then know."""
    for library in TESTED:
        find_version(library)


@contextmanager
def replace_names(owner: Any, **others: Any) -> Iterator[None]:
    """Set attributes of a module or class while the context is open, and restore them afterwards.

    Args:
        owner: The module or class.
        others: The values by name; each name must be there already.
    """
    plain = {name: getattr(owner, name) for name in others}
    for name, other in others.items():
        setattr(owner, name, other)
    try:
        yield
    finally:
        for name, value in plain.items():
            setattr(owner, name, value)
