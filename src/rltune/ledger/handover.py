"""Continue a sweep on another machine if its ledger is a SQLite file and its files are in remote storage.

A driver uploads the ledger when it ends. A machine without a ledger of the sweep, or with a copy that no driver has
changed since, downloads it. A resume is refused where this machine has changes that the storage lacks and the other
way round, and while the newest ledger is on a machine whose driver has not ended. The file ``driver.json`` in the
folder lists the states that its ledger has gone through; the storage has the file of the last driver. On a local disk
there is nothing to hand over, because the folder is the store. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shlex
import socket
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rltune.checkpoints.store import Store
from rltune.config.settings_file import read_identity
from rltune.errors import StudyError
from rltune.ledger.sweep_folder import LEDGER, SETTINGS

DRIVER_FILE = "driver.json"
PUBLISHED = (".made-by", "summary.json", "certification.csv", "certification.json", SETTINGS)
"""The files in the storage that other machines read, besides the ledger. The settings make a folder a sweep's: last."""


@dataclass(frozen=True)
class History:
    """The states of a ledger, as ``driver.json`` lists them.

    Attributes:
        states: The id of each driver that took the sweep, and ``<id> stored`` when it had uploaded the ledger.
        host: The machine of the last driver.
    """

    states: tuple[str, ...] = ()
    host: str = ""

    @property
    def is_stored(self) -> bool:
        """Whether the storage has got all of this ledger."""
        return not self.states or self.states[-1].endswith(" stored")

    @classmethod
    def parse(cls, content: bytes | None) -> History | None:
        """Read a history from ``driver.json``; None if the file is missing or damaged."""
        with contextlib.suppress(ValueError, TypeError, KeyError):
            loaded = json.loads(content or b"null")
            return cls(tuple(loaded["states"]), loaded["host"])
        return None


def read_stored_history(store: Store) -> History | None:
    """Read the history of the newest ledger from the storage; None on a local disk or before the first driver.

    Raises:
        StoreError: The storage cannot be used.
    """
    return History.parse(store.read(DRIVER_FILE, is_quick=True)) if store.address else None


def has_newest(store: Store) -> bool:
    """Return whether the ledger on this machine is at least as new as the one in the storage.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored, local = read_stored_history(store), _read_local_history(store)
    if stored is not None:
        return local is not None and stored.states[-1] in local.states
    # Where a ledger lies in the storage without a history, somebody has deleted the history to have it continued.
    return not store.address or LEDGER not in store.list(is_recursive=False, is_quick=True)


def take(store: Store, driver_id: str) -> None:
    """Record in the folder and in the storage that a driver works on the sweep.

    Raises:
        StoreError: The storage cannot be used.
    """
    if store.address:
        _add_state(store, driver_id)


def is_taken_over(store: Store, driver_id: str) -> bool:
    """Return whether another machine has taken the sweep over; this driver must not write to the storage then.

    Raises:
        StoreError: The storage cannot be used.
    """
    stored = read_stored_history(store)
    return stored is not None and stored.states[-1].split()[0] != driver_id


def hand_over(store: Store, driver_id: str) -> None:
    """Record that a driver has ended and uploaded its ledger, so that any machine may continue the sweep.

    Raises:
        StoreError: The storage cannot be used.
    """
    if store.address and not is_taken_over(store, driver_id):
        _add_state(store, f"{driver_id} stored")


def fetch_sweep(store: Store, *, for_driver: bool = False) -> None:
    """Download a sweep's files if the storage has newer ones; checkpoints are downloaded when they are needed.

    Args:
        store: The sweep's.
        for_driver: Whether the sweep is to be resumed, which needs the newest ledger; a reader takes what there is.

    Raises:
        StudyError: The newest ledger is on another machine, or this machine has changes that it lacks. Or the storage
            cannot be used.
    """
    if not store.address:
        return
    folder = store.folder
    with _lock_folder(folder):
        if (folder / SETTINGS).exists() and has_newest(store):
            return
        stored, local = read_stored_history(store), _read_local_history(store)
        if (folder / LEDGER).exists() and not (local and local.is_stored):
            if for_driver:
                raise _make_conflict_error(folder)
            return
        if stored is None or stored.is_stored:
            for derived in (*folder.glob(f"{LEDGER}-*"), *folder.glob("study.db*")):
                derived.unlink(missing_ok=True)
            store.fetch([LEDGER])
            # This is the history that was read before: another machine may have taken the sweep meanwhile.
            _write_history(folder, stored or History((f"{secrets.token_hex(8)} stored",)))
            if for_driver and stored is None:
                store.publish([DRIVER_FILE])
        store.fetch(PUBLISHED)
    if not for_driver or stored is None or stored.is_stored:
        return
    if read_identity(folder).ledger_url is None:
        raise make_distant_ledger_error(folder, stored.host)


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


def make_distant_ledger_error(folder: Path, host: str = "the machine where it runs") -> StudyError:
    """Make the error for a sweep whose newest ledger is a file on another machine.

    Args:
        folder: The sweep's.
        host: That machine.
    """
    return StudyError(
        f": its newest ledger is a file on {host}, whose driver has not ended",
        "a sweep whose driver has ended by itself, or one with its ledger in PostgreSQL",
        f"resume it on that machine; if the machine is gone, delete {DRIVER_FILE} of the sweep in the storage, and the "
        "ledger that an earlier driver has stored is continued",
        key="sweep",
        value=folder.name,
    )


def _make_conflict_error(folder: Path) -> StudyError:
    """Make the error for a sweep that two machines have continued apart from each other."""
    return StudyError(
        f": its ledger in {folder} and its ledger in the storage each have what the other lacks",
        "one ledger that is continued",
        f"mv {shlex.quote(str(folder))} {shlex.quote(f'{folder}-aside')} continues the one in the storage; without "
        f"{DRIVER_FILE} and {LEDGER} there, the one here is continued",
        key="sweep",
        value=folder.name,
    )


def _read_local_history(store: Store) -> History | None:
    """Read the history of the ledger in the folder; None if there is none."""
    try:
        return History.parse((store.folder / DRIVER_FILE).read_bytes())
    except OSError:
        return None


def _add_state(store: Store, state: str) -> None:
    """Add a state to the history in the folder, and after that to the one in the storage.

    If the driver is killed in between, other machines see no change, and this machine still has the newest ledger.
    """
    local = _read_local_history(store) or History()
    _write_history(store.folder, History((*local.states, state), socket.gethostname()))
    store.publish([DRIVER_FILE])


def _write_history(folder: Path, history: History) -> None:
    draft = folder / f".{DRIVER_FILE}"
    draft.write_text(json.dumps(asdict(history)))
    draft.rename(folder / DRIVER_FILE)
