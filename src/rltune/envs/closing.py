"""Close environments, whose own ``close`` may raise although everything that was wanted of them is done."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from rltune.errors import describe_exception

logger = logging.getLogger(__name__)


def close_env(env: Any) -> None:
    """Close an environment; an exception of its ``close`` is logged as a warning, once for all its copies.

    Args:
        env: An environment of any kind, also a vector environment or one of several agents.
    """
    _close(env, env.close)


def close_quietly(env: Any) -> Any:
    """Return an environment, changed so that it is closed as by `close_env` by those who call its own ``close``."""
    env.close = functools.partial(_close, env, env.close)
    return env


def _close(env: Any, close: Callable[[], None]) -> None:
    try:
        close()
    except (Exception, SystemExit) as error:  # The environment may be a user's code, which may raise any exception.
        _warn(f"close() of {type(getattr(env, 'unwrapped', env)).__name__} fails with {describe_exception(error)}")


@functools.lru_cache(maxsize=64)
def _warn(problem: str) -> None:
    """Log a warning that was not logged before."""
    logger.warning("%s; the episodes that were played count", problem)
