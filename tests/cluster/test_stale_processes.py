"""What a killed driver leaves running: ended by the next one, and nothing else is."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest

from rltune.cluster import stale_processes
from rltune.cluster.stale_processes import end_stale_processes

# A driver whose child leads a session, as Ray's daemons do, and has a child of its own, as the raylet has workers.
DRIVER = """
import subprocess, sys, time
from pathlib import Path
from rltune.cluster import stale_processes
leader = subprocess.Popen(
    [sys.executable, "-c", "import subprocess, sys, time\\n"
     "print(subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)', 'ray::worker']).pid, flush=True)\\n"
     "time.sleep(600)", "raylet"], start_new_session=True, stdout=subprocess.PIPE, text=True)
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
def driver(tmp_path):
    """A driver that runs, with its Ray: the processes' numbers, and how to kill it."""
    process = subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True)
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


def test_a_worker_whose_daemon_is_gone_already_is_found_by_its_session(driver, tmp_path):
    process, (leader, worker) = driver
    process.kill()
    process.wait()
    os.kill(leader, signal.SIGKILL)
    deadline = time.monotonic() + 20
    while lives(leader) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert end_stale_processes(tmp_path) == 1
    assert not lives(worker)


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
