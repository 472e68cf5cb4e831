"""Admit requests that check settings: a few at a time, in threads of their own, and only while their clients wait.

A check is a process that imports a user's modules, so that many at once would take gigabytes of memory, and their
requests all threads that respond to others. What a client has given up is not carried out: it would be sent again. Nor
is what waits for too long, because proxies give up, too: the response says when to send it again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable
from typing import TypeVar

from anyio import CapacityLimiter, Semaphore, fail_after, from_thread, to_thread
from fastapi import Request

from rltune.service.checking import BusyError

NUM_CHECKS = 4  # How many checks run at a time. Each takes some 150 MB of memory and one CPU for seconds.
WAIT_S = 30.0  # A request waits this long for its turn; on a busy machine its check then takes many seconds.
LIMIT_S = 55.0  # It is responded to within this time, before the client of rltune gives it up after 60 s.
RECEIVE = "rltune.receive"  # The scope's key of the function by which the HTTP server says that a client is gone.
Result = TypeVar("Result")


class Admission:
    """Runs requests that check settings.

    Args:
        num_checks: How many run at a time.
    """

    def __init__(self, num_checks: int = NUM_CHECKS) -> None:
        self.num_checks = num_checks
        self._turns, self._threads = Semaphore(num_checks), CapacityLimiter(num_checks)

    async def run(self, request: Request, act: Callable[..., Result], *arguments: object) -> Result:
        """Call a function as soon as it is the request's turn.

        Args:
            request: The request.
            act: The function. It takes `is_wanted` as a further keyword argument, which says whether the client still
                waits, and which it calls before it changes anything.
            arguments: Its other arguments.

        Raises:
            BusyError: Too many other requests are being checked.
        """
        deadline_s = time.monotonic() + LIMIT_S

        def is_wanted() -> bool:
            return time.monotonic() < deadline_s and not from_thread.run(_is_gone, request)

        try:
            with fail_after(WAIT_S):
                await self._turns.acquire()
        except TimeoutError:
            raise BusyError(
                "too many sweeps are submitted at the same time",
                f"{self.num_checks} that are checked at a time",
                "the same again",
            ) from None
        try:
            call = functools.partial(act, *arguments, is_wanted=is_wanted)
            return await to_thread.run_sync(call, limiter=self._threads)
        finally:
            self._turns.release()


async def _is_gone(request: Request) -> bool:
    """Return whether the client of a request has closed its connection."""
    # Starlette's middleware would wait for a message of its own.
    return await Request(request.scope, request.scope.get(RECEIVE, request.receive)).is_disconnected()
