"""Continue a sweep on another machine if its ledger is a SQLite file and its files are in remote storage.

Such a sweep has no ledger that all machines share. Instead its storage has ``driver.json``, which names the driver that
took the sweep last, and says whether that driver has ended and left its ledger in the storage. The driver's folder has
the same file, written first. A machine whose folder is older fetches the files of the storage. On a local disk there is
nothing to hand over, because the folder is the store. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import Store, find_store, open_store
from rltune.config.settings_file import read_settings
from rltune.errors import StudyError
from rltune.ledger.sweep_folder import LEDGER, SETTINGS

DRIVER_FILE = "driver.json"
PUBLISHED = (".made-by", "summary.json", "certification.csv", "certification.json", SETTINGS)
"""The files in the storage that other machines read, besides the ledger. The settings make a folder a sweep's: last."""


@dataclass(frozen=True)
class Driver:
    """The last driver that took the sweep over, as ``driver.json`` records it.

    Attributes:
        driver_id: Its lease's id.
        host: The name of its machine.
        ended: Whether it has ended and stored its ledger.
        previous: The driver from whose state it went on. A driver that is killed while it takes the sweep may have
            written its folder's file, but not the storage's.
        previous_ended: Whether that driver had ended by then; else the sweep was taken over, or its machine goes on.
    """

    driver_id: str
    host: str
    ended: bool = False
    previous: str | None = None
    previous_ended: bool = False


def read_stored_driver(store: Store) -> Driver | None:
    """Read from the storage which driver took the sweep over last; None on a local disk or before the first driver.

    Raises:
        StoreError: The storage cannot be used.
    """
    return _parse(store.read(DRIVER_FILE, is_quick=True)) if store.address else None


def has_newest(store: Store) -> bool:
    """Return whether the sweep's folder on this machine is at least as new as the storage.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored, local = read_stored_driver(store), _read_local_driver(store)
    if stored is None or local is None:
        return stored is None
    # This folder may have copied the files of a driver that still ran elsewhere. If that driver has ended since,
    # then the storage has a newer state than this folder.
    if stored.driver_id == local.driver_id:
        return local.ended or not stored.ended
    return stored.driver_id == local.previous and (local.previous_ended or not stored.ended)


def take(store: Store, driver_id: str) -> None:
    """Record in the folder and in the storage that this driver has taken the sweep over; older ledgers no longer count.

    Raises:
        StoreError: The storage cannot be used.
    """
    if not store.address:
        return
    driver = Driver(driver_id, socket.gethostname())
    if stored := read_stored_driver(store):
        driver = replace(driver, previous=stored.driver_id, previous_ended=stored.ended)
    # The folder's file is written before the storage's. If the driver is killed in between, other machines see no
    # change.
    _note_driver(store, driver)
    store.publish([DRIVER_FILE])


def is_taken_over(store: Store, driver_id: str) -> bool:
    """Return whether another machine has taken the sweep over; this driver must not write to the storage then.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored = read_stored_driver(store)
    return stored is not None and stored.driver_id != driver_id


def hand_over(store: Store, driver_id: str) -> None:
    """Record that this driver has ended and has uploaded its ledger, so that any machine may continue the sweep.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored = read_stored_driver(store)
    if stored is not None and stored.driver_id == driver_id:
        _note_driver(store, replace(stored, ended=True))
        store.publish([DRIVER_FILE])


def refresh_sweep(folder: Path, storage: str | None) -> Path:
    """Download a sweep's files if the storage has newer ones, unless this machine has changes of its own.

    Args:
        folder: The sweep's folder.
        storage: The setting ``storage``; None leaves the folder as it is.

    Returns:
        The folder.

    Raises:
        StoreError: The storage cannot be used.
    """
    if storage is None:
        return folder
    store = open_store(folder, make_address(storage, folder.name))
    with _lock_folder(folder):
        stored, local = read_stored_driver(store), _read_local_driver(store)
        has_own_state = (folder / LEDGER).exists() if local is None else not local.ended
        if not (folder / SETTINGS).exists() or not (has_own_state or has_newest(store)):
            _fetch_sweep(store, stored, with_ledger=stored is None or stored.ended)
    return folder


@contextlib.contextmanager
def _lock_folder(folder: Path) -> Iterator[None]:
    """Lock the sweep's folder, so that two processes of this machine do not download files into it at the same time.

    A driver that comes second finds the newest state and opens its ledger, which the first would replace otherwise.
    """
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    opened = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems do not support locks; then the folder stays unlocked.
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _fetch_sweep(store: Store, stored: Driver | None, *, with_ledger: bool) -> None:
    """Download the files of a sweep that other machines read; checkpoints are downloaded when they are needed.

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
            _note_driver(store, stored)
    store.fetch(PUBLISHED)


def follow_sweep(folder: Path, *, take_over: bool = False) -> str | None:
    """Download a sweep's newest files if another machine has continued it; rename the ledger that is replaced.

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
    # The pattern also matches the ledger's write-ahead log, which must stay with the ledger.
    for path in folder.glob(f"{LEDGER}*"):
        path.rename(aside.with_name(aside.name + path.name.removeprefix(LEDGER)))
    _fetch_sweep(store, stored, with_ledger=True)
    kept = f"; the earlier ledger is kept as {aside}" if aside.exists() else ""
    return f"another machine has continued {folder.name}: its files were fetched from the storage{kept}"


def make_distant_ledger_error(folder: Path, host: str = "the machine where it runs") -> StudyError:
    """Make the error for a sweep whose newest ledger is a file on another machine.

    Args:
        folder: The sweep's.
        host: That machine.
    """
    return StudyError(
        f": its newest ledger is a file on {host}, whose driver has not ended",
        "a sweep whose driver has ended by itself, or one with its ledger in PostgreSQL",
        "resume it on that machine; if the machine is gone, take_over=true continues from the state that an earlier "
        "driver left in the storage; a sweep that starts with study.storage=postgresql+psycopg://host/db avoids this",
        key="sweep",
        value=folder.name,
    )


def _read_local_driver(store: Store) -> Driver | None:
    """Read from ``driver.json`` in the folder which driver wrote the files on this machine; None if there is none."""
    try:
        return _parse((store.folder / DRIVER_FILE).read_bytes())
    except OSError:
        return None


def _note_driver(store: Store, driver: Driver) -> None:
    """Write ``driver.json`` in the folder, which names the driver that wrote the files on this machine."""
    path = store.folder / DRIVER_FILE
    draft = path.with_name(f".{DRIVER_FILE}")
    draft.write_text(json.dumps(asdict(driver)))
    draft.rename(path)


def _parse(content: bytes | None) -> Driver | None:
    with contextlib.suppress(ValueError, TypeError):
        return Driver(**json.loads(content or b"null"))
    return None
