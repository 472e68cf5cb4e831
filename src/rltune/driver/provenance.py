"""Note what a sweep was started with: its settings, package versions, commit and command."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from datetime import UTC, datetime

from rltune.config.settings_file import format_settings
from rltune.driver.open_sweep import OpenSweep
from rltune.views.wording import read_typed_command

PACKAGES = ("rltune", "ray", "torch", "gymnasium", "optuna", "mlflow", "hydra-core", "numpy")


def record_start(sweep: OpenSweep) -> None:
    """Note in the ledger that the sweep runs, where it lies, and at its first start what it was started with."""
    # The folder may have been moved, and a resume may have changed the settings.
    folder, config = str(sweep.folder), format_settings(sweep.config)
    sweep.ledger.change_sweep(status="running", folder=folder, config=config)
    if sweep.ledger.sweep().began is None:
        sweep.ledger.change_sweep(
            versions=list_versions(),
            git_commit=read_git_commit(),
            command=sweep.context.typed or read_typed_command(),
            began=datetime.now(UTC).isoformat(timespec="seconds"),
        )


def list_versions() -> dict[str, str]:
    """List the versions of Python and of the packages that a sweep depends on."""
    versions = {"python": sys.version.split()[0]}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def read_git_commit() -> str:
    """Return the commit of the folder where the command was typed; empty outside a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()
