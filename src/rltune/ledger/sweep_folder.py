"""Name the files of a sweep's folder, and the command that resumes the sweep. Runs anywhere."""

from __future__ import annotations

import contextlib
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltune.config.settings_file import read_settings
from rltune.config.uris import HIDDEN, redact_address
from rltune.errors import StudyError
from rltune.formatting import spell_command

SETTINGS = "config.yaml"
LEDGER = "ledger.db"
SWEEP_LOGGER = "rltune.sweep"  # The logger for lines that a person sees, handled only by a sweep's log.
HALF_MADE = (LEDGER, ".shared-", ".made-by", ".config.yaml")  # The entries of an unfinished folder begin like this.


def is_half_made(folder: Path) -> bool:
    """Return whether a driver was killed between making this folder and writing its settings, so that it holds nothing.

    A folder with anything else in it is somebody's own.
    """
    return folder.is_dir() and all(entry.name.startswith(HALF_MADE) for entry in folder.iterdir())


def make_resume_command(folder: Path, settings: Mapping[str, Any] | None = None) -> str:
    """Make the command that resumes a sweep: from the present folder, or on any machine if it has remote storage.

    Args:
        folder: The sweep's folder.
        settings: The sweep's; None reads them from the folder, if they are there already.
    """
    if settings is None:
        with contextlib.suppress(StudyError):
            settings = read_settings(folder)
    values = settings or {}
    words = [_format_override("sweep", folder.name) + spell_output_dir(folder.parent)]
    if storage := values.get("storage"):
        words.append(_format_override("storage", redact_address(storage)))
    for group, key in (("study", "storage"), ("tracking", "uri")):  # Logins are not saved in files.
        if HIDDEN in ((values.get(group) or {}).get(key) or ""):
            words.append(f"{group}.{key}=...")
    return spell_command(f"resume {' '.join(words)}")


def _format_override(key: str, value: str) -> str:
    """Format an override for a shell, quoted for Hydra inside where a value has other signs than plain words have."""
    if re.fullmatch(r"(?!(?i:null|true|false|nan|inf)$)[A-Za-z/_][\w./:@+%-]*", value, re.ASCII):
        return f"{key}={value}"
    return shlex.quote('{}="{}"'.format(key, value.replace('"', '\\"')))


def spell_output_dir(root: Path) -> str:
    """Return the override that names the folder of all sweeps; empty for the usual one."""
    return "" if root == Path("outputs").absolute() else f" {_format_override('output_dir', str(root))}"
