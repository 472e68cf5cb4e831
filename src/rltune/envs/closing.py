"""Close environments, whose own ``close`` may raise although everything that was wanted of them is done.

If one of several copies cannot be made, then those that were made are closed.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rltune.envs.guest import call_guest
from rltune.errors import Cause, GuestError, RltuneError

COPIES = "algo.env_runners.num_envs_per_env_runner"
"""The setting for the number of copies that a process has at once."""

APART = (
    "'++env.per_copy.port=[port,5005]' for an argument port if each copy needs one of its own (number, folder and "
    "one_of likewise), or env.max_copies=N if only N may live on a machine"
)
"""What else helps where one copy can be made, but not beside another."""
CLOSE_S = 30.0
"""How long closing an environment may take. Some simulators need half of that, and some that have failed never end."""
NEXT_CLOSE_S = 1.0
"""The same in a process in which one has hung."""
_hangs: list[float] = []  # The limits that were reached in this process.

logger = logging.getLogger(__name__)


@contextlib.contextmanager
def call_make(call: str, index: int, setting: str = "") -> Iterator[None]:
    """Make a copy of an environment in the ``with`` block; if it cannot live beside others, the error says what helps.

    Args:
        call: The call's name.
        index: How many copies were made before it.
        setting: The setting for their number, if there is one.

    Raises:
        GuestError: It cannot be made.
    """
    try:
        with call_guest(call):
            yield
    except GuestError as error:
        if index == 0:
            raise
        problem = f"{error.problem}; {setting or 'the number of copies'} opens more than {index} at once"
        allowed = f"an environment of which {index + 1} copies can be open at once"
        fix = f"{setting}={index}, or {APART}" if setting else APART
        raise error.rewrite(problem, allowed, fix) from error.__cause__


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
            with call_make(f"make of copy {index + 1} of {count}", index, COPIES):
                copies.append(make(index))
            made.callback(close_env, copies[-1])
        made.pop_all()
    return copies


class _CloseEnded(BaseException):
    """Raised in a ``close`` that has reached its limit; no `Exception`, which simulators suppress there."""


@contextlib.contextmanager
def limit_close() -> Iterator[None]:
    """End a ``close`` in the ``with`` block after `CLOSE_S`, where Python can: in a main thread, not in foreign code.

    Raises:
        GuestError: It was ended. What it has left open ends with its process.
    """
    is_main = threading.current_thread() is threading.main_thread()
    # An outer limit holds, or the timer is the user's; or the handler is not Python's, which cannot put it back, as in
    # an interpreter that exits.
    if not is_main or signal.getitimer(signal.ITIMER_REAL)[0] or signal.getsignal(signal.SIGALRM) is None:
        yield
        return

    def end(*_: object) -> None:
        raise _CloseEnded

    before, limit_s = signal.signal(signal.SIGALRM, end), NEXT_CLOSE_S if _hangs else CLOSE_S
    signal.setitimer(signal.ITIMER_REAL, limit_s)
    try:
        yield
    except _CloseEnded:
        _hangs.append(limit_s)
        problem, allowed = f"close has not returned for {limit_s:.0f} s", f"a close that returns within {CLOSE_S:.0f} s"
        raise GuestError(problem, allowed, "find out where it hangs", cause=Cause.STALLED, call="close") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def close_env(env: Any) -> None:
    """Close an environment; an exception of its ``close`` is logged as a warning, once for all its copies.

    One that hangs is left after `CLOSE_S`.

    Args:
        env: An environment of any kind, also a vector environment or one of several agents.
    """
    try:
        with limit_close(), call_guest(f"close of {type(getattr(env, 'unwrapped', env)).__name__}"):
            env.close()
    except RltuneError as error:
        _warn(error.what)


@functools.lru_cache(maxsize=64)
def _warn(problem: str) -> None:
    """Log a warning that was not logged before."""
    logger.warning("%s; the episodes that were played count", problem)
