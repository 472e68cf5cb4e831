"""Close environments, whose own ``close`` may raise although everything that was wanted of them is done.

If one of several copies cannot be made, then those that were made are closed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Callable
from typing import Any

from rltune.envs.guest import call_guest
from rltune.errors import GuestError, RltuneError

COPIES = "algo.env_runners.num_envs_per_env_runner"
"""The setting for the number of copies that a process has at once."""

APART = (
    "'++env.per_copy.port=[port,5005]' for an argument port if each copy needs one of its own (number, folder and "
    "one_of likewise), or env.max_copies=N if only N may live on a machine"
)
"""What else helps where one copy can be made, but not beside another."""

logger = logging.getLogger(__name__)


def make_copies(make: Callable[[int], Any], count: int) -> list[Any]:
    """Make copies of an environment, all of them or none: those that were made are closed if one cannot be made.

    Args:
        make: Makes the copy with an index.
        count: Their number.

    Raises:
        GuestError: One cannot be made; names it, and the settings for their number and for what each has of its own.
    """
    copies: list[Any] = []
    with contextlib.ExitStack() as made:
        for index in range(count):
            try:
                with call_guest(f"make of copy {index + 1} of {count}"):
                    copies.append(make(index))
            except GuestError as error:
                if index == 0:
                    raise
                problem = f"{error.problem}; {COPIES}={count} opens so many at once in a process"
                allowed = f"an environment of which {count} copies can be open at once"
                fix = f"{COPIES}={index}, or {APART}"
                raise GuestError(problem, allowed, fix, call=error.call, place=error.place) from error.__cause__
            made.callback(close_env, copies[-1])
        made.pop_all()
    return copies


def close_env(env: Any) -> None:
    """Close an environment; an exception of its ``close`` is logged as a warning, once for all its copies.

    Args:
        env: An environment of any kind, also a vector environment or one of several agents.
    """
    try:
        with call_guest(f"close of {type(getattr(env, 'unwrapped', env)).__name__}"):
            env.close()
    except RltuneError as error:
        _warn(error.what)


@functools.lru_cache(maxsize=64)
def _warn(problem: str) -> None:
    """Log a warning that was not logged before."""
    logger.warning("%s; the episodes that were played count", problem)
