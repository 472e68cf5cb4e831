"""Read what a sweep's folder holds, and say how to resume the sweep. Runs anywhere."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.handover import Driver, has_newest, note_state, read_local_driver, read_stored_driver
from rltune.checkpoints.store import Store, find_store, open_store
from rltune.config.settings_file import read_settings
from rltune.config.uris import HIDDEN, redact_address
from rltune.errors import StudyError
from rltune.formatting import spell_command

SETTINGS = "config.yaml"
LEDGER = "ledger.db"
PUBLISHED = (".made-by", "summary.json", "certification.csv", "certification.json", SETTINGS)
"""The files in the storage that other machines read, besides the ledger. The settings make a folder a sweep's: last."""

SWEEP_LOGGER = "rltune.sweep"  # The logger of the lines that a person sees: only a sweep's log handles it.
HALF_MADE = (LEDGER, ".shared-", ".made-by", ".config.yaml")  # How the entries of a half-made folder begin.


def refresh_sweep(folder: Path, storage: str | None) -> None:
    """Fetch a sweep's files where the storage has newer ones, and nothing would be lost that is here alone.

    Args:
        folder: The sweep's.
        storage: The sweeps' ``storage``; None leaves the folder as it is.

    Raises:
        StoreError: The storage cannot be used.
    """
    if storage is None:
        return
    store = open_store(folder, make_address(storage, folder.name))
    with _lock_folder(folder):
        stored, local = read_stored_driver(store), read_local_driver(store)
        has_own_state = (folder / LEDGER).exists() if local is None else not local.ended
        if not (folder / SETTINGS).exists() or not (has_own_state or has_newest(store)):
            _fetch_sweep(store, stored, with_ledger=stored is None or stored.ended)


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Let one process of this machine at a time compare a folder with the storage and fetch from there.

    A driver that comes second finds the newest state and opens its ledger, which the first would replace otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):  # A network file system may refuse to lock a folder.
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _fetch_sweep(store: Store, stored: Driver | None, *, with_ledger: bool) -> None:
    """Fetch a sweep's files but its checkpoints, which are fetched when they are used.

    Args:
        store: The sweep's.
        stored: The driver that took the sweep last, as it was read before. Another machine may take the sweep while its
            ledger is fetched, and then has the newest state.
        with_ledger: Whether to fetch the ledger; the stored one is old while a driver works on another machine.
    """
    folder = store.folder
    if with_ledger:
        for derived in (*folder.glob(f"{LEDGER}-*"), *folder.glob("study.db*")):
            derived.unlink(missing_ok=True)
        store.fetch([LEDGER])
        if stored:
            note_state(store, stored)
    store.fetch(PUBLISHED)


def follow_sweep(folder: Path, *, take_over: bool = False) -> str | None:
    """Fetch a sweep's newest files where another machine has gone on with it; the ledger that was here is kept aside.

    Args:
        folder: The sweep's, whose settings are there.
        take_over: Take the stored ledger although the driver on the other machine has not ended.

    Returns:
        What a person should know; None where this folder's files are the newest.

    Raises:
        StudyError: The newest ledger is on another machine. Or the storage cannot be used.
    """
    with _lock_folder(folder):
        return _follow_store(find_store(folder), take_over=take_over)


def _follow_store(store: Store, *, take_over: bool) -> str | None:
    folder, stored = store.folder, read_stored_driver(store)
    if stored is None or has_newest(store):
        return None
    if (read_settings(folder).get("study") or {}).get("storage") is None and (
        not (stored.ended or take_over) or store.read(LEDGER) is None
    ):
        raise make_distant_ledger_error(folder, stored.host)
    aside = folder / f"ledger.{time.strftime('%Y%m%d-%H%M%S')}.db"
    for path in folder.glob(f"{LEDGER}*"):  # The file's write-ahead log belongs to it.
        path.rename(aside.with_name(aside.name + path.name.removeprefix(LEDGER)))
    _fetch_sweep(store, stored, with_ledger=True)
    kept = f"; the ledger that was here is kept as {aside}" if aside.exists() else ""
    return f"another machine has gone on with {folder.name}: its files in the storage are fetched{kept}"


def make_distant_ledger_error(folder: Path, host: str = "the machine where it runs") -> StudyError:
    """Describe a sweep whose newest ledger is a file on another machine.

    Args:
        folder: The sweep's.
        host: That machine.
    """
    return StudyError(
        f"sweep={folder.name}: its newest ledger is a file on {host}, whose driver has not ended",
        "a sweep whose driver has ended by itself, or one with its ledger in PostgreSQL",
        "go on where it ran; if that machine is gone, take_over=true goes on from the state that an earlier driver "
        "left in the storage; study.storage=postgresql+psycopg://host/db when a sweep is started avoids this",
    )


def is_half_made(folder: Path) -> bool:
    """Whether a driver was killed between making this folder and writing its settings: nothing is lost in it.

    A folder with anything in it that such a driver does not leave is somebody's own.
    """
    return folder.is_dir() and all(entry.name.startswith(HALF_MADE) for entry in folder.iterdir())


def make_resume_command(folder: Path, settings: Mapping[str, Any] | None = None) -> str:
    """Make what to type to go on with a sweep: from the present folder, or on any machine if it has remote storage.

    Args:
        folder: The sweep's.
        settings: Its own; None reads them, where they are there already.
    """
    if settings is None:
        with contextlib.suppress(StudyError):
            settings = read_settings(folder)
    values = settings or {}
    words = [_format_override("sweep", folder.name) + spell_output_dir(folder.parent)]
    if storage := values.get("storage"):
        words.append(_format_override("storage", redact_address(storage)))
    for group, key in (("study", "storage"), ("tracking", "uri")):  # a login is kept in no file
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
