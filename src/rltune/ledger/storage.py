"""Open the ledger of a sweep's folder: a file in the folder, or rows in a database that several sweeps share.

Starting a ledger runs in the driver; reading runs anywhere.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from rltune.config.criteria import read_criteria
from rltune.config.settings_file import SweepIdentity, load_settings, read_identity
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.ledger.database import choose_journal, file_of, make_storage_error
from rltune.ledger.handover import make_distant_ledger_error
from rltune.ledger.ledger import Ledger
from rltune.ledger.sweep_folder import LEDGER, SETTINGS, require_path
from rltune.secrets import lacks_login


def make_storage_url(configured: str | None, folder: Path) -> str:
    """Return the configured URL of the ledger, or else that of its SQLite file in the sweep's folder."""
    return configured or f"sqlite:///{folder / LEDGER}"


def open_ledger(folder: str | os.PathLike[str], ledger_url: str | None = None) -> Ledger:
    """Open the ledger of the sweep in a folder for reading.

    Args:
        folder: The sweep's folder; for a sweep that is known by its name see `rltune.ledger.sweep_ref.SweepRef`.
        ledger_url: As for `locate_ledger`.

    Raises:
        StudyError: There is no ledger, it cannot be read, or its address needs a login, which is stored in no file.
    """
    require_path("folder", folder, "the path of a sweep's folder")
    if not (Path(folder) / SETTINGS).is_file():
        raise StudyError(f"{folder} is no sweep's folder", "a folder with config.yaml in it", spell_command("list"))
    return open_ledger_of(read_identity(Path(folder)), ledger_url)


def open_ledger_of(sweep: SweepIdentity, ledger_url: str | None = None) -> Ledger:
    """Open the ledger of a sweep for reading; its trials are judged by the settings that the ledger has.

    Args:
        sweep: The sweep.
        ledger_url: As for `locate_ledger`.

    Raises:
        StudyError: As for `open_ledger`.
    """
    ledger = Ledger(*locate_ledger(sweep, ledger_url))
    return ledger.judge_by(read_criteria(load_settings(ledger.sweep().config or "")))


def locate_ledger(sweep: SweepIdentity, ledger_url: str | None = None) -> tuple[str, str | None, str | None]:
    """Return the database URL of a sweep's ledger, and the sweep's name and key there; None for a file of the folder.

    The ledger in a sweep's folder is that sweep's whatever its key.

    Args:
        sweep: The sweep.
        ledger_url: The ledger's address with its login, for a sweep whose settings name a database; None is the address
            in the settings, which has no login. A sweep that keeps its ledger in a file is read from that file.

    Raises:
        StudyError: There is none, or the address needs a login.
    """
    configured = sweep.ledger_url and (ledger_url or sweep.ledger_url)
    if configured:
        require_login(configured, sweep.folder.name)
    url = make_storage_url(configured, sweep.folder)
    file = file_of(url)
    if file is not None and not file.is_file():  # Connecting to a missing SQLite file would create an empty one.
        if sweep.storage:
            raise make_distant_ledger_error(sweep.folder)
        raise StudyError(f"{file} is missing", "the sweep's ledger", spell_command("list"))
    return (url, sweep.name, sweep.key) if configured else (url, None, None)


def require_login(ledger_url: str, name: str) -> None:
    """Refuse a database URL whose login was removed when the settings were saved.

    Args:
        ledger_url: The address.
        name: The name of the sweep.

    Raises:
        StudyError: The login is missing.
    """
    if lacks_login(ledger_url):
        raise StudyError(
            f": the login is not saved in any file, so the ledger of {name} cannot be read",
            "the whole address, or one without a password, which PGPASSWORD or ~/.pgpass holds",
            "add study.storage=... to the command, ledger_url=... to a call from Python",
            key="study.storage",
            value=ledger_url,
        )


def start_ledger(configured: str | None, folder: Path, *, new: bool) -> Ledger:
    """Open the ledger of a sweep for its driver, which may write to it.

    Args:
        configured: The setting ``study.storage``; None is a file in the folder.
        folder: The folder of the sweep.
        new: Whether to create the ledger, for a sweep that has not been begun.

    Raises:
        StudyError: The ledger is missing or cannot be read, it is another sweep's, or the new sweep has been begun
            already.
    """
    url = make_storage_url(configured, folder)
    if new or configured:
        key = None if new else read_identity(folder).key
        return Ledger(url, folder.name, key, create=new)
    if not (folder / LEDGER).exists():
        raise StudyError(
            f"{folder / LEDGER} is missing",
            "the sweep's ledger",
            "put a copy of yours there; without one, the trials can only be run again under a new name",
        )
    return Ledger(url)


def set_journal(ledger: Ledger, shared: bool) -> None:
    """Choose the journal mode of a ledger that is a SQLite file; only the driver that holds the lease may do that.

    Args:
        ledger: The ledger.
        shared: Whether other hosts use the sweep's folder.

    Raises:
        StudyError: The file cannot be written.
    """
    if file := file_of(ledger.url):
        ledger.close()  # SQLite cannot change the journal mode while another connection is open.
        try:
            choose_journal(file, shared)
        except sqlite3.Error as error:
            raise make_storage_error(ledger.url, error) from None


def copy_ledger(file: Path, copy: Path) -> None:
    """Copy a ledger's SQLite file, even while it is in use, for other machines; the copy's lease is free.

    Raises:
        sqlite3.Error: The file cannot be read, or the copy cannot be written.
    """
    with contextlib.closing(sqlite3.connect(file)) as source, contextlib.closing(sqlite3.connect(copy)) as target:
        source.backup(target)
        with target:
            target.execute("UPDATE leases SET released = 1")
