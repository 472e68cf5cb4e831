"""Choose the names of sweeps and the paths of their folders, and find the folder of the shipped config files."""

from __future__ import annotations

import secrets
from datetime import UTC, datetime
from pathlib import Path

from rltune.config.schema import RunConfig


def make_sweep_name(config: RunConfig, now: datetime | None = None) -> str:
    """Return a sweep's name from its settings, or make one: ``<env>-<algo>-<UTC time>-<4 hex>``.

    Args:
        now: The time in the name; None is the present.
    """
    if config.name:
        return config.name
    time = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    return f"{config.env.name}-{config.algo['name']}-{time}-{secrets.token_hex(2)}"


def sweep_folder_of(config: RunConfig, name: str) -> Path:
    """Return a sweep's folder as an absolute path, because Tune changes the working directory of trials."""
    return Path(config.output_dir).expanduser().absolute() / name


def conf_dir() -> Path:
    """Return the folder of rltune's config files, ``conf/``, in the installed package or, by a link, in a checkout."""
    return (Path(__file__).parents[1] / "conf").resolve()
