"""Read the total and free memory of this machine, and the peak of this process, in units of 10^9 bytes."""

from __future__ import annotations

import resource
import sys
from pathlib import Path

import psutil

GB = 1e9
_GROUP = Path("/sys/fs/cgroup")  # Where Linux shows the container's control group (version 2).


def total_gb() -> float:
    """Return the total memory of this machine, or the memory limit of the container if that is less."""
    total: int = psutil.virtual_memory().total
    limit = _read_group("memory.max")
    return (total if limit is None else min(total, limit)) / GB


def available_gb() -> float:
    """Return the memory that is free without swapping, on this machine or within the container's limit."""
    free: int = psutil.virtual_memory().available
    limit, used = _read_group("memory.max"), _read_group("memory.current")
    return (free if limit is None or used is None else min(free, limit - used)) / GB


def peak_gb() -> float:
    """Return the peak memory that this process has used, in GB."""
    status = Path("/proc/self/status")
    if status.is_file():
        # Unlike VmHWM, ru_maxrss includes the peak memory of the parent process on Linux.
        fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
        return int(fields["VmHWM"].split()[0]) * 1024 / GB
    unit = 1 if sys.platform == "darwin" else 1024  # ru_maxrss is in bytes on macOS and in KiB elsewhere.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GB


def _read_group(name: str) -> int | None:
    """Read a number from the container's control group; None without such a group or without a limit ("max")."""
    try:
        return int((_GROUP / name).read_text())
    except (OSError, ValueError):
        return None
