"""What a full disk looks like to the layers above it, and what a person is told. Imports nothing heavy.

A sweep whose disk is full stops as if it had been interrupted: it is no trial's fault, so none fails of it.
"""

from __future__ import annotations

import errno
from pathlib import Path

from rltune.errors import StudyError
from rltune.study.sweep_folder import make_resume_command

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
    """Whether a worker's words say so."""
    return any(word in text for word in WORDS)


def make_disk_full_error(folder: Path) -> StudyError:
    """What a person is told."""
    return StudyError(
        f"{folder}: {DISK_FULL}; what was recorded before is whole",
        "room for the ledger and the trials' checkpoints",
        f"make room, then {make_resume_command(folder)}",
    )
