"""Record a sweep's settings, package versions, git commit and command in its ledger."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.config.settings_file import format_settings

if TYPE_CHECKING:
    from rltune.ledger.ledger import Ledger

PACKAGES = ("rltune", "ray", "torch", "gymnasium", "optuna", "mlflow", "hydra-core", "numpy")


def record_start(ledger: Ledger, folder: Path, settings: Mapping[str, Any], typed: str | None = None) -> None:
    """Record in the ledger that the sweep runs, with its settings, and at its first start also versions and command.

    Args:
        ledger: The sweep's ledger.
        folder: The sweep's folder.
        settings: Its settings without logins.
        typed: The command that runs the sweep again; None if a script has started it.
    """
    # Written at every start, because the folder may have been moved and a resume may have changed settings.
    ledger.change_sweep(status="running", folder=str(folder), config=format_settings(settings))
    if ledger.sweep().began is None:
        ledger.change_sweep(
            versions=list_versions(),
            git_commit=read_git_commit(),
            command=typed,
            began=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def list_versions() -> dict[str, str]:
    """List the versions of Python and of the packages that influence a sweep's results."""
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def read_git_commit() -> str:
    """Return the git commit of the working directory; empty outside of a repository."""
    try:
        result = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()
