"""Replace names of other libraries only in the versions that this was tested with.

A private name may be gone in the next release. Whoever replaces or calls one asks `is_supported` first and otherwise
does without, so that an untested version is slower and never an ``AttributeError`` in the middle of a start.
``RLTUNE_COMPAT=off`` takes the plain way everywhere: to see whether a fault is ours or the library's.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# The minor versions that `tests/compat` and whole sweeps have run with. Raise one when the contract tests are green.
TESTED = {"ray": "2.60", "torch": "2.13"}
SWITCH = "RLTUNE_COMPAT"
logger = logging.getLogger("rltune")
_refused: set[str] = set()  # libraries that were logged: once a process


def is_supported(library: str) -> bool:
    """Tell whether private names of a library may be used; log one line, once, of a version that was not tested.

    Args:
        library: A key of `TESTED`.
    """
    if os.environ.get(SWITCH, "").lower() == "off":  # whoever set it knows, and need not read it in every command
        return False
    if is_tested(library):
        return True
    if library not in _refused:
        _refused.add(library)
        why = f"tested with {TESTED[library]}"
        logger.warning("%s %s (%s): taking the plain path, which is slower", library, find_version(library), why)
    return False


def is_tested(library: str) -> bool:
    """Tell whether the installed minor version of a library is the tested one."""
    return ".".join(find_version(library).split(".")[:2]) == TESTED[library]


@functools.cache
def find_version(library: str) -> str:
    """Return the installed version of a library without importing it."""
    return importlib.metadata.version(library)


@contextmanager
def replace_names(owner: Any, **others: Any) -> Iterator[None]:
    """Let some names of a module or class mean something else for a while.

    Args:
        owner: The module or class.
        others: What each name means meanwhile; every one must be there already.
    """
    plain = {name: getattr(owner, name) for name in others}
    for name, other in others.items():
        setattr(owner, name, other)
    try:
        yield
    finally:
        for name, one in plain.items():
            setattr(owner, name, one)
