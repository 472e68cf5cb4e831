"""A function is called in a process of its own, whose end is named whatever it is."""

import os
import sys
import time
from collections.abc import Callable

import psutil
import pytest

from rltune.envs.child import CallGivenUpError, Child
from rltune.envs.guest import call_guest
from rltune.errors import Cause, ConfigError, GuestError, RltuneError, UnexpectedError

pytestmark = pytest.mark.fast


def add(left: int, right: int) -> list[int]:
    print("noise from Python")
    os.write(1, b"noise from C\n")
    return [left + right]


def leave(how: str) -> None:
    with call_guest("reset"):
        if how == "exit":
            sys.exit(0)
        if how == "refuse":
            raise ConfigError("env.id", "x", "is wrong")
        if how == "hang":
            time.sleep(60)
        if how == "raise":
            raise ValueError("\udcff broken")
        if how == "interrupt":
            raise KeyboardInterrupt
        os._exit(0)


def count(progress: Callable[[int, int], None]) -> None:
    for number in range(3):
        progress(number, 3)
        time.sleep(0.4)


def call(name: str, limit_s: float = 30, **arguments: object) -> object:
    return Child().call(f"{__name__}:{name}", arguments, limit_s=limit_s)


def test_the_answer_comes_back_whatever_is_printed() -> None:
    assert call("add", left=1, right=2) == [3]


@pytest.mark.parametrize(
    ("how", "kind", "cause"),
    [
        ("exit", GuestError, Cause.ENVIRONMENT),
        ("raise", GuestError, Cause.ENVIRONMENT),
        ("refuse", ConfigError, Cause.REFUSED),
        ("interrupt", UnexpectedError, Cause.UNKNOWN),
        ("vanish", GuestError, Cause.LOST_PROCESS),
    ],
)
def test_every_end_has_a_type_and_a_cause(how: str, kind: type[RltuneError], cause: Cause) -> None:
    with pytest.raises(kind) as caught:
        call("leave", how=how)
    assert (type(caught.value), caught.value.cause) == (kind, cause)


def test_a_hang_names_the_call_that_hangs() -> None:
    with pytest.raises(GuestError) as caught:
        call("leave", limit_s=2, how="hang")
    assert (caught.value.cause, caught.value.call) == (Cause.STALLED, "reset")


def test_progress_is_a_sign_of_life() -> None:
    seen = []
    Child().call(f"{__name__}:count", {}, limit_s=10, progress=lambda *made: seen.append(made))
    assert seen == [(0, 3), (1, 3), (2, 3)]


def test_a_caller_that_gives_up_leaves_no_process() -> None:
    child = Child()
    with pytest.raises(CallGivenUpError):
        child.call(f"{__name__}:leave", {"how": "hang"}, limit_s=60, is_given_up=lambda: True)
    assert not psutil.pid_exists(child.pid)
