"""Living copies of environments never share a number, a port, a folder or a server, whichever process has them."""

from __future__ import annotations

import contextlib
import gc
import itertools
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import pytest

from rltune.envs import copies
from rltune.envs.build import is_plain, make_env, make_training_env, make_vector_env
from rltune.envs.copies import Copy
from rltune.envs.facts import EnvFacts
from rltune.envs.guest import RUNNING
from rltune.envs.spec import EnvSpec, spec_of
from rltune.errors import ConfigError, GuestError, UnavailableError
from rltune.policies.evaluation import Copies

PORTS = {"port": ["port", 5005], "worker_id": "number", "workdir": "folder", "server": ["one_of", "a:1", "b:1"]}


class Numbered(gymnasium.Env[Any, Any]):
    """An environment that keeps its arguments."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, **kwargs: Any) -> None:
        self.kwargs = kwargs
        if kwargs.get("fails"):
            raise RuntimeError("no licence")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.observation_space.sample(), 0.0, False, True, {}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of locks for each test."""
    monkeypatch.setenv(copies.VARIABLE, str(tmp_path / "copies"))
    monkeypatch.setattr(copies, "WAIT_S", 0.3)
    if "Numbered-v0" not in gymnasium.registry:
        gymnasium.register("Numbered-v0", entry_point=Numbered)
    return tmp_path / "copies"


def specify(per_copy: dict[str, Any] | None = None, **fields: Any) -> EnvSpec:
    return spec_of({"id": "Numbered-v0", "per_copy": per_copy or {"index": "number"}, **fields})


def arguments_of(env: Any) -> dict[str, Any]:
    kwargs: dict[str, Any] = env.unwrapped.kwargs
    return kwargs


def run_python(code: str, *arguments: Any, **kwargs: Any) -> subprocess.Popen[str]:
    """Start a process that has ``hold(spec, count)``, which takes numbers and prints them."""
    source = """
import json, os, sys, time
from rltune.envs.copies import Copy, take_copies, wait_for_copies
from rltune.envs.spec import spec_of
def hold(spec, count):
    copies = take_copies(spec_of({"id": "Numbered-v0", **spec}), count)
    print(json.dumps([copy.number for copy in copies]), flush=True)
    return copies
"""
    typed = [sys.executable, "-c", source + code, *map(str, arguments)]
    return subprocess.Popen(typed, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **kwargs)


def read_numbers(process: subprocess.Popen[str]) -> list[int]:
    assert process.stdout is not None
    numbers: list[int] = json.loads(process.stdout.readline())
    return numbers


@contextlib.contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def until(is_so: Callable[[], bool], limit_s: float = 10.0) -> None:
    end = time.monotonic() + limit_s
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_each_living_copy_has_arguments_of_its_own(folder):
    spec = specify(PORTS)
    first, second = make_env(spec), make_env(spec)
    assert [arguments_of(env)["worker_id"] for env in (first, second)] == [0, 1]
    assert [arguments_of(env)["port"] for env in (first, second)] == [5005, 5006]
    assert [arguments_of(env)["server"] for env in (first, second)] == ["a:1", "b:1"]
    paths = [Path(arguments_of(env)["workdir"]) for env in (first, second)]
    assert len(set(paths)) == 2
    assert all(path.is_dir() for path in paths)
    assert paths[0].stat().st_mode & 0o777 == 0o700
    first.close()
    assert not paths[0].exists()
    assert paths[1].is_dir()
    with contextlib.closing(make_env(spec)) as third:
        assert arguments_of(third)["worker_id"] == 0
    second.close()


def test_garbage_and_failed_copies_free_their_numbers():
    spec = specify(PORTS)
    env = make_env(spec)
    del env
    gc.collect()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="no licence"):
            make_env(spec_of({**spec.to_dict(), "kwargs": {"fails": True}}))
    assert [copy.number for copy in copies.take_copies(spec, 2)] == [0, 1]


def test_a_close_that_raises_frees_the_number(monkeypatch):
    env = make_env(specify())
    monkeypatch.setattr(Numbered, "close", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        env.close()
    assert Copy(specify()).number == 0


def test_killed_processes_free_numbers_and_folders(folder):
    per_copy = {"index": "number", "workdir": "folder"}
    code = """
copies = hold(json.loads(sys.argv[1]), 3)
print(json.dumps([len(copy.make_arguments()) for copy in copies]), flush=True)
time.sleep(60)
"""
    with ended(run_python(code, json.dumps({"per_copy": per_copy}))) as process:
        assert read_numbers(process) == [0, 1, 2]
        assert read_numbers(process) == [2, 2, 2]
        assert sorted(path.name for path in folder.iterdir()) == ["0", "1", "2", "locks"]
        other = Copy(specify(per_copy))
        assert other.number == 3
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert Copy(specify()).number == 0
        assert sorted(path.name for path in folder.iterdir()) == ["locks"]
        other.release()


@pytest.mark.parametrize("how", ["os.fork", "multiprocessing", "subprocess", "subprocess that inherits", "clone in C"])
def test_children_that_outlive_a_copy_do_not_keep_its_number(how, folder):
    code = """
copies = hold({"per_copy": {"index": "number", "workdir": "folder"}}, 2)
def sleep():
    print(json.dumps([os.getpid()]), flush=True)
    time.sleep(30)
if sys.argv[1] == "os.fork":
    os.fork() or sleep()
elif sys.argv[1] == "multiprocessing":
    import multiprocessing
    multiprocessing.get_context("fork").Process(target=sleep).start()
elif sys.argv[1] == "clone in C":
    import ctypes
    ctypes.CDLL(None).fork() or sleep()
else:
    import subprocess
    child = subprocess.Popen(["sleep", "30"], close_fds="inherits" not in sys.argv[1])
    print(json.dumps([child.pid]), flush=True)
sys.stdin.readline()
os.kill(os.getpid(), 9)
"""
    with ended(run_python(code, how)) as process:
        assert read_numbers(process) == [0, 1]
        (child,) = read_numbers(process)
        try:
            assert Copy(specify()).number == 2
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            process.wait(10)
            os.kill(child, 0)
            held = Copy(specify())
            assert held.number == 0
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_process_frees_nothing_of_its_parent():
    env = make_env(specify(PORTS))
    if not (child := os.fork()):
        with contextlib.suppress(BaseException):
            env.close()
            os._exit(0 if make_env(specify(PORTS)).unwrapped.kwargs["worker_id"] == 1 else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert Path(arguments_of(env)["workdir"]).is_dir()
    assert Copy(specify()).number == 1
    env.close()


def test_all_numbers_of_a_vector_environment_or_none():
    spec = specify(max_copies=4)
    held = Copy(spec)
    assert held.number == 0
    with pytest.raises(UnavailableError) as refused:
        make_vector_env(spec, 4)
    assert (refused.value.key, refused.value.value) == ("env.max_copies", 4)
    assert len(copies.take_copies(spec, 3)) == 3


def test_takers_that_want_more_than_there_is_take_turns():
    code = """
spec = spec_of({"id": "Numbered-v0", "max_copies": 4})
for turn in range(2):
    with wait_for_copies(spec, 4, 60.0):
        copies = [Copy(spec, is_queued=True) for _ in range(4)]
        for copy in copies:  # One after the other, as env runners and processes of copies do.
            copy.number
            time.sleep(0.02)
    print(json.dumps([time.monotonic()]), flush=True)
    time.sleep(0.1)
    for copy in copies:
        copy.release()
"""
    with contextlib.ExitStack() as stack:
        takers = [stack.enter_context(ended(run_python(code))) for _ in range(3)]
        times = sorted(time for taker in takers for _ in range(2) for time in read_numbers(taker))
        assert [taker.wait(10) for taker in takers] == [0, 0, 0]
        assert min(later - sooner for sooner, later in itertools.pairwise(times)) > 0.1


def test_who_waits_longer_comes_before_who_comes_later():
    spec = specify(max_copies=1)
    held = Copy(spec)
    assert held.number == 0
    code = """
with wait_for_copies(spec_of({"id": "Numbered-v0", "max_copies": 1}), 1, 60.0, lambda: print("[0]", flush=True)):
    print(json.dumps([1]), flush=True)
    sys.stdin.readline()
"""
    with ended(run_python(code)) as other:
        assert read_numbers(other) == [0]  # It waits.
        held.release()
        with pytest.raises(UnavailableError):
            Copy(spec).number  # noqa: B018 - takes it
        until(lambda: read_numbers(other) == [1])
        assert other.stdin is not None
        other.stdin.write("\n")
        other.stdin.flush()
        assert Copy(spec).number == 0


def test_a_list_bounds_copies_whatever_numbers_others_have():
    others = copies.take_copies(specify(), 3)
    listed = specify({"server": ["one_of", "a", "b", "d"]})
    made = copies.take_copies(listed, 3)
    assert [copy.number for copy in made] == [3, 4, 5]
    assert [copy.make_arguments()["server"] for copy in made] == ["a", "b", "d"]
    assert not Copy(listed).take_if_free()
    overlapping = Copy(specify({"host": ["one_of", "b", "c"]}))
    assert overlapping.make_arguments()["host"] == "c", "no two copies share an element of two lists"
    with pytest.raises(ConfigError) as refused:
        copies.take_copies(listed, 4)
    assert refused.value.key == "env.per_copy.server"
    assert len(others) == 3


def test_ranges_of_ports_that_overlap_never_meet():
    spec = specify({"first": ["port", 5005], "second": ["port", 5007]})
    held = [Copy(spec) for _ in range(6)]
    ports = [port for copy in held for port in copy.make_arguments().values()]
    assert len(set(ports)) == 12


def test_all_copies_that_the_limit_allows_can_be_had_at_once():
    spec = specify({"first": ["port", 65530], "second": ["port", 65531]})
    assert spec.copy_limit == ("env.per_copy.second", 3)
    assert len(copies.take_copies(spec, 3)) == 3
    with pytest.raises(ConfigError) as refused:
        copies.take_copies(spec, 4)
    assert refused.value.key == "env.per_copy.second"


def test_a_wait_is_one_call_that_began_when_it_began(monkeypatch):
    begun: list[float] = []
    monkeypatch.setattr(RUNNING, "on_begin", lambda call: begun.append(RUNNING.since))
    held = Copy(specify(max_copies=1))
    assert held.number == 0
    with pytest.raises(UnavailableError):
        copies.take_copies(specify(max_copies=1), 1)
    assert len(begun) > 1
    assert len(set(begun)) == 1


def test_a_copy_that_is_made_again_keeps_its_number():
    copy = Copy(specify(PORTS))
    first = copy.make_arguments()
    Path(first["workdir"], "stale").touch()
    other = Copy(specify(PORTS))
    assert other.number == 1
    assert copy.make_arguments() == first
    assert not list(Path(first["workdir"]).iterdir())


def test_numbered_environments_stay_in_their_process():
    env, copy = make_env(specify()), Copy(specify())
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(env.close)
    assert pickle.loads(pickle.dumps(copy)).spec == copy.spec
    assert copy.number == 1
    with pytest.raises(pickle.PicklingError):
        pickle.dumps(copy)


def test_threads_of_a_process_share_no_number():
    made: list[Copy] = []
    threads = [threading.Thread(target=lambda: made.append(_taken(Copy(specify())))) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(copy.number for copy in made) == list(range(16))


def _taken(copy: Copy) -> Copy:
    assert copy.take_if_free()
    return copy


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv(copies.VARIABLE, "/proc/nowhere")
    with pytest.raises(ConfigError) as refused:
        make_env(specify())
    assert refused.value.key == copies.VARIABLE


@pytest.mark.parametrize(
    ("per_copy", "kwargs", "key"),
    [
        ({"port": "ports"}, {}, "env.per_copy.port"),
        ({"port": "port"}, {}, "env.per_copy.port"),
        ({"port": ["port"]}, {}, "env.per_copy.port"),
        ({"port": ["port", 0]}, {}, "env.per_copy.port"),
        ({"port": ["port", "5005"]}, {}, "env.per_copy.port"),
        ({"port": ["port", 5005, 7]}, {}, "env.per_copy.port"),
        ({"index": ["number"]}, {}, "env.per_copy.index"),
        ({"server": "one_of"}, {}, "env.per_copy.server"),
        ({"server": ["one_of"]}, {}, "env.per_copy.server"),
        ({"server": []}, {}, "env.per_copy.server"),
        ({"server": 3}, {}, "env.per_copy.server"),
        ({"server": None}, {}, "env.per_copy.server"),
        ({"index": "number"}, {"index": 3}, "env.kwargs.index"),
        ({"port": ["port", 5005], "prot": ["port", 5005]}, {}, "env.per_copy.prot"),
        ({"port": ["one_of", 5005, 5005]}, {}, "env.per_copy.port"),
        ({"server": ["one_of", "a", "b"], "other": ["one_of", "c", "b"]}, {}, "env.per_copy.other"),
    ],
)
def test_a_wrong_form_is_refused_with_its_key(per_copy, kwargs, key):
    with pytest.raises(ConfigError) as refused:
        spec_of({"id": "Numbered-v0", "per_copy": per_copy, "kwargs": kwargs})
    assert refused.value.key == key
    assert refused.value.allowed
    assert refused.value.fix


def test_copies_belong_to_the_specification_and_not_to_its_digest():
    spec = specify(PORTS, max_copies=3)
    assert spec_of(json.loads(json.dumps(spec.to_dict()))).to_dict() == spec.to_dict()
    assert spec.digest == spec_of({"id": "Numbered-v0"}).digest
    assert spec.copy_limit == ("env.per_copy.server", 2)
    assert not is_plain(spec, EnvFacts(Numbered.observation_space, Numbered.action_space))
    assert "per_copy" not in spec_of({"id": "Numbered-v0"}).to_dict()


def test_classes_for_rllib_get_a_context_with_their_place():
    spec = spec_of({"id": "Numbered-v0", "kwargs": {"env_config": {"length": 8}}})
    assert not is_plain(spec, EnvFacts(Numbered.observation_space, Numbered.action_space))
    env = make_env(spec, Copy(spec, worker_index=2, vector_index=3))
    context = arguments_of(env)["env_config"]
    assert (context["length"], context.worker_index, context.vector_index) == (8, 2, 3)
    envs = make_vector_env(spec, 3)
    assert [arguments_of(env)["env_config"].vector_index for env in envs.envs] == [0, 1, 2]  # type: ignore[attr-defined]


def test_a_failed_copy_that_is_made_again_keeps_its_number(monkeypatch):
    spec = specify(PORTS, restarts=2)
    first, second = (make_training_env(spec, None, None, Copy(spec)) for _ in range(2))
    first.reset(seed=0)
    monkeypatch.setattr(Numbered, "step", lambda self, action: 1 / 0)
    assert first.step(0)[3], "its episode is cut"
    assert [arguments_of(env)["worker_id"] for env in (first, second)] == [0, 1]


def test_an_evaluation_plays_with_the_copies_that_are_free():
    spec = specify(max_copies=2)
    held = Copy(spec)
    assert held.number == 0
    policy = SimpleNamespace(info={}, observation_space=Numbered.observation_space, action_space=Numbered.action_space)
    with Copies(5) as shared:
        assert len(shared.take(policy, spec.to_dict(), 5, lambda: None)) == 1
        held.release()
        assert len(shared.take(policy, spec.to_dict(), 5, lambda: None)) == 2
    assert len(copies.take_copies(spec, 2)) == 2


def test_an_evaluation_whose_second_copy_fails_names_per_copy(monkeypatch):
    policy = SimpleNamespace(info={}, observation_space=Numbered.observation_space, action_space=Numbered.action_space)
    with Copies(2) as shared:
        shared.take(policy, specify().to_dict(), 1, lambda: None)
        monkeypatch.setattr(Numbered, "__init__", lambda self, **kwargs: 1 / 0)
        with pytest.raises(GuestError) as failed:
            shared.take(policy, specify().to_dict(), 2, lambda: None)
    assert "env.per_copy" in failed.value.fix
