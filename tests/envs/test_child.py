"""A function is called in a process of its own, whose end is named whatever it is."""

import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from rltune.envs.child import CallGivenUpError, Child, acquire_child, begin_child
from rltune.envs.guest import ARGUMENTS, call_guest
from rltune.errors import Cause, ConfigError, GuestError, RltuneError, UnexpectedError

pytestmark = pytest.mark.fast


def add(left: int, right: int) -> list[int]:
    print("noise from Python")
    os.write(1, b"noise from C\n")
    return [left + right]


def leave(how: str) -> None:
    if how == "fault":
        raise ZeroDivisionError
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
    return Child(()).call(f"{__name__}:{name}", arguments, limit_s=limit_s)


def test_the_answer_comes_back_whatever_is_printed() -> None:
    assert call("add", left=1, right=2) == [3]


@pytest.mark.parametrize(
    ("how", "kind", "cause"),
    [
        ("exit", GuestError, Cause.ENVIRONMENT),
        ("raise", GuestError, Cause.ENVIRONMENT),
        ("refuse", ConfigError, Cause.REFUSED),
        ("interrupt", GuestError, Cause.ENVIRONMENT),
        ("fault", GuestError, Cause.ENVIRONMENT),
        ("vanish", GuestError, Cause.LOST_PROCESS),
    ],
)
def test_every_end_has_a_type_and_a_cause(how: str, kind: type[RltuneError], cause: Cause) -> None:
    with pytest.raises(kind) as caught:
        call("leave", how=how)
    assert (type(caught.value), caught.value.cause) == (kind, cause)


def test_a_fault_of_others_is_none_of_the_users() -> None:
    with pytest.raises(UnexpectedError) as caught:
        Child(()).call("json:loads", {"s": "{"}, limit_s=30)
    file = Path(caught.value.fix.split()[-1])
    assert "JSONDecodeError" in file.read_text(), "its traceback"
    file.unlink()


def test_a_refusal_names_the_users_line_and_prints_no_traceback() -> None:
    printed: list[bytes] = []
    with pytest.raises(GuestError) as caught:
        Child((), print_output=printed.append).call(f"{__name__}:leave", {"how": "raise"}, limit_s=30)
    assert re.fullmatch(r"test_child.py, line \d+", caught.value.place)
    assert caught.value.place in caught.value.what
    assert b"Traceback" not in b"".join(printed)


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


def fail_loudly(how: str) -> None:
    ctypes.CDLL(None).printf(b"no licence\n")
    os.system("echo scene 0 is missing")
    if how == "die":
        os.abort()
    raise ConfigError("env.id", "x", "is wrong")


@pytest.mark.parametrize("how", ["raise", "die"])
def test_an_error_has_the_last_lines_that_were_printed(how: str) -> None:
    with pytest.raises(RltuneError) as caught:
        call("fail_loudly", how=how)
    assert "scene 0 is missing" in caught.value.what
    if how == "raise":  # Of a process that dies, a C library's buffer may be lost.
        assert "no licence" in caught.value.what


def test_output_that_is_shown_is_in_no_error() -> None:
    printed: list[bytes] = []
    child = Child((), print_output=printed.append)
    with pytest.raises(ConfigError) as caught:
        child.call(f"{__name__}:fail_loudly", {"how": "raise"}, limit_s=60)
    assert "scene" not in caught.value.what
    assert b"scene" in b"".join(printed)


def describe(kwargs: dict[object, object]) -> list[object]:
    return [repr(kwargs), sys.argv, os.getcwd()]


def test_arguments_keep_their_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["typed", "--steps=3"])
    kwargs = {"rewards": {0: 1.5, 1: float("inf")}}
    assert call("describe", kwargs=kwargs) == [repr(kwargs), [*ARGUMENTS], os.getcwd()]


def start_others(how: str, folder: str) -> None:
    """Start three processes, one of them in a session of its own, and one a daemon, and then end or not."""
    for is_alone in (False, True):
        process = subprocess.Popen([sys.executable, "-c", "input()"], start_new_session=is_alone, stdin=-1)
        with open(f"{folder}/{process.pid}", "w"):
            pass
    code = "import os, sys, time; os.fork() and os._exit(0); open(f'{sys.argv[1]}/{os.getpid()}', 'w'); time.sleep(99)"
    subprocess.run([sys.executable, "-c", code, folder], start_new_session=True, check=True)
    while len(os.listdir(folder)) < 3:
        time.sleep(0.01)
    if how == "hold":  # It keeps Python's lock for ever, so that no thread of this process runs.
        with open(f"{folder}/{os.getpid()}", "w"):
            pass
        re.match(r"(a+)+$", "a" * 60 + "b")
    if how == "refuse":
        raise ConfigError("env.id", "x", "is wrong")


def list_alive(folder: Path) -> list[psutil.Process]:
    deadline = time.monotonic() + 10
    while pids := [int(path.name) for path in folder.iterdir() if psutil.pid_exists(int(path.name))]:
        alive = [process for process in map(psutil.Process, pids) if process.status() != psutil.STATUS_ZOMBIE]
        if not alive or time.monotonic() > deadline:
            return alive
        time.sleep(0.1)
    return []


@pytest.mark.parametrize("how", ["answer", "refuse", "hold"])
def test_what_the_process_has_started_ends_with_it(tmp_path: Path, how: str) -> None:
    with contextlib.suppress(RltuneError):
        call("start_others", how=how, folder=str(tmp_path), limit_s=2)
    assert len([*tmp_path.iterdir()]) == 3 + (how == "hold")
    assert list_alive(tmp_path) == []


def test_a_killed_parent_leaves_no_process(tmp_path: Path) -> None:
    code = "import sys; from tests.envs.test_child import call; call('start_others', how='hold', folder=sys.argv[1])"
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    deadline = time.monotonic() + 60
    while len([*tmp_path.iterdir()]) < 4 and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert len([*tmp_path.iterdir()]) == 4
    assert list_alive(tmp_path) == []


def lose_supervisor(folder: str) -> None:
    with open(f"{folder}/{os.getpid()}", "w"):
        pass
    os.kill(os.getppid(), signal.SIGKILL)  # As the kernel does where there is too little memory.
    time.sleep(60)


def test_a_process_ends_with_what_supervises_it(tmp_path: Path) -> None:
    with pytest.raises(GuestError):
        call("lose_supervisor", folder=str(tmp_path))
    assert len([*tmp_path.iterdir()]) == 1
    assert list_alive(tmp_path) == []


def replace_json() -> str:
    json.dumps = functools.partial(json.dumps, indent=2)
    return "answer"


def test_an_answer_needs_nothing_that_users_replace() -> None:
    assert call("replace_json") == "answer"


def wait_twice() -> None:
    with call_guest("make"):
        time.sleep(1)
    with call_guest("reset"):
        time.sleep(1)


def test_a_slow_call_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltune.envs.child.REMIND_S", 0.5)
    seen = []
    Child(()).call(f"{__name__}:wait_twice", {}, limit_s=60, remind=lambda name, elapsed_s: seen.append(name))
    assert seen[-1] in ("make", "reset")


def test_other_work_is_done_once_and_only_beside_a_slow_call(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[float] = []
    meanwhile = functools.partial(done.append, 1.0)
    Child(()).call(f"{__name__}:replace_json", {}, limit_s=60, meanwhile=meanwhile)
    assert done == []
    monkeypatch.setattr("rltune.envs.child.MEANWHILE_S", 0.2)
    Child(()).call(f"{__name__}:wait_twice", {}, limit_s=60, meanwhile=meanwhile)
    assert done == [1.0]


def test_a_program_that_is_imported_starts_no_sweep() -> None:
    """Otherwise each check would import the program, which checks again."""
    with call_guest("import of program"), pytest.raises(GuestError) as caught:
        Child(())
    assert caught.value.call == "import of program"
    assert "__main__" in caught.value.fix


def test_an_early_child_is_used_once() -> None:
    begin_child()
    begin_child()
    first, second = acquire_child(), acquire_child()
    assert first is not second
    for child in (first, second):
        child.close()
        child.close()
        assert not psutil.pid_exists(child.pid)
