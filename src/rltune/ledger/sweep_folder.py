"""Name the files of a sweep's folder, and the command that resumes the sweep. Runs anywhere."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltune.config.settings_file import SweepIdentity, read_identity
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.secrets import HIDDEN

SETTINGS = "config.yaml"
LEDGER = "ledger.db"
SWEEP_LOGGER = "rltune.sweep"  # This logger's lines are meant for users, and go to the sweep's log only.
# A folder with nothing but entries of these prefixes belongs to a sweep that never started.
HALF_MADE = (LEDGER, ".shared-", ".made-by", ".config.yaml")


def is_half_made(folder: Path) -> bool:
    """Return whether a folder was left behind by a driver that was killed before it saved the sweep's settings.

    A folder with anything else in it is somebody's own.
    """
    return folder.is_dir() and all(entry.name.startswith(HALF_MADE) for entry in folder.iterdir())


def find_original(folder: Path, recorded: str | None) -> Path | None:
    """Return the folder of which a sweep's folder is a copy; None if it is no copy, for example because it was moved.

    Args:
        folder: The sweep's folder.
        recorded: The folder in which the sweep was last worked on, as its ledger has it.
    """
    with contextlib.suppress(OSError, StudyError):
        original = Path(recorded or folder)
        if not original.samefile(folder):
            key = read_identity(folder).key
            # Another sweep may have got the place of one that was moved.
            return original if key and read_identity(original, any_format=True).key == key else None
    return None


def require_path(key: str, value: object, allowed: str) -> None:
    """Refuse what is neither a text nor a path.

    Raises:
        StudyError: It is of another type.
    """
    if not isinstance(value, str | os.PathLike):
        fix = 'output_dir="outputs"' if key == "output_dir" else 'rltune.open_sweep("latest")'
        raise StudyError("is no path", allowed, fix, key=key, value=value)


def make_resume_command(folder: Path, settings: Mapping[str, Any] | None = None, command: str = "resume") -> str:
    """Spell the command that resumes the sweep: from the present folder, or on any machine if it has remote storage.

    Args:
        folder: The sweep's folder.
        settings: The sweep's; None reads them from the folder, if they are there already.
        command: ``resume``, or ``retry``, which tries failed trials again.
    """
    sweep = SweepIdentity.of(folder, settings or {})
    if settings is None:
        with contextlib.suppress(StudyError):
            sweep = read_identity(folder)
    words = [_format_override("sweep", folder.name) + spell_output_dir(folder.parent)]
    if sweep.storage:
        words.append(_format_override("storage", sweep.storage))
    # These addresses were saved without their logins, so the user has to type them.
    for key, address in (("study.storage", sweep.ledger_url), ("tracking.uri", sweep.tracking_uri)):
        if HIDDEN in (address or ""):
            words.append(f"{key}=...")
    return spell_command(f"{command} {' '.join(words)}")


def _format_override(key: str, value: str) -> str:
    """Format a Hydra override for a shell; the value is quoted for Hydra unless it is a plain word."""
    if re.fullmatch(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z/_][\w./:@+%-]*", value, re.ASCII):
        return f"{key}={value}"
    return shlex.quote('{}="{}"'.format(key, value.replace('"', '\\"')))


def spell_output_dir(root: Path) -> str:
    """Return the override ``output_dir=...`` that a command needs to find a sweep; empty for the default directory."""
    return "" if root == Path("outputs").absolute() else f" {_format_override('output_dir', str(root))}"
