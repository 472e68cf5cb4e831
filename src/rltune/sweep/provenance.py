"""What a sweep ran with: package versions and the commit."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

PACKAGES = ("rltune", "ray", "torch", "gymnasium", "optuna", "mlflow", "hydra-core", "numpy")


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
    """The commit of the folder where the command was typed; empty outside a repository."""
    try:
        found = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return found.stdout.strip()
