"""Write and read a sweep's ``config.yaml``, whole or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltune.config.authorship import find_key_file, is_own, mark_own
from rltune.config.schema import RunConfig
from rltune.config.uris import redact_notify, redact_settings
from rltune.errors import StudyError, describe_exception

DIGEST_MARK = "# sha256: "
FORMAT = 7
"""Of a sweep's folder and its ledger."""


def read_settings(folder: Path, *, whole: bool = False) -> DictConfig:
    """Read the settings of a sweep from its folder.

    Args:
        folder: The sweep's.
        whole: Refuse a file that does not match its digest, even if what is left of it can be read.

    Raises:
        StudyError: The file is missing or damaged, or another version of rltune wrote it.
    """
    path = folder / "config.yaml"
    try:
        text = path.read_text()
        loaded = OmegaConf.create(text)
    except (OSError, ValueError, OmegaConfBaseException, yaml.YAMLError) as error:
        raise StudyError(
            f"{path} cannot be read: {describe_exception(error)}",
            "the sweep's settings as YAML",
            _describe_recovery(path),
        ) from None
    if not isinstance(loaded, DictConfig) or not loaded:
        raise StudyError(f"{path} holds no settings", "the sweep's settings as YAML", _describe_recovery(path))
    # Before the digest, which other formats may compute in another way.
    if (form := loaded.pop("format", None)) != FORMAT:
        raise StudyError(
            f"{path} has format {form}, not {FORMAT}",
            f"sweeps of format {FORMAT}, which this version of rltune writes and reads",
            "open it with the version that wrote it, or run it again under a new name; its policies load as before, by "
            "the folders of their checkpoints",
        )
    body, mark, digest = text.rpartition(DIGEST_MARK)
    if whole and (not mark or digest.strip() not in (_compute_digest(body), "any")):
        raise StudyError(
            f"{path} is not as the sweep wrote it: cut short, damaged or changed",
            f"the whole file; one that you changed ends with the line '{DIGEST_MARK}any'",
            _describe_recovery(path),
        )
    return loaded


def _describe_recovery(path: Path) -> str:
    return f"put a copy back: {path.name} of the sweep's run in MLflow, or what the ledger's table sweeps has as config"


def _compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def format_settings(config: RunConfig) -> str:
    """Format settings as YAML, as a sweep's folder and MLflow keep them.

    Logins in URLs are left out, and of ``notify`` all that may be secret. The last line
    holds a digest, by which a damaged file is recognised.
    """
    # Redact value by value: in the YAML text, broken lines and escaped quotes would cut a login into pieces.
    settings = redact_settings(OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True))
    if settings["notify"]:
        settings["notify"] = redact_notify(settings["notify"])
    body = f"format: {FORMAT}\n{OmegaConf.to_yaml(OmegaConf.create(settings))}"
    return f"{body}{DIGEST_MARK}{_compute_digest(body)}\n"


def flatten_settings(settings: Any, joint: str = ".", key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every value of nested settings by its key; a list is one value, an empty mapping none."""
    if not isinstance(settings, Mapping):
        yield key, settings
        return
    for name, value in settings.items():
        yield from flatten_settings(value, joint, f"{key}{joint}{name}" if key else str(name))


def write_settings(folder: Path, config: RunConfig) -> None:
    """Write the settings into a sweep's folder, whole or not at all."""
    draft, text = folder / ".config.yaml", format_settings(config)
    draft.write_text(text)
    mark_own(folder, _compute_digest(text))
    draft.rename(folder / "config.yaml")


def is_own_sweep(folder: Path) -> bool:
    """Return whether this user's rltune has made a sweep's folder, or taken it over, with its present settings."""
    try:
        return is_own(folder, _compute_digest((folder / "config.yaml").read_text()))
    except (OSError, ValueError):
        return False


def require_own_sweep(folder: Path, resume: str) -> None:
    """Refuse a sweep that somebody else made: a resume imports what its settings name, and unpickles its checkpoints.

    Args:
        folder: The sweep's.
        resume: What to type to go on with it.

    Raises:
        StudyError: The folder lacks this user's mark of its settings.
    """
    if not is_own_sweep(folder):
        raise StudyError(
            f"sweep={folder.name}: its config.yaml is not as your rltune wrote it, and a resume runs code that its "
            "settings name and its checkpoints hold",
            f"sweeps that you ran with the key in {find_key_file()}, unchanged",
            f"{resume} trust=true, if you trust whoever made it",
        )
