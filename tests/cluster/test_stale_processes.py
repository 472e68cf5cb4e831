"""What a killed driver leaves running: ended by the next one, and nothing else is."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from rltune.cluster import stale_processes
from rltune.cluster.stale_processes import end_stale_processes

PR_SET_CHILD_SUBREAPER = 36  # Linux's prctl
# A driver whose child leads a session, as Ray's daemons do, and has a child of its own, as the raylet has workers.
DRIVER = """
import subprocess, sys, time
from pathlib import Path
from rltune.cluster import stale_processes
leader = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, sys, time\\n"
     "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', sys.argv[2]]).pid, flush=True)\\n"
     "time.sleep(600)", "raylet", sys.argv[2]], start_new_session=True, stdout=subprocess.PIPE, text=True)
worker = int(leader.stdout.readline())
stale_processes.record_processes(Path(sys.argv[1]))
print(leader.pid, worker, flush=True)
time.sleep(600)
"""


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def driver(tmp_path, request):
    """A driver that runs, with its Ray: the processes' numbers, and how to kill it."""
    name = getattr(request, "param", "ray::worker")
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path), name], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in process.stdout.readline().split()]
    yield process, pids
    process.kill()
    process.wait()
    for pid in pids:
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def test_what_a_killed_driver_left_is_gone_before_the_next_one_starts_its_own(driver, tmp_path):
    process, pids = driver
    process.kill()
    process.wait()
    assert all(map(lives, pids))
    assert end_stale_processes(tmp_path) == 2
    assert not any(map(lives, pids))


@pytest.fixture
def adopt_orphans():
    """Become the parent of processes whose parents end, as a container's first process is."""
    if sys.platform != "linux":
        pytest.skip("only Linux lets a process adopt others")
    prctl = ctypes.CDLL(None).prctl
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    yield
    prctl(PR_SET_CHILD_SUBREAPER, 0)


ENDED = ["ray::worker", "/usr/lib/python3/dist-packages/ray/dashboard/agent.py", "/x/rltune/cluster/worker_entry.py"]
SPARED = ["array", "/home/ray/notes.py", "notray::x"]


@pytest.mark.parametrize(
    ("driver", "num_ended"), [*((n, 1) for n in ENDED), *((n, 0) for n in SPARED)], indirect=["driver"]
)
def test_of_a_session_without_its_leader_only_rays_end(driver, num_ended, tmp_path, adopt_orphans):
    process, (leader, worker) = driver
    process.kill()
    process.wait()
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)  # otherwise its remains would still prove the session
    assert end_stale_processes(tmp_path) == num_ended
    assert lives(worker) == (not num_ended)


def test_nothing_is_ended_for_a_driver_of_another_host(driver, tmp_path):
    process, pids = driver
    process.kill()
    process.wait()
    record = tmp_path / stale_processes.FILE
    record.write_text(json.dumps({**json.loads(record.read_text()), "host": "elsewhere"}))
    assert end_stale_processes(tmp_path) == 0
    assert all(map(lives, pids))


def test_nothing_is_ended_while_that_driver_lives(driver, tmp_path):
    _, pids = driver
    assert end_stale_processes(tmp_path) == 0
    assert all(map(lives, pids))


def test_another_process_that_has_got_the_same_number_is_left_alone(driver, tmp_path):
    process, pids = driver
    process.kill()
    process.wait()
    content = json.loads((tmp_path / stale_processes.FILE).read_text())
    for mark in content["sessions"]:
        mark["started"] -= 3600
    (tmp_path / stale_processes.FILE).write_text(json.dumps(content))
    assert end_stale_processes(tmp_path) == 0
    assert all(map(lives, pids))


@pytest.mark.parametrize("content", [None, "", '{"driver": {"pid"', "[]"])
def test_without_a_whole_record_nothing_is_ended(content, tmp_path):
    if content is not None:
        (tmp_path / stale_processes.FILE).write_text(content)
    assert end_stale_processes(tmp_path) == 0
