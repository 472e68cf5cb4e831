"""Write and read a sweep's settings, the file ``config.yaml`` in its folder."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import yaml

from rltune.config.authorship import MARK, find_key_file, is_own, mark_own
from rltune.config.schema import RunConfig
from rltune.errors import ABSENT, StudyError, describe_exception

DIGEST_MARK = "# sha256: "
FORMAT = 12
"""The version of a sweep's folder and its ledger, which this version of rltune writes and resumes."""
OLDEST_FORMAT = 12
"""The oldest version that can still be shown and whose policies load. 0.1.0 writes 12, which every 0.x reads."""

_IDENTITY = re.compile(r"^(?:key|name|storage|study|tracking):.*\n(?: .*\n)*", re.MULTILINE)  # Sections of the file.

# Ten times as fast as OmegaConf's own loader and dumper. Like these, they read 1e-3 as a number.
_Loader: Any = type("_Loader", (getattr(yaml, "CSafeLoader", yaml.SafeLoader),), {})
_Dumper: Any = type("_Dumper", (getattr(yaml, "CSafeDumper", yaml.SafeDumper),), {})
for _kind in (_Loader, _Dumper):
    _kind.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d[\d_]*\.?|\d*\.\d+)[eE][-+]?\d+$"), list("-+0123456789.")
    )
_Dumper.ignore_aliases = lambda dumper, value: True  # Writes a list that occurs twice in full, without a YAML alias.


def parse_yaml(text: str) -> Any:
    """Parse YAML, with ``1e-3`` as a number.

    Raises:
        yaml.YAMLError: The text is not YAML.
    """
    return yaml.load(text, Loader=_Loader)  # noqa: S506 - the loader derives from SafeLoader


def load_settings(text: str) -> dict[str, Any]:
    """Parse settings from YAML that rltune has written, without resolving interpolations; empty text gives {}.

    Raises:
        ValueError: The text is no mapping.
        yaml.YAMLError: It is not YAML.
    """
    settings = parse_yaml(text) or {}
    if not isinstance(settings, dict):
        raise ValueError("it holds no settings")
    return settings


def dump_settings(settings: Mapping[str, Any]) -> str:
    """Write nested settings as a YAML text that `load_settings` can read."""
    return str(yaml.dump(settings, Dumper=_Dumper, default_flow_style=False, allow_unicode=True, sort_keys=False))


def read_settings(folder: Path, *, for_resume: bool = False) -> dict[str, Any]:
    """Read a sweep's settings from its folder, without resolving interpolations.

    Args:
        folder: The sweep's folder.
        for_resume: Whether the sweep is to be resumed. A file that does not match its digest, or has an older format,
            is refused then, even if it can be read.

    Raises:
        StudyError: The file is missing or damaged, or another version of rltune wrote it.
    """
    path = folder / "config.yaml"
    text, loaded = _load_file(path)
    # Checked before the digest, because another format may compute it differently.
    check_format(str(path), loaded.pop("format", None), oldest=FORMAT if for_resume else OLDEST_FORMAT)
    loaded.pop("key", None)
    body, mark, digest = text.rpartition(DIGEST_MARK)
    if for_resume and (not mark or digest.strip() not in (_compute_digest(body), "any")):
        raise StudyError(
            f"{path} is not as the sweep wrote it: cut short, damaged or changed",
            f"the file as the sweep wrote it; if you meant to change it, end it with the line '{DIGEST_MARK}any'",
            _describe_recovery(path),
        )
    return loaded


def _load_file(path: Path) -> tuple[str, dict[str, Any]]:
    """Return the text of a sweep's ``config.yaml`` and its settings.

    Raises:
        StudyError: The file is missing or damaged.
    """
    try:
        text = path.read_text()
        loaded = load_settings(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise StudyError(
            f"{path} cannot be read: {describe_exception(error)}",
            "the sweep's settings as YAML",
            _describe_recovery(path),
        ) from None
    if not loaded:
        raise StudyError(f"{path} holds no settings", "the sweep's settings as YAML", _describe_recovery(path))
    return text, loaded


@dataclass(frozen=True)
class SweepIdentity:
    """Which sweep it is, and where: its folder on this machine, its name and its addresses, which have no logins.

    Attributes:
        folder: The sweep's folder, which may have been renamed.
        name: The name under which the storage and a database have the sweep.
        storage: The setting ``storage``; None keeps the checkpoints in the folder.
        ledger_url: The setting ``study.storage``; None keeps the ledger in the folder.
        tracking_uri: The setting ``tracking.uri``.
        key: Random; the sweep's row in its ledger and its runs in MLflow have the same. Whatever has another key is
            another sweep. None for a file that has none, such as a copy in MLflow.
    """

    folder: Path
    name: str
    storage: str | None = None
    ledger_url: str | None = None
    tracking_uri: str | None = None
    key: str | None = None

    @classmethod
    def of(cls, folder: Path, settings: Mapping[str, Any]) -> SweepIdentity:
        """Take the identity of a sweep from its settings, some of which may be missing."""
        study, tracking = (settings.get(group) or {} for group in ("study", "tracking"))
        name = settings.get("name") or folder.name
        addresses = settings.get("storage"), study.get("storage"), tracking.get("uri")
        return cls(folder, name, *addresses, settings.get("key"))


def read_identity(folder: Path, *, any_format: bool = False) -> SweepIdentity:
    """Read a sweep's identity from its ``config.yaml``.

    A list of sweeps reads it of each. To load all settings takes ten times as long, so a file that looks as rltune
    writes it is not loaded whole.

    Args:
        folder: The sweep's folder.
        any_format: Read it from files of other versions of rltune, too: policies load whatever wrote them.

    Raises:
        StudyError: As for `read_settings`.
    """
    with contextlib.suppress(OSError, ValueError, yaml.YAMLError):
        text = (folder / "config.yaml").read_text()
        as_written = tuple(f"format: {number}\n" for number in range(OLDEST_FORMAT, FORMAT + 1))
        if text.startswith(as_written) and (sections := _IDENTITY.findall(text)):
            return SweepIdentity.of(folder, load_settings("".join(sections)))
    path = folder / "config.yaml"
    settings = _load_file(path)[1]
    if not any_format:
        check_format(str(path), settings.get("format"), OLDEST_FORMAT)
    return SweepIdentity.of(folder, settings)


def check_format(subject: str, number: Any, oldest: int, sweep: str = "") -> None:
    """Refuse a sweep whose files have a format that this version of rltune cannot read.

    Args:
        subject: The file or the ledger that has the format, for the error.
        number: The format.
        oldest: The oldest format that is allowed.
        sweep: The sweep whose ledger it is; empty if the file says that.

    Raises:
        StudyError: The format is older, newer or none.
    """
    if number not in range(oldest, FORMAT + 1):
        allowed = f"{FORMAT}" if oldest == FORMAT else f"{oldest} to {FORMAT}"
        raise StudyError(
            f"{subject} has format {number}, not {allowed}",
            f"format {allowed}, which this version of rltune reads",
            "open it with the version that wrote it, or run it again under a new name; its policies load as before, by "
            "the folders of their checkpoints",
            key="sweep" if sweep else "",
            value=sweep or ABSENT,
        )


def _describe_recovery(path: Path) -> str:
    return f"put a copy back: {path.name} of the sweep's run in MLflow, or what the ledger's table sweeps has as config"


def _compute_digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def format_settings(settings: Mapping[str, Any], key: str | None = None) -> str:
    """Format settings as YAML, for a sweep's folder and MLflow.

    The last line holds a digest, by which a damaged file is recognised.

    Args:
        settings: The settings without logins, see `redact_config`.
        key: The sweep's, see `SweepIdentity`, for its folder.
    """
    identity = {"format": FORMAT} | ({"key": key} if key else {})
    body = f"{dump_settings(identity)}{dump_settings(settings)}"
    return f"{body}{DIGEST_MARK}{_compute_digest(body)}\n"


def redact_config(config: RunConfig) -> dict[str, Any]:
    """Return settings as nested dictionaries and lists, without logins; of ``notify`` only the host is kept."""
    return asdict(config)  # The copy of a secret is what it shows.


def write_settings(folder: Path, settings: Mapping[str, Any], key: str | None = None) -> None:
    """Write a sweep's settings to its folder atomically, and sign them with this user's secret.

    Args:
        folder: The sweep's.
        settings: The settings without logins, see `redact_config`.
        key: The sweep's, see `SweepIdentity`.
    """
    draft, text = folder / ".config.yaml", format_settings(settings, key)
    draft.write_text(text)
    mark_own(folder, _compute_digest(text))
    draft.rename(folder / "config.yaml")


def is_own_sweep(folder: Path) -> bool:
    """Return whether this user has signed a sweep's folder with its present settings."""
    try:
        return is_own(folder, _compute_digest((folder / "config.yaml").read_text()))
    except (OSError, ValueError):
        return False


def require_own_sweep(folder: Path, resume: str) -> None:
    """Refuse to resume a sweep that another user made: that would import its modules and unpickle its checkpoints.

    Args:
        folder: The sweep's.
        resume: What to type to go on with it.

    Raises:
        StudyError: The folder lacks this user's mark of its settings.
    """
    if not is_own_sweep(folder):
        is_marked = (folder / MARK).exists()
        why = (
            "its config.yaml is not as your rltune wrote it"
            if is_marked
            else "it was not marked as yours when it began"
        )
        raise StudyError(
            f": {why}, and a resume runs code that its settings name and its checkpoints hold",
            f"sweeps that you ran with the key in {find_key_file()}, unchanged",
            f"{resume} trust=true, if you trust whoever made it",
            key="sweep",
            value=folder.name,
        )
