"""Read what a sweep's folder holds, and say how to resume the sweep. Runs anywhere."""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from omegaconf import OmegaConf

from rltune.config.settings_file import read_settings
from rltune.config.uris import HIDDEN, redact_address
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.study.bucket import GLANCE_S, Bucket, find_bucket, is_fetched_copy, link_bucket, make_place, open_bucket

SETTINGS = "config.yaml"
LEDGER, LEDGER_COPY = "ledger.db", "ledger.backup.db"
LEDGER_BEFORE = "ledger.before.db"  # in the bucket, for a person, should the driver never end
DRIVERS = ".drivers"  # a line for each driver that took the sweep, in the bucket and in the folder that it worked in
KEPT_FILES = (DRIVERS, ".made-by", "summary.json", "certification.csv", "certification.json", LEDGER, SETTINGS)
"""What a bucket keeps of a sweep and is read elsewhere.

Who drove it comes first, so that another driver is noticed that begins meanwhile; the settings last, which make the
folder a sweep's.
"""

TOLD = "rltune.sweep"  # the logger of what a person is told: a sweep's log has it, and no other handler
HALF_MADE = (LEDGER, ".shared-", ".bucket", ".made-by", ".config.yaml")  # how its entries begin


def fetch_sweep(folder: Path, storage: str | None) -> None:
    """Fetch a sweep's files but its checkpoints into a folder that is there to be read, again if need be.

    Args:
        folder: Where to.
        storage: The sweeps' ``storage``; None is where the folder came from.
    """
    stored = open_bucket(make_place(storage, folder.name)) if storage else find_bucket(folder)
    assert stored is not None
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    link_bucket(folder, stored.address, copy=True)
    for name in KEPT_FILES:
        content, draft = stored.read(name), folder / f".fetched-{name}"
        if content is None:  # a ledger that the bucket lost is one that another driver works on
            (folder / name).unlink(missing_ok=True)
        else:
            draft.write_bytes(content)
            draft.rename(folder / name)


def take_sweep(folder: Path, bucket: Bucket) -> None:
    """Write down that this driver takes the sweep: from now on, the bucket's ledger and those of others are older.

    Args:
        folder: The sweep's, where this driver works.
        bucket: The sweep's.

    Raises:
        StudyError: Another machine has taken it.
    """
    if not _has_newest(folder, bucket):
        raise make_distant_ledger_error(folder)
    draft, taken = (
        folder / f"{DRIVERS}-draft",
        f"{_read_drivers(folder)}{socket.gethostname()} {secrets.token_hex(8)}\n",
    )
    draft.write_text(taken)
    draft.rename(folder / DRIVERS)  # here first: killed in between, it goes on here, and so may any other machine
    bucket.write(DRIVERS, taken.encode())
    bucket.rename(LEDGER, LEDGER_BEFORE)


def follow_sweep(folder: Path) -> str | None:
    """Fetch a sweep's newest files where another machine has gone on with it; the ledger that was here is kept aside.

    Args:
        folder: The sweep's, whose settings are there.

    Returns:
        What a person should know; None where this folder's files are the newest.

    Raises:
        StudyError: The newest ledger is on another machine. Or the bucket cannot be used.
    """
    bucket = find_bucket(folder)
    if bucket is None or is_fetched_copy(folder):  # the latter is fetched whenever it is looked for
        return None
    if _has_newest(folder, bucket):
        return None
    kept = folder / f"ledger.{time.strftime('%Y%m%d-%H%M%S')}.db"
    if (folder / LEDGER).exists():
        if bucket.read(LEDGER) is None:
            raise make_distant_ledger_error(folder)
        for path in folder.glob(f"{LEDGER}*"):  # its write-ahead log, too
            path.rename(kept.with_name(kept.name + path.name.removeprefix(LEDGER)))
    for derived in (folder / LEDGER_COPY, *folder.glob("study.db*")):
        derived.unlink(missing_ok=True)
    fetch_sweep(folder, None)
    aside = f"; the ledger that was here is kept as {kept}" if kept.exists() else ""
    return f"another machine has gone on with {folder.name}: what it left in the bucket is fetched{aside}"


def is_newest(folder: Path) -> bool:
    """Whether a folder has a sweep's newest files, and is no copy that was fetched from its bucket to be read.

    Raises:
        BucketError: The bucket cannot be used.
    """
    bucket = find_bucket(folder)
    return bucket is None or (not is_fetched_copy(folder) and _has_newest(folder, bucket))


def _has_newest(folder: Path, bucket: Bucket) -> bool:
    """Return whether no other machine has taken the sweep since a driver worked in this folder."""
    taken = (bucket.read(DRIVERS, GLANCE_S) or b"").decode().splitlines()
    return not taken or taken[-1] in _read_drivers(folder).splitlines()


def _read_drivers(folder: Path) -> str:
    return (folder / DRIVERS).read_text() if (folder / DRIVERS).exists() else ""


def make_distant_ledger_error(folder: Path) -> StudyError:
    """Say that a sweep's ledger is a file of another machine's, which gives the bucket a copy when its driver ends."""
    return StudyError(
        f"sweep={folder.name}: its ledger is a file on the machine where it runs, and its bucket has no copy of it",
        "a sweep whose driver has ended by itself, or one with its ledger in PostgreSQL",
        "study.storage=postgresql+psycopg://host/db when a sweep is started; until then, go on where this one ran; if "
        f"that machine is gone, copy {LEDGER_BEFORE} in the bucket to {LEDGER}: what came after it is trained again",
    )


def is_half_made(folder: Path) -> bool:
    """Whether a driver was killed between making this folder and writing its settings: nothing is lost in it.

    A folder with anything in it that such a driver does not leave is somebody's own.
    """
    return folder.is_dir() and all(entry.name.startswith(HALF_MADE) for entry in folder.iterdir())


def make_resume_command(folder: Path, settings: Mapping[str, Any] | None = None) -> str:
    """Make what to type to go on with a sweep: from the present folder, or on any machine where it has a bucket.

    Args:
        folder: The sweep's.
        settings: Its own; None reads them, where they are there already.
    """
    if settings is None:
        with contextlib.suppress(StudyError):
            settings = cast(Mapping[str, Any], OmegaConf.to_container(read_settings(folder)))
    found = settings or {}
    words = [_format_override("sweep", folder.name) + spell_output_dir(folder.parent)]
    if storage := found.get("storage"):
        words.append(_format_override("storage", redact_address(storage)))
    for group, key in (("study", "storage"), ("tracking", "uri")):  # a login is kept in no file
        if HIDDEN in ((found.get(group) or {}).get(key) or ""):
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
