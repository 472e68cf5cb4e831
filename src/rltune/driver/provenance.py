"""Record a sweep's settings, package versions, environment, git commit and command in its ledger and log."""

from __future__ import annotations

import importlib.metadata
import logging
import subprocess
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.config.settings_file import format_settings, load_settings
from rltune.driver.requests.inbox import describe_user
from rltune.errors import ConfigError, spell
from rltune.formatting import flatten_settings
from rltune.ledger.sweep_folder import SWEEP_LOGGER
from rltune.records import SPACE

if TYPE_CHECKING:
    from rltune.envs.facts import EnvFacts
    from rltune.ledger.ledger import Ledger

PACKAGES = ("rltune", "ray", "torch", "gymnasium", "optuna", "mlflow", "hydra-core", "numpy")
SOURCE = "source of "  # Begins the names under which the digests of an environment's source files are recorded.
SPACES = ("observation space", "action space")


def record_start(
    ledger: Ledger, folder: Path, settings: Mapping[str, Any], facts: EnvFacts | None, typed: str | None = None
) -> None:
    """Record the sweep's settings in the ledger, at its first start also versions and command, and these in its log.

    The environment's spaces and the digests of its source files are among the versions of what results depend on.

    Args:
        ledger: The sweep's ledger.
        folder: The sweep's folder.
        settings: Its settings without logins.
        facts: What the check has learned about the environment.
        typed: The command that runs the sweep again; None if a script has started it.
    """
    # Written at every start, because the folder may have been moved and a resume may have changed settings.
    ledger.change_sweep(folder=str(folder), config=format_settings(settings))
    if ledger.sweep().began is None:
        ledger.change_sweep(
            versions=list_versions() | describe_environment(facts),
            git_commit=read_git_commit(),
            command=typed,
            began=datetime.now(UTC).isoformat(timespec="seconds"),
        )
    versions = " ".join(f"{name}=={version}" for name, version in list_versions().items())
    logging.getLogger(SWEEP_LOGGER).info("%s\n  %s", ledger.sweep().command or "from Python", versions)


def record_changed_space(ledger: Ledger, settings: Mapping[str, Any]) -> list[str]:
    """Record in the ledger which ranges a resume has changed, from which trial on, and return notes for the user.

    Args:
        ledger: The sweep's ledger, with the settings of its last driver.
        settings: The settings without logins of this driver.
    """
    before = dict(flatten_settings(load_settings(ledger.sweep().config or "").get("space") or {}))
    changed = {name: form for name, form in flatten_settings(settings["space"]) if before.get(name, form) != form}
    if changed:
        ledger.change_space(changed, describe_user(), format_settings(settings))
    return [
        f"from trial {request.trial} on: "
        + ", ".join(f"space.{name}={spell(form)}" for name, form in request.payload.items())
        for request in ledger.read_requests(SPACE, waiting=False)
    ]


def describe_environment(facts: EnvFacts | None) -> dict[str, str]:
    """Describe which environment a sweep's trials are of: its spaces, and a digest of each of its source files."""
    if facts is None:
        return {}
    sources = {f"{SOURCE}{module}": digest for module, digest in facts.sources.items()}
    return {**dict(zip(SPACES, map(str, (facts.observation_space, facts.action_space)), strict=True)), **sources}


def compare_environment(versions: Mapping[str, str], facts: EnvFacts | None, env_id: str) -> list[str]:
    """Refuse an environment whose spaces are others than at the sweep's start; return a note if its source is.

    Args:
        versions: What `record_start` has recorded.
        facts: What the check has learned about the environment now.
        env_id: Its id.

    Raises:
        ConfigError: The spaces differ, so that earlier and later trials would have different networks.
    """
    now = describe_environment(facts)
    changed = [name for name, value in now.items() if versions.get(name, value) != value]
    for name in SPACES:
        if name in changed:
            raise ConfigError(
                "env.id",
                env_id,
                f"has another {name} than when the sweep began: {now[name]}",
                f"that of the earlier trials, {versions[name]}",
                "undo the change of the environment, or start another sweep: name=...",
            )
    if not changed:
        return []
    files = ", ".join(f"{name.removeprefix(SOURCE).replace('.', '/')}.py" for name in changed)
    return [f"{files} has changed since the sweep began: earlier trials are compared with those of the changed one"]


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
