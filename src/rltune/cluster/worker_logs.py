"""Bound the logs of our own Ray's workers, and delete its session after a sweep that has ended well.

An environment may print at each step, and Ray keeps whatever a worker prints until somebody deletes it (2.60; its own
rotation puts a pipe before the file, in which the last words of a dying process would be lost). Runs in the driver.
"""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path

import psutil

MAX_LOGS = 5_000_000  # Bytes of the logs that are kept of processes that have ended.
MAX_LOG = 1_000_000  # Bytes to which a log may grow before its beginning is dropped.
KEPT = 100_000  # Bytes of its end that stay then; a failure's report quotes 20,000 characters.


def bound_logs(logs: Path) -> None:
    """Cut long logs of workers to their ends, and delete the oldest logs of processes that have ended.

    Args:
        logs: The folder of the logs.
    """
    sizes = []
    for path in logs.glob("*worker-*"):
        with contextlib.suppress(OSError):  # Ray moves the logs of some processes.
            status = path.stat()
            sizes.append((status.st_mtime, status.st_size, path))
    room = MAX_LOGS
    for _, size, path in sorted(sizes, reverse=True):
        if size > MAX_LOG:
            _cut(path)
        room -= min(size, MAX_LOG)
        if room < 0 and not _is_written(path):
            path.unlink(missing_ok=True)


def delete_session(logs: Path) -> None:
    """Delete the folder of an ended Ray's session, and the link to it, which Ray would not replace without it."""
    session = logs.parent
    latest = session.parent / "session_latest"
    if latest.is_symlink() and latest.readlink().name == session.name:
        latest.unlink(missing_ok=True)
    shutil.rmtree(session, ignore_errors=True)


def _cut(path: Path) -> None:
    """Drop all but the end of a file to which processes append."""
    with path.open("r+b") as file:
        file.seek(-KEPT, 2)
        end = file.read()
        file.truncate(0)
    with path.open("ab") as file:
        file.write(end)


def _is_written(path: Path) -> bool:
    """Return whether the process lives whose id ends the name of a log, such as ``worker-<id>-<job>-123.err``."""
    pid = re.search(r"[-_](\d+)\.\w+$", path.name)
    return pid is not None and psutil.pid_exists(int(pid[1]))
