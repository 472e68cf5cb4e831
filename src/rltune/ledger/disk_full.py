"""Recognize that an error was caused by a full disk, and explain what to do. Imports nothing heavy.

A sweep whose disk is full stops as if it had been interrupted. No trial is to blame for that, so none fails.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from rltune.errors import RltuneError, StudyUnavailableError
from rltune.ledger.sweep_folder import make_resume_command

DISK_FULL = "no room is left on the disk"
MIN_FREE_BYTES = 16_000_000  # With less, a disk counts as full.
SQLITE_FULL = 13  # SQLite's primary result code, which its exceptions carry.
POSTGRES_FULL = "53100"  # The SQLSTATE disk_full.


def is_disk_full(error: BaseException) -> bool:
    """Return whether an exception, or one that caused it, means that the disk is full, by its number or code.

    Its text is not searched, because it may be a user's, and so may the source lines of a traceback. Only torch's
    writer of checkpoints has no code.
    """
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and not any(cause is seen for seen in chain):
        if _has_full_code(cause):
            return True
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def has_no_room(folder: Path) -> bool:
    """Return whether the disk of a folder is full; a few blocks may be left that were too few for a file."""
    place = next((path for path in (folder, *folder.parents) if path.exists()), Path.cwd())
    return shutil.disk_usage(place).free < MIN_FREE_BYTES


def find_full_temp_folder() -> Path | None:
    """Return the folder for temporary files, where Ray has its sockets and logs, if its disk is full; else None."""
    place = Path(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir())
    return place if has_no_room(place) else None


def _has_full_code(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorcode", 0) & 0xFF == SQLITE_FULL
    if type(error) is RuntimeError:
        return "PytorchStreamWriter failed writing" in str(error)
    return getattr(error, "sqlstate", None) == POSTGRES_FULL


def make_disk_full_error(folder: Path) -> StudyUnavailableError:
    """Make the error that a sweep's disk, or the one for temporary files, is full, with the command to resume."""
    place = folder if has_no_room(folder) else find_full_temp_folder() or folder
    return StudyUnavailableError(
        f"{place}: {DISK_FULL}; everything recorded before is kept",
        "room for the ledger and the trials' checkpoints",
        f"make room in {place}, then {make_resume_command(folder)}",
    )


@contextlib.contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Replace an exception that a full disk has caused by one with advice; let all others pass.

    Args:
        folder: The sweep's folder.

    Raises:
        StudyUnavailableError: The disk is full.
    """
    try:
        yield
    except RltuneError:
        raise
    except Exception as error:
        if not is_disk_full(error):
            raise
        raise make_disk_full_error(folder) from error
