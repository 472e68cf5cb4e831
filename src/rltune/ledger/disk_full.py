"""Recognize that an error was caused by a full disk, and explain what to do. Imports nothing heavy.

A sweep whose disk is full stops as if it had been interrupted. No trial is to blame for that, so none fails.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from rltune.errors import RltuneError, StudyUnavailableError
from rltune.ledger.sweep_folder import make_resume_command

DISK_FULL = "no room is left on the disk"
# SQLite's "disk is full" and torch's "PytorchStreamWriter" are matched because their exceptions carry no errno.
WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "disk is full",
    "PytorchStreamWriter failed writing",
)


def is_disk_full(error: BaseException) -> bool:
    """Return whether an exception, or one that caused it, means that the disk is full."""
    chain: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in chain:
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if names_full_disk(str(cause)):
            return True
        chain.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def names_full_disk(text: str) -> bool:
    """Return whether a text, such as a worker's traceback, contains a message about a full disk."""
    return any(word in text for word in WORDS)


def make_disk_full_error(folder: Path) -> StudyUnavailableError:
    """Make the error that a sweep's disk is full, with the command that resumes the sweep."""
    return StudyUnavailableError(
        f"{folder}: {DISK_FULL}; everything recorded before is kept",
        "room for the ledger and the trials' checkpoints",
        f"make room, then {make_resume_command(folder)}",
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
