"""Imports done in a thread while trials run: a sweep's start need not wait for them, and its end then need not either.

Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import threading


@functools.cache
def begin_imports(*modules: str) -> threading.Thread:
    """Import these, once; what cannot be imported is left to whoever needs it, who will say why."""
    thread = threading.Thread(target=_import, args=modules, name="rltune-ahead", daemon=True)
    thread.start()
    return thread


def _import(*modules: str) -> None:
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)
