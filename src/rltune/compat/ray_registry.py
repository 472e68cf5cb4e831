"""Serialise registration with Ray's start in another thread. Runs in the driver."""

from __future__ import annotations

import functools
from typing import Any

from rltune.compat.patching import is_supported


def wait_for_ray() -> None:
    """Have each registration of an environment or algorithm wait for a start of Ray that is under way.

    What: ``ray.tune.registry._Registry.register`` takes ``auto_init_lock``, for the rest of the process.
    Why: the registry keeps what is registered before Ray runs, and sends it twice while Ray starts: from the starting
    thread at the end, and from the registering thread as soon as Ray's store is there. Whichever comes last fails with
    "dictionary changed size during iteration", half of the time for an environment with wrappers.
    Gains: the checks, 5 s of CPU, run while Ray starts. On the plain path the sweep runs them after it.
    Tested with Ray 2.60.
    """
    if not is_supported("ray"):
        return
    from ray._private.auto_init_hook import auto_init_lock
    from ray.tune.registry import _Registry

    plain = _Registry.register
    if hasattr(plain, "__wrapped__"):
        return

    @functools.wraps(plain)
    def register(registry: Any, category: str, key: str, value: Any) -> None:
        with auto_init_lock:
            plain(registry, category, key, value)

    _Registry.register = register
