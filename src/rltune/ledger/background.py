"""Call functions that read a ledger in threads of their own, so that one that hangs delays nobody. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Result = TypeVar("Result")


def call_in_thread(function: Callable[..., Result], *arguments: object) -> Future[Result]:
    """Call a function in a thread of its own.

    Unlike the threads of an executor, it does not keep the program from ending, and no other call waits for it.

    Args:
        function: The function.
        arguments: Its arguments.

    Returns:
        Its result to come.
    """
    future: Future[Result] = Future()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name=f"read-{function.__name__}", daemon=True).start()
    return future
