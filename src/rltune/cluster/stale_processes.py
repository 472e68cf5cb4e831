"""End what a killed driver left running, before another driver starts its own Ray.

Ray's daemons end with their driver, its workers a moment later, its agents much later (Ray 2.60). A worker that still
writes a checkpoint must not meet its successor. The driver records the sessions of its Ray's processes. A process
belongs to one only by session number and starting time together, since the system uses numbers again. Runs in the
driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

FILE = ".processes"
CLOCK_S = 2.0  # starting times are computed from the clock, which may be set meanwhile
PATIENCE_S = 10.0
# An argument by which a process of our Ray is known: a worker's title, a file of Ray's, or our fork server.
RAY_ARGUMENT = re.compile(r"^ray::|(?:site|dist)-packages/ray/|^rltune\.cluster\.fork_server_main$|/rltune/cluster/")


def record_processes(folder: Path) -> None:
    """Write down this host, this driver and the sessions that its Ray leads, for the driver that comes after it."""
    me = psutil.Process()
    led = [mark_process(child) for child in me.children() if _session_of(child.pid) == child.pid]
    content = {"host": socket.gethostname(), "driver": mark_process(me), "sessions": [mark for mark in led if mark]}
    draft = folder / f"{FILE}-draft"
    draft.write_text(json.dumps(content))
    draft.rename(folder / FILE)


def clear_record(folder: Path) -> None:
    """Remove the record: this driver ends its processes itself."""
    (folder / FILE).unlink(missing_ok=True)


def end_stale_processes(folder: Path) -> int:
    """End what the last driver of this folder has left running on this host, and wait until it is gone.

    Returns:
        The number of these processes. 0 as well when that driver still runs, as in a notebook, or ran on another host:
        there the same numbers are other processes.
    """
    try:
        content = json.loads((folder / FILE).read_text())
        sessions = {int(mark["pid"]): float(mark["started"]) for mark in content["sessions"]}
        if content["host"] != socket.gethostname() or is_running(content["driver"]):
            return 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # no record, or one cut short by the kill: Ray's own care has to do
    stale = [process for process in psutil.process_iter() if _belongs_to(process, sessions)]
    for process in stale:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_is_alive, stale)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(stale)


def _belongs_to(process: psutil.Process, sessions: Mapping[int, float]) -> bool:
    """Return whether a process of this user is in one of these sessions, given by number and starting time."""
    number = _session_of(process.pid)
    if number not in sessions or process.pid == os.getpid():
        return False
    try:
        if process.uids().real != os.getuid() or not _is_alive(process):
            return False
        leader = process if process.pid == number else psutil.Process(number)
        return bool(abs(leader.create_time() - sessions[number]) < CLOCK_S)
    except psutil.NoSuchProcess:  # The leader is gone. Its number stays taken while the session has members.
        with contextlib.suppress(psutil.Error):
            later = process.create_time() > sessions[number] - CLOCK_S
            return later and any(map(RAY_ARGUMENT.search, process.cmdline()))
        return False
    except psutil.Error:
        return False


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def mark_process(process: psutil.Process) -> dict[str, Any]:
    """Return what tells a process from a later one with its number; empty when it is gone."""
    try:
        return {"pid": process.pid, "started": process.create_time()}
    except psutil.Error:
        return {}


def is_running(mark: Mapping[str, Any]) -> bool:
    """Return whether the process that was recorded still runs."""
    try:
        process = psutil.Process(int(mark["pid"]))
        return abs(process.create_time() - float(mark["started"])) < CLOCK_S and _is_alive(process)
    except psutil.Error:
        return False


def _session_of(pid: int) -> int:
    """Return a process's session number; -1 when the process is gone."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1
