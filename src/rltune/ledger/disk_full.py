"""Recognise a full disk beneath other errors, and tell a person what to do. Imports nothing heavy.

A sweep whose disk is full stops as if it had been interrupted: it is no trial's fault, so none fails of it.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from rltune.errors import RltuneError, StudyUnavailableError
from rltune.ledger.sweep_folder import make_resume_command

DISK_FULL = "no room is left on the disk"
# The last two are SQLite's and torch's words, whose errors carry no number.
WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "File too large",
    "disk is full",
    "PytorchStreamWriter failed writing",
)


def is_disk_full(error: BaseException) -> bool:
    """Whether this error, or one that led to it, says that nothing more can be written."""
    seen: list[BaseException] = []
    now: BaseException | None = error
    while now is not None and now not in seen:
        if isinstance(now, OSError) and now.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return True
        if names_full_disk(str(now)):
            return True
        seen.append(now)
        now = now.__cause__ or now.__context__
    return False


def names_full_disk(text: str) -> bool:
    """Whether a text, such as a worker's traceback, speaks of a full disk."""
    return any(word in text for word in WORDS)


def make_disk_full_error(folder: Path) -> StudyUnavailableError:
    """Make the error that tells a person of it, with the command that goes on."""
    return StudyUnavailableError(
        f"{folder}: {DISK_FULL}; what was recorded before is whole",
        "room for the ledger and the trials' checkpoints",
        f"make room, then {make_resume_command(folder)}",
    )


@contextlib.contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Turn an error that a full disk led to into one for a person; leave others alone.

    Args:
        folder: The sweep's.

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
