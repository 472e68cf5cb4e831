"""What registers with Ray while Ray starts in another thread: RLlib, when it is imported, and environments.

Runs in the driver.
"""

from __future__ import annotations

import functools
from typing import Any


def wait_for_ray() -> None:
    """Let whoever registers an environment or an algorithm wait until a start of Ray that is under way is over.

    Ray's registry keeps what is registered before Ray runs and sends all of it twice while Ray starts (2.60): the
    starting thread when it is done, and the registering one as soon as there is something to send to, which fails
    in whichever comes last ("dictionary changed size during iteration"). `rltune.cluster` starts Ray
    under the same lock.
    """
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
