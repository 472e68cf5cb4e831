"""What a killed driver leaves running: its Ray's processes, ended before another driver starts its own.

Ray's daemons die with their driver, its workers a moment later, its agents much later (Ray 2.60); a worker that still
writes a checkpoint must not meet its successor. A process counts only by its session's number and its starting time
together, since numbers come round again. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil

FILE = ".processes"
CLOCK_S = 2.0  # starting times are computed from the clock, which may be set meanwhile
PATIENCE_S = 10.0


def record_processes(folder: Path) -> None:
    """Note this driver and the sessions that its Ray leads, for whoever comes after it."""
    me = psutil.Process()
    led = [_mark(child) for child in me.children() if _session(child.pid) == child.pid]
    content = {"driver": _mark(me), "sessions": [mark for mark in led if mark]}
    draft = folder / f"{FILE}-draft"
    draft.write_text(json.dumps(content))
    draft.rename(folder / FILE)


def clear_record(folder: Path) -> None:
    """Forget: this driver ends its processes itself."""
    (folder / FILE).unlink(missing_ok=True)


def end_stale_processes(folder: Path) -> int:
    """End what the last driver of this folder has left running, and wait until it is gone.

    Returns:
        How many processes that were; 0 as well when that driver still runs, as in a notebook.
    """
    try:
        content = json.loads((folder / FILE).read_text())
        sessions = {int(mark["pid"]): float(mark["started"]) for mark in content["sessions"]}
        if _is(content["driver"]):
            return 0
    except (OSError, ValueError, KeyError, TypeError):
        return 0  # none, or cut short by the kill: Ray's own care has to do
    found = [process for process in psutil.process_iter() if _belongs(process, sessions)]
    for process in found:
        with contextlib.suppress(psutil.Error, ProcessLookupError):
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + PATIENCE_S
    while any(map(_lives, found)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return len(found)


def _belongs(process: psutil.Process, sessions: Mapping[int, float]) -> bool:
    number = _session(process.pid)
    if number not in sessions or process.pid == os.getpid():
        return False
    try:
        if process.uids().real != os.getuid() or not _lives(process):
            return False
        leader = process if process.pid == number else psutil.Process(number)
        return bool(abs(leader.create_time() - sessions[number]) < CLOCK_S)
    except psutil.NoSuchProcess:  # its leader is gone; the number stays taken for as long as the session has members
        with contextlib.suppress(psutil.Error):
            return bool(process.create_time() > sessions[number] - CLOCK_S) and "ray" in " ".join(process.cmdline())
        return False
    except psutil.Error:
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _mark(process: psutil.Process) -> dict[str, Any]:
    try:
        return {"pid": process.pid, "started": process.create_time()}
    except psutil.Error:
        return {}


def _is(mark: Mapping[str, Any]) -> bool:
    """Whether the process that was noted still runs."""
    try:
        process = psutil.Process(int(mark["pid"]))
        return abs(process.create_time() - float(mark["started"])) < CLOCK_S and _lives(process)
    except psutil.Error:
        return False


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except OSError:
        return -1
