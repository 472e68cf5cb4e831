"""What a killed driver leaves running: ended by the next one, and nothing else is."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from rltune.cluster.stale_processes import (
    GONE,
    RUNNING,
    STOPPED,
    ProcessMark,
    end_stale_processes,
    is_running,
    mark_process,
)

PR_SET_CHILD_SUBREAPER = 36  # Linux's prctl
# A driver whose child leads a session, as Ray's daemons do, and has a child of its own, as the raylet has workers. The
# worker itself says that it runs: right after it was started, Linux shows an empty command line of it for a moment.
DRIVER = """
import dataclasses, json, subprocess, sys, time
from rltune.cluster import stale_processes
leader = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, sys, time\\n"
     "work = 'import os, time; print(os.getpid(), flush=True); time.sleep(600)'\\n"
     "subprocess.Popen([sys.executable, '-c', work, sys.argv[2]])\\n"
     "time.sleep(600)", "raylet", sys.argv[1]], start_new_session=True, stdout=subprocess.PIPE, text=True)
worker = int(leader.stdout.readline())
print(leader.pid, worker, flush=True)
print(json.dumps([dataclasses.asdict(mark) for mark in stale_processes.list_sessions()]), flush=True)
time.sleep(600)
"""


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.fixture
def driver(request):
    """A driver that runs, with its Ray: its process, the numbers of the others, and the sessions that it records."""
    name = getattr(request, "param", "ray::worker")
    process = subprocess.Popen([sys.executable, "-c", DRIVER, name], stdout=subprocess.PIPE, text=True)
    pids = [int(word) for word in process.stdout.readline().split()]
    yield process, pids, [ProcessMark(**mark) for mark in json.loads(process.stdout.readline())]
    process.kill()
    process.wait()
    for pid in pids:
        if lives(pid):
            os.kill(pid, signal.SIGKILL)


def kill(process):
    process.kill()
    process.wait()


def test_what_a_killed_driver_left_is_gone_before_the_next_one_starts_its_own(driver):
    process, pids, sessions = driver
    kill(process)
    assert all(map(lives, pids))
    assert end_stale_processes(sessions) == 2
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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("driver", "num_ended"), [*((n, 1) for n in ENDED), *((n, 0) for n in SPARED)], indirect=["driver"]
)
def test_of_a_session_without_its_leader_only_rays_end(driver, num_ended, adopt_orphans):
    process, (leader, worker), sessions = driver
    kill(process)
    os.kill(leader, signal.SIGKILL)
    os.waitpid(leader, 0)  # otherwise its remains would still prove the session
    assert end_stale_processes(sessions) == num_ended
    assert lives(worker) == (not num_ended)


OTHERS = {
    "another machine": {"boot": "x"},
    "another container": {"pid_namespace": "x"},
    "a later one": {"started": "1"},
}


@pytest.mark.slow
@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_processes_that_only_have_the_same_number_are_left_alone(driver, changes):
    process, pids, sessions = driver
    kill(process)
    assert end_stale_processes([replace(session, **changes) for session in sessions]) == 0
    assert all(map(lives, pids))


def test_a_process_is_known_by_its_start_not_by_a_clock():
    child = subprocess.Popen(["sleep", "600"])
    mark = mark_process(psutil.Process(child.pid))
    assert ProcessMark(**mark).find_state() == RUNNING
    child.send_signal(signal.SIGSTOP)
    os.waitpid(child.pid, os.WUNTRACED)
    assert ProcessMark(**mark).find_state() == STOPPED
    assert is_running(mark)
    assert ProcessMark(**{**mark, "boot": "another"}).find_state() is None
    child.kill()
    child.wait()
    assert ProcessMark(**mark).find_state() == GONE
    assert not is_running(mark)
