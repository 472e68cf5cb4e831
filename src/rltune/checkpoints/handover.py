"""Say which machine has the newest state of a sweep whose ledger is a file and whose files are in remote storage.

Such a sweep has no ledger that all machines share. Instead its storage has ``driver.json``: which driver took the sweep
last, and whether that driver has ended and left its ledger in the storage. The driver's folder has the same file,
written first. On a local disk there is nothing to say: the folder is the store. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import asdict, dataclass, replace

from rltune.checkpoints.store import Store

DRIVER_FILE = "driver.json"


@dataclass(frozen=True)
class Driver:
    """The driver that took a sweep last.

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
    """Read which driver took the sweep last; None on a local disk, or where none has.

    Raises:
        StoreError: The storage cannot be used.
    """
    return _parse(store.read(DRIVER_FILE, is_quick=True)) if store.address else None


def has_newest(store: Store) -> bool:
    """Return whether the folder on this machine has the sweep's newest state.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored, local = read_stored_driver(store), read_local_driver(store)
    if stored is None or local is None:
        return stored is None
    # A machine that gave up taking a sweep over has an older state as soon as the driver that went on has ended.
    if stored.driver_id == local.driver_id:
        return local.ended or not stored.ended
    return stored.driver_id == local.previous and (local.previous_ended or not stored.ended)


def take(store: Store, driver_id: str) -> None:
    """Write down that this driver has taken the sweep: the ledger in the storage and those of other folders are older.

    Raises:
        StoreError: The storage cannot be used.
    """
    if not store.address:
        return
    driver = Driver(driver_id, socket.gethostname())
    if stored := read_stored_driver(store):
        driver = replace(driver, previous=stored.driver_id, previous_ended=stored.ended)
    # The folder's file comes first: a driver that is killed in between has changed nothing for other machines.
    note_state(store, driver)
    store.publish([DRIVER_FILE])


def is_taken_over(store: Store, driver_id: str) -> bool:
    """Return whether another machine has taken the sweep, so that the files in the storage are no longer this driver's.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored = read_stored_driver(store)
    return stored is not None and stored.driver_id != driver_id


def hand_over(store: Store, driver_id: str) -> None:
    """Write down that this driver has ended and stored its ledger, so that any machine may go on.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored = read_stored_driver(store)
    if stored is not None and stored.driver_id == driver_id:
        note_state(store, replace(stored, ended=True))
        store.publish([DRIVER_FILE])


def read_local_driver(store: Store) -> Driver | None:
    """Read which driver the state in the folder on this machine is from."""
    try:
        return _parse((store.folder / DRIVER_FILE).read_bytes())
    except OSError:
        return None


def note_state(store: Store, driver: Driver) -> None:
    """Write down which driver the state in the folder on this machine is from."""
    path = store.folder / DRIVER_FILE
    draft = path.with_name(f".{DRIVER_FILE}")
    draft.write_text(json.dumps(asdict(driver)))
    draft.rename(path)


def _parse(content: bytes | None) -> Driver | None:
    with contextlib.suppress(ValueError, TypeError):
        return Driver(**json.loads(content or b"null"))
    return None
