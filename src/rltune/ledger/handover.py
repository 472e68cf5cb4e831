"""Continue a sweep on another machine if its ledger is a SQLite file and its files are in remote storage.

A driver uploads the ledger when it ends. A machine without a ledger of the sweep, or with a copy that no driver has
changed since, downloads it. A resume is refused where this machine has changes that the storage lacks and the other
way round, and while the newest ledger is on a machine whose driver has not ended, unless ``take_over=true`` gives that
one up. The file ``drivers.txt`` in the
folder is the history of its ledger: a line when a driver takes the sweep, with its id and its machine, and another one
when it has uploaded the ledger. The storage has the file of the last driver. After ``take_over=true`` the ledger is
older than what its last driver has shown in MLflow, so the sweep goes on as another one there. On a local disk there is
nothing to hand over, because the folder is the store. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import socket
import sqlite3
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from rltune.checkpoints.store import Store
from rltune.config.settings_file import load_settings, read_identity
from rltune.errors import StudyError, StudyUnavailableError
from rltune.ledger.sweep_folder import LEDGER, SETTINGS

HISTORY = "drivers.txt"
STORED = " stored"  # The end of a line of a driver that has ended and uploaded its ledger.
TAKEN_OVER = " taken-over"  # The end of a line of a driver whose newer ledger was given up.
PUBLISHED = (".made-by", "summary.json", "certification.csv", "certification.json", SETTINGS)
"""The files in the storage that other machines read, besides the ledger. The settings make a folder a sweep's: last."""


def read_stored_history(store: Store) -> list[str]:
    """Read the history of the newest ledger from the storage; empty on a local disk or before the first driver.

    Raises:
        StoreError: The storage cannot be used.
    """
    return (store.read(HISTORY, is_quick=True) or b"").decode(errors="replace").splitlines() if store.address else []


def is_stored(history: Sequence[str]) -> bool:
    """Return whether the storage has got all of the ledger with this history, because its last driver has ended."""
    return not history or history[-1].endswith(STORED)


def has_newest(store: Store) -> bool:
    """Return whether the ledger on this machine is at least as new as the one in the storage.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored = read_stored_history(store)
    return not stored or stored[-1] in _read_local_history(store.folder)


def is_older_ledger(folder: Path) -> bool:
    """Return whether the ledger in a folder was taken over, and no driver has begun to work with it yet."""
    return any(line.endswith(TAKEN_OVER) for line in _read_local_history(folder)[-1:])


def take(store: Store, driver_id: str) -> None:
    """Record in the folder and in the storage that a driver works on the sweep.

    Raises:
        StoreError: The storage cannot be used.
    """
    if store.address:
        _add_state(store, driver_id)


def find_successor(store: Store, driver_id: str) -> str | None:
    """Return the machine whose driver has taken the sweep over from this one; None if this one is the last driver.

    Raises:
        StoreError: The storage cannot be used.
    """
    for line in read_stored_history(store)[-1:]:
        last_id, machine, *_ = line.split()
        return None if last_id == driver_id else machine
    return None


def hand_over(store: Store, driver_id: str) -> None:
    """Record that a driver has ended and uploaded its ledger, so that any machine may continue the sweep.

    Raises:
        StoreError: The storage cannot be used.
    """
    if store.address and not find_successor(store, driver_id):
        _add_state(store, driver_id, STORED)


def fetch_sweep(store: Store, *, for_driver: bool = False, take_over: bool = False) -> None:
    """Download a sweep's files if the storage has newer ones; checkpoints are downloaded when they are needed.

    Args:
        store: The sweep's.
        for_driver: Whether the sweep is to be resumed, which needs the newest ledger; a reader takes what there is.
        take_over: Take the ledger in the storage although a driver on another machine has a newer one.

    Raises:
        StudyError: This machine has changes that the newest ledger lacks, or the storage cannot be used.
        StudyUnavailableError: The newest ledger is on another machine, whose driver has not ended.
    """
    if not store.address:
        return
    folder = store.folder
    with _lock_folder(folder):
        is_here = (folder / SETTINGS).exists()
        if is_here and has_newest(store):
            return
        stored, local = read_stored_history(store), _read_local_history(folder)
        # A machine that has driven the sweep knows it by its drivers, also after a takeover, which changes the key.
        if is_here and not {*local} & {*stored}:
            _require_same_sweep(store)
        if (folder / LEDGER).exists() and not (local and is_stored(local)):
            if for_driver:
                raise _make_conflict_error(folder)
            return
        can_fetch = is_stored(stored) or (take_over and LEDGER in store.list(is_recursive=False))
        if can_fetch:
            _merge_log(folder / LEDGER)
            for derived in (*folder.glob(f"{LEDGER}-*"), *folder.glob("study.db*")):
                derived.unlink(missing_ok=True)
            store.fetch([LEDGER])
            # This is the history that was read before: another machine may have taken the sweep meanwhile.
            _write_history(folder, stored if is_stored(stored) else [*stored, stored[-1] + TAKEN_OVER])
        store.fetch(PUBLISHED)
    if for_driver and not can_fetch and read_identity(folder).ledger_url is None:
        raise make_distant_ledger_error(folder, stored[-1].split()[1])


def _merge_log(file: Path) -> None:
    """Merge a ledger's write-ahead log into its file, which is whole then if this process is killed without the log."""
    if file.with_name(f"{file.name}-wal").exists():
        # If another process has the file open, then SQLite refuses this; the stored ledger has all that it has.
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _require_same_sweep(store: Store) -> None:
    """Refuse files in the storage that belong to another sweep of the same name, before they replace those here.

    Raises:
        StudyError: The settings there have another key than the settings here.
    """
    with contextlib.suppress(ValueError, yaml.YAMLError):
        stored = load_settings((store.read(SETTINGS, is_quick=True) or b"").decode()).get("key")
        key = read_identity(store.folder, any_format=True).key
        if key and stored not in (None, key):
            aside = f"mv {shlex.quote(str(store.folder))} {shlex.quote(f'{store.folder}-aside')}"
            raise StudyError(
                f": {store.address} has another sweep of this name",
                f"the sweep whose key {store.folder / SETTINGS} has",
                f"{aside} continues the one in the storage",
                key="sweep",
                value=store.folder.name,
            )


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


def make_distant_ledger_error(folder: Path, host: str = "the machine where it runs") -> StudyUnavailableError:
    """Make the error for a sweep whose newest ledger is a file on another machine, where its driver may yet end.

    Args:
        folder: The sweep's.
        host: That machine.
    """
    return StudyUnavailableError(
        f": its newest ledger is a file on {host}, whose driver has not ended",
        "a sweep whose driver has ended by itself, or one with its ledger in PostgreSQL",
        "resume it on that machine; if the machine is gone, take_over=true continues the ledger that an earlier driver "
        "has stored",
        key="sweep",
        value=folder.name,
    )


def _make_conflict_error(folder: Path) -> StudyError:
    """Make the error for a sweep that two machines have continued apart from each other."""
    return StudyError(
        f": its ledger in {folder} and its ledger in the storage each have what the other lacks",
        "one ledger that is continued",
        f"mv {shlex.quote(str(folder))} {shlex.quote(f'{folder}-aside')} continues the one in the storage; without "
        f"{HISTORY} and {LEDGER} there, the one here is continued",
        key="sweep",
        value=folder.name,
    )


def _read_local_history(folder: Path) -> list[str]:
    """Read the history of the ledger in the folder; empty if there is none."""
    path = folder / HISTORY
    return path.read_text(errors="replace").splitlines() if path.exists() else []


def _add_state(store: Store, driver_id: str, mark: str = "") -> None:
    """Add a line to the history in the folder, and after that to the one in the storage.

    If the driver is killed in between, other machines see no change, and this machine still has the newest ledger.
    """
    line = f"{driver_id} {socket.gethostname()}{mark}"
    _write_history(store.folder, [*_read_local_history(store.folder), line])
    store.publish([HISTORY])


def _write_history(folder: Path, history: Sequence[str]) -> None:
    draft = folder / f".{HISTORY}"
    draft.write_text("".join(f"{line}\n" for line in history))
    draft.rename(folder / HISTORY)
