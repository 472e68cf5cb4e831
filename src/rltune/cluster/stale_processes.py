"""Identify processes across restarts, and kill those of a dead driver before the next driver starts Ray.

Ray's daemons end with their driver, its workers a moment later, its agents much later (Ray 2.60). A worker that still
writes a checkpoint must not meet its successor. A driver records the sessions of its Ray's processes in its lease.
A process is known by machine, number and start time together, since the system uses numbers again. Start times are
counted in ticks since the machine started, so that a clock that is set changes none of them. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

GONE, STOPPED, RUNNING = "gone", "stopped", "running"
PATIENCE_S = 10.0
# Matches a command-line argument of a Ray process: a worker's title, a file of Ray, or the fork server.
RAY_ARGUMENT = re.compile(r"^ray::|(?:site|dist)-packages/ray/|^rltune\.cluster\.fork_server_main$|/rltune/cluster/")


@dataclass(frozen=True)
class ProcessMark:
    """Identifies a process among all processes on all machines, also after its process id was used again.

    Attributes:
        boot: Changes whenever the machine starts, and differs between machines.
        pid_namespace: Containers of one machine number their processes independently.
        started: When the process started, in ticks since the machine did.
    """

    boot: str
    pid_namespace: str
    pid: int
    started: str

    def find_state(self) -> str | None:
        """Return RUNNING, STOPPED (by SIGSTOP) or GONE; None for processes on other machines or in other containers."""
        if (self.boot, self.pid_namespace) != (read_boot_id(), read_pid_namespace()):
            return None
        state, started = _read_state(self.pid)
        return state if started == self.started else GONE


def mark_process(process: psutil.Process) -> dict[str, Any]:
    """Return the fields of the `ProcessMark` of a process of this machine; empty if it has ended."""
    state, started = _read_state(process.pid)
    if state == GONE:
        return {}
    return asdict(ProcessMark(read_boot_id(), read_pid_namespace(), process.pid, started))


def is_running(mark: Mapping[str, Any]) -> bool:
    """Return whether the process of a mark that `mark_process` made has not ended on this machine."""
    return ProcessMark(**mark).find_state() in (RUNNING, STOPPED)


@functools.cache
def read_boot_id() -> str:
    """Return an identifier of this machine's present boot, which is a new one after each restart."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return socket.gethostname()


@functools.cache
def read_pid_namespace() -> str:
    """Return an identifier of this process's pid namespace; empty on systems without such namespaces."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def _read_state(pid: int) -> tuple[str, str]:
    """Return a process's state, and its start time in ticks since the machine started."""
    try:
        if sys.platform != "linux":
            process = psutil.Process(pid)
            status, started = process.status(), str(process.create_time())
            is_gone, is_stopped = status == psutil.STATUS_ZOMBIE, status == psutil.STATUS_STOPPED
        else:  # Not by psutil, which derives start times from the wall clock, and that may be changed.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            started, is_gone, is_stopped = fields[19], fields[0] in "ZXx", fields[0] in "Tt"
    except (OSError, psutil.Error):
        return GONE, ""
    return GONE if is_gone else STOPPED if is_stopped else RUNNING, started


def list_sessions() -> tuple[ProcessMark, ...]:
    """List the sessions whose leaders are children of this process: those of the Ray that it started."""
    led = [mark_process(child) for child in psutil.Process().children() if _session_of(child.pid) == child.pid]
    return tuple(ProcessMark(**mark) for mark in led if mark)


def end_stale_processes(sessions: Sequence[ProcessMark]) -> int:
    """Kill the processes that a dead driver left on this machine, and wait until they have ended.

    Args:
        sessions: The sessions that the driver has recorded. Those of other machines are left alone.

    Returns:
        The number of processes that were ended.
    """
    here = (read_boot_id(), read_pid_namespace())
    led = {session.pid: session.started for session in sessions if (session.boot, session.pid_namespace) == here}
    if not led:
        return 0
    stale = [process for process in psutil.process_iter() if _belongs_to(process, led)]
    for process in stale:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while any(_read_state(process.pid)[0] != GONE for process in stale) and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(stale)


def _belongs_to(process: psutil.Process, sessions: Mapping[int, str]) -> bool:
    """Return whether a process belongs to this user and to one of the sessions, given by leader pid and start time."""
    number = _session_of(process.pid)
    if number not in sessions or process.pid == os.getpid():
        return False
    try:
        state, started = _read_state(process.pid)
        if state == GONE or process.uids().real != os.getuid():
            return False
        _, leader_started = _read_state(number)
        if leader_started:
            return leader_started == sessions[number]
        # The leader has ended, but its pid is not used again while the session has members. A member must be younger
        # than the leader and a Ray process.
        return float(started) >= float(sessions[number]) and any(map(RAY_ARGUMENT.search, process.cmdline()))
    except psutil.Error:
        return False


def _session_of(pid: int) -> int:
    """Return the session id of a process; -1 if it has ended."""
    try:
        return os.getsid(pid)
    except OSError:
        return -1
