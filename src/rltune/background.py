"""Call functions that may hang in threads of their own, so that they delay nobody. Runs anywhere."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import TypeVar

POLL_S = 0.1  # How often it is asked whether a result is still waited for.
Result = TypeVar("Result")


def start_in_thread(name: str, function: Callable[..., Result], *arguments: object) -> Future[Result]:
    """Call a function in a thread of its own.

    Unlike the threads of an executor, it does not keep the program from ending, and no other call waits for it.

    Args:
        name: The thread's name.
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

    threading.Thread(target=call, name=name, daemon=True).start()
    return future


def call_in_thread(
    request: Callable[[], Result],
    name: str,
    is_given_up: Callable[[], bool],
    on_given_up: Callable[[], object] = lambda: None,
) -> Result:
    """Call a function in a thread of its own, and wait for its result as long as it is wanted.

    Args:
        request: The function.
        name: The thread's name.
        is_given_up: Whether the result is not waited for any more.
        on_given_up: Called before the thread is abandoned.

    Raises:
        TimeoutError: The thread was abandoned.
    """
    answer = start_in_thread(name, request)
    while not wait([answer], POLL_S).done:
        if is_given_up():
            on_given_up()
            raise TimeoutError("no answer in time")
    return answer.result()
