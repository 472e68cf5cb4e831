"""Processes forked from one that has the imports done, without a Ray: a script stands in for Ray's own worker."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from rltune.cluster import fork_server, worker_entry
from rltune.cluster.fork_server import ForkServer, acquire_fork_server, begin_fork_server
from rltune.cluster.worker_entry import MODULES_VARIABLE, SOCKET_VARIABLE, WORKER_VARIABLE
from rltune.envs.child import Child
from rltune.envs.guest import call_guest
from rltune.errors import Cause, ConfigError, GuestError, RltuneError

pytestmark = [pytest.mark.replacement, pytest.mark.slow]  # each server has torch and RLlib to import

# What a worker prints: written to its standard output as Ray's worker would write its log.
WORKER = """
import json, os, random, sys, weakref
import numpy, ray, torch
square = numpy.ones((500, 500))
product = square @ square
print(json.dumps({
    "pid": os.getpid(), "arguments": sys.argv[1:], "folder": os.getcwd(), "wanted": os.environ.get("WANTED"),
    "warm": {"torch", "ray.rllib.algorithms.algorithm", "rltune.algorithms.offline_data"} <= set(sys.modules),
    "numbers": [ray.ObjectRef.from_random().hex(), random.random(), numpy.random.random()], "main": __name__,
    "torch": torch.rand(1).item(),
    "oom_score": open("/proc/self/oom_score_adj").read().strip(),
    "group": os.getpgid(0), "session": os.getsid(0), "threads": len(os.listdir("/proc/self/task")),
    "finalizers": sum(finalizer.atexit for finalizer in weakref.finalize._registry),
}), flush=True)
"""
# A driver that has a fork server, and waits to be killed.
DRIVER = """
from rltune.cluster.fork_server import acquire_fork_server
with acquire_fork_server() as it:
    print(it.pid, flush=True)
    input()
"""


ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def worker() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "worker.py"
        path.write_text(WORKER)
        yield path


@pytest.fixture(scope="module")
def warm(worker: Path) -> Iterator[ForkServer]:
    with acquire_fork_server(wanted=False):
        pass  # A command that another test has called in this process may have left its early server.
    with acquire_fork_server() as opened:
        assert opened is not None
        fork_worker(opened, worker)  # the first one brings Ray's settings
        yield opened


def fork_worker(opened: ForkServer, worker: Path, *arguments: str) -> dict[str, Any]:
    """Start what Ray would start, and read what its worker prints."""
    environment = {**os.environ, SOCKET_VARIABLE: opened.address, WORKER_VARIABLE: str(worker), "WANTED": "yes"}
    environment[MODULES_VARIABLE] = "rltune.algorithms.offline_data no.such.module"
    typed = [sys.executable, worker_entry.__file__, *arguments]
    done = subprocess.run(typed, env=environment, capture_output=True, text=True, check=True, timeout=120)
    child: dict[str, Any] = json.loads(done.stdout)
    return child


def refuse(key: str) -> None:
    raise ConfigError(key, 3, "", "1 or 2", f"{key}=2")


class TwoPartError(Exception):
    """An error that pickle cannot make again: its arguments are not those of its class."""

    def __init__(self, what: str, where: str) -> None:
        super().__init__(f"{what} in {where}")


def fail_in_two_parts() -> None:
    raise TwoPartError("a leak", "the hull")


def make_unpicklable(calls: str) -> Any:
    count_call(calls)
    return lambda: None


def die(calls: str) -> None:
    count_call(calls)
    os.kill(os.getpid(), signal.SIGKILL)


def count_call(calls: str) -> None:
    with Path(calls).open("a") as file:
        file.write(f"{os.getpid()}\n")


def test_a_worker_has_its_imports_done_and_is_what_ray_started(
    warm: ForkServer, worker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    forked = fork_worker(warm, worker, "--node-id", "a b")
    assert forked["warm"]
    assert forked["arguments"] == ["--node-id", "a b"]
    assert forked["folder"] == str(tmp_path)
    assert forked["wanted"] == "yes"
    assert forked["main"] == "__main__"
    assert forked["oom_score"] == "1000"


def test_each_worker_leads_a_group_in_the_fork_servers_session(warm: ForkServer, worker: Path) -> None:
    """Ray kills the group of a worker that ends: with two in one group, a trial died of an idle worker's end."""
    workers = [fork_worker(warm, worker) for _ in range(2)]
    assert [child["group"] for child in workers] == [child["pid"] for child in workers]
    assert {child["session"] for child in workers} == {os.getsid(warm.pid)}


def test_a_worker_starts_no_threads_and_has_nothing_to_finalize(warm: ForkServer, worker: Path) -> None:
    forked = fork_worker(warm, worker)
    assert (forked["threads"], forked["finalizers"]) == (1, 0)


@pytest.mark.nightly
def test_one_that_is_ended_while_it_asks_costs_no_other(warm: ForkServer, worker: Path) -> None:
    for begun in (b"", (100).to_bytes(8, "little") + b"{"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(warm.address)
            connection.sendall(begun)
    assert fork_worker(warm, worker)["warm"]


@pytest.mark.nightly
def test_one_that_is_stopped_while_it_asks_holds_up_no_other(warm: ForkServer, worker: Path) -> None:
    for begun in (b"", (100).to_bytes(8, "little") + b"{"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(warm.address)
            connection.sendall(begun)
            assert fork_worker(warm, worker)["warm"]


def test_workers_draw_numbers_of_their_own(warm: ForkServer, worker: Path) -> None:
    one, other = fork_worker(warm, worker), fork_worker(warm, worker)
    assert one["pid"] != other["pid"]
    assert not set(map(str, one["numbers"])) & set(map(str, other["numbers"]))
    assert one["torch"] != other["torch"]


def test_a_call_is_answered_by_another_process_that_starts_no_ray(warm: ForkServer) -> None:
    assert warm.call(os.getpid) != os.getpid()
    assert warm.call(os.getsid, 0) == os.getsid(warm.pid)
    assert warm.call(sorted, range(100_000)) == list(range(100_000))  # more than one read of a socket


def test_what_a_call_raises_arrives_in_its_three_parts(warm: ForkServer) -> None:
    with pytest.raises(ConfigError) as caught:
        warm.call(refuse, "budget.trials")
    assert (caught.value.allowed, caught.value.fix) == ("1 or 2", "budget.trials=2")


def test_an_error_that_cannot_be_pickled_arrives_by_its_words(warm: ForkServer) -> None:
    with pytest.raises(RuntimeError, match=r"^TwoPartError: \S"):
        warm.call(fail_in_two_parts)


def start_simulator(path: str) -> None:
    """As a simulator's package does: what it has started is ended when Python ends."""
    atexit.register(Path(path).touch)


def test_what_a_call_registers_for_the_end_is_done(warm: ForkServer, tmp_path: Path) -> None:
    warm.call(start_simulator, str(tmp_path / "ended"))
    until = time.monotonic() + 10
    while not (tmp_path / "ended").exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert (tmp_path / "ended").exists()


def leave(calls: str) -> None:
    count_call(calls)
    sys.exit(3)


class Unreadable:
    """An argument whose module cannot be imported where it is read, as while its file is being edited."""

    def __init__(self, calls: str) -> None:
        self.calls = calls

    def __reduce__(self) -> Any:
        return fail_at_import, (self.calls,)


def fail_at_import(calls: str) -> None:
    count_call(calls)
    raise SyntaxError("edited")


@pytest.mark.parametrize(
    ("function", "error", "words"),
    [
        (make_unpicklable, AttributeError, "local object"),
        (die, RltuneError, "the process that ran .*die was killed by SIGKILL"),
        (leave, GuestError, r"sys\.exit"),
        (Unreadable, SyntaxError, "edited"),
    ],
)
def test_a_call_without_an_answer_is_made_once(
    function: Any, error: type[Exception], words: str, warm: ForkServer, tmp_path: Path
) -> None:
    calls = tmp_path / "calls"
    with pytest.raises(error, match=words):
        warm.call(*((str, Unreadable(str(calls))) if function is Unreadable else (function, str(calls))))
    assert len(calls.read_text().split()) == 1
    assert int(calls.read_text()) != os.getpid()


def hang(calls: str) -> None:
    count_call(calls)
    time.sleep(600)


@pytest.mark.nightly
def test_a_call_that_hangs_ends_with_a_message(warm: ForkServer, tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    with pytest.raises(RltuneError, match="hang"):
        warm.call(hang, str(calls), patience_s=2.0)
    deadline = time.monotonic() + 60
    while not (calls.exists() and calls.read_text()) and time.monotonic() < deadline:  # it may still be importing
        time.sleep(0.05)
    assert int(calls.read_text()) != os.getpid(), "called once, and not by the driver"


def describe_process(progress: Callable[[int, int], None]) -> list[Any]:
    progress(1, 2)
    print("noise")
    return [os.getpgid(0), os.getsid(0), "torch" in sys.modules]


def describe_quietly() -> list[Any]:
    return describe_process(lambda *parts: None)


def end_process(how: str) -> None:
    if how == "hang":
        with call_guest("step"):
            time.sleep(600)
    print("last words", flush=True)
    os.kill(os.getpid(), signal.SIGSEGV)


def call_child(opened: ForkServer, function: Callable[..., Any], limit_s: float = 60, **arguments: Any) -> Any:
    return Child(fork=opened.fork_child).call(f"{__name__}:{function.__name__}", arguments, limit_s=limit_s)


def test_a_forked_child_has_its_imports_done_and_a_session(warm: ForkServer) -> None:
    made, child = [], Child(fork=warm.fork_child)
    function = f"{__name__}:{describe_process.__name__}"
    answer = child.call(function, {}, limit_s=60, progress=lambda *parts: made.append(parts))
    assert answer[1:] == [child.pid, True]
    assert answer[0] != child.pid, "a group of its own, which the supervising process ends"
    assert made == [(1, 2)]
    assert not psutil.pid_exists(child.pid)


@pytest.mark.parametrize(
    ("how", "cause", "words"),
    [("crash", Cause.LOST_PROCESS, "SIGSEGV.*last words"), ("hang", Cause.STALLED, "step")],
)
def test_the_end_of_a_forked_child_is_named(how: str, cause: Cause, words: str, warm: ForkServer) -> None:
    with pytest.raises(GuestError, match=words) as caught:
        call_child(warm, end_process, limit_s=2, how=how)
    assert caught.value.cause == cause


@pytest.mark.nightly
def test_without_a_fork_server_a_child_is_started_anew(warm: ForkServer) -> None:
    with acquire_fork_server() as opened:
        assert opened is not None
        psutil.Process(opened.pid).kill()
        group, session, has_torch = call_child(opened, describe_quietly)
        assert group != session
        assert not has_torch


@pytest.mark.nightly
def test_it_is_ready_for_calls_when_it_knows_the_raylet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MODULES_VARIABLE, "")
    with acquire_fork_server() as opened:
        assert opened is not None
        opened.prepare(4711)
        assert opened.call(os.getenv, "RAY_RAYLET_PID") == "4711"


@pytest.mark.nightly
def test_without_an_answer_ray_has_its_own_worker_and_the_driver_calls_itself(worker: Path) -> None:
    with acquire_fork_server() as opened:
        assert opened is not None
        psutil.Process(opened.pid).kill()
        assert fork_worker(opened, worker, "--node-id", "1")["arguments"] == ["--node-id", "1"]
        with ThreadPoolExecutor(1) as thread:
            call = thread.submit(opened.call, os.getpid)
            with pytest.raises(TimeoutError):
                call.result(0.5)  # it would register with a Ray that is starting
            opened.report_started_ray()
            assert call.result(60) == os.getpid()
    assert not Path(opened.address).parent.exists()
    with pytest.raises(FileNotFoundError):  # nobody waits for what would be called here now
        opened.call(os.getpid)


@pytest.mark.nightly
def test_it_ends_with_a_driver_that_is_killed() -> None:
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    left = psutil.Process(int(driver.stdout.readline()))
    driver.kill()
    driver.communicate()
    deadline = time.monotonic() + 60
    while left.is_running() and left.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not left.is_running() or left.status() == psutil.STATUS_ZOMBIE


@pytest.mark.nightly
def test_one_that_was_begun_early_is_the_one_that_a_sweep_has_and_ends_where_it_wants_none() -> None:
    begin_fork_server()
    (early,) = fork_server._early
    with acquire_fork_server() as opened:
        assert opened is early
    begin_fork_server()
    (early,) = fork_server._early
    with acquire_fork_server(wanted=False) as none:
        assert none is None
    for gone in (opened, early):
        assert not psutil.pid_exists(gone.pid)
        assert not Path(gone.address).parent.exists()


@pytest.mark.nightly
def test_a_command_that_comes_to_no_sweep_leaves_none_behind(tmp_path: Path) -> None:
    typed = [sys.executable, "-m", "sweeps.run", "algo=pp0"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    ran = subprocess.run(typed, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 2, ran.stderr
    assert list(tmp_path.glob("rltune-*")) == []
