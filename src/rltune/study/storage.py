"""Open a ledger where it lives: a file in its sweep's folder, or rows in a database of several sweeps.

A file is checked for damage, and copied aside as the state to go back to. Runs in the driver; reading runs anywhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sqlite3
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from omegaconf import OmegaConf
from sqlalchemy import Connection, text
from sqlalchemy.exc import SQLAlchemyError

from rltune.config.criteria import read_criteria
from rltune.config.settings_file import read_settings
from rltune.config.uris import HIDDEN
from rltune.errors import StudyError
from rltune.formatting import first_line, spell_command
from rltune.study.bucket import find_bucket, is_fetched_copy
from rltune.study.journal import choose_journal
from rltune.study.ledger import Ledger, MissingSweepError, make_storage_error
from rltune.study.sweep_folder import LEDGER, LEDGER_COPY, SETTINGS, SILENT_S, find_driver, make_distant_ledger_error
from rltune.study.tables import connect_ledger, file_of

STUDY = "study.db"
_KEEP_ALIVE = """SELECT set_config('application_name', :ours, false), set_config('tcp_keepalives_idle', '3', false),
set_config('tcp_keepalives_interval', '3', false), set_config('tcp_keepalives_count', '3', false)"""
_TAKE = "SELECT pg_try_advisory_lock(hashtext('rltune sweep'), hashtext(:name))"
_WHO = """SELECT application_name FROM pg_locks JOIN pg_stat_activity USING (pid) WHERE locktype = 'advisory'
AND granted AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) AND objsubid = 2
AND classid = hashtext('rltune sweep')::oid AND objid = hashtext(:name)::oid"""
logger = logging.getLogger(__name__)


def make_storage_url(configured: str | None, folder: Path, file: str = LEDGER) -> str:
    """Return the URL of the ledger (or of Optuna's study): as configured, else SQLite in the sweep's folder."""
    return configured or f"sqlite:///{folder / file}"


def open_ledger(folder: str | Path, ledger_url: str | None = None) -> Ledger:
    """Open the ledger of a sweep's folder, for reading.

    Args:
        folder: The sweep's folder; for a sweep that is known by its name see `rltune.study.sweep_ref.SweepRef`.
        ledger_url: The ledger's address with its login, for a sweep whose settings name a database; None is the address
            in the settings, which has no login. A sweep that keeps its ledger in a file is read from that file.

    Raises:
        StudyError: The folder holds none, it cannot be read, or its address needs a login, which is kept in no file.
    """
    folder = Path(folder)
    if not (folder / SETTINGS).is_file():
        raise StudyError(f"{folder} is no sweep's folder", "a folder with config.yaml in it", spell_command("list"))
    settings = read_settings(folder)
    configured = OmegaConf.select(settings, "study.storage")
    if configured:
        configured = ledger_url or configured
        require_login(configured, folder.name)
    url = make_storage_url(configured, folder)
    file = file_of(url)
    if file is not None and not file.is_file():  # SQLite would make an empty one
        if is_fetched_copy(folder):
            raise make_distant_ledger_error(folder)
        raise StudyError(f"{file} is missing", "the sweep's ledger", spell_command("list"))
    ledger = Ledger(url, folder.name if configured else _read_sweep_name(folder))
    return ledger.judge_by(read_criteria(settings))


def require_login(ledger_url: str, name: str) -> None:
    """Refuse a ledger's address whose login was left out where it was written.

    Args:
        ledger_url: The address.
        name: The sweep.

    Raises:
        StudyError: The login is missing.
    """
    if HIDDEN in ledger_url:
        raise StudyError(
            f"study.storage={ledger_url}: the login is kept in no file, so the ledger of {name} cannot be read",
            "the whole address, or one without a password, which PGPASSWORD or ~/.pgpass holds",
            "add study.storage=... to the command, ledger_url=... to a call from Python",
        )


def start_ledger(configured: str | None, folder: Path, *, new: bool, shared: bool = False) -> Ledger:
    """Open the ledger of a sweep's folder, for its driver.

    One that was killed before it had a ledger has run no trial either: it gets one now.

    Args:
        configured: ``study.storage``; None is a file in the folder.
        folder: The sweep's.
        new: Whether there must be none yet.
        shared: Whether other hosts see the folder.

    Raises:
        StudyError: It is missing or damaged, or there is one already.
    """
    ledger = _find_or_make(configured, folder, new=new)
    if file := file_of(ledger.url):
        ledger.close()  # connections would keep the file as it is
        try:
            choose_journal(file, shared)
        except sqlite3.Error as error:
            raise make_storage_error(ledger.url, error) from None
    return ledger


def _find_or_make(configured: str | None, folder: Path, *, new: bool) -> Ledger:
    url, has_no_trials = make_storage_url(configured, folder), not _has_trials(folder)
    if configured:
        try:
            return Ledger(url, folder.name, create=new)
        except MissingSweepError:
            if not has_no_trials:
                raise
            return Ledger(url, folder.name, create=True)
    path = folder / LEDGER
    if path.exists():
        if damage := _find_damage(path):  # before anything is written into it
            raise StudyError(
                f"{path} is damaged: {damage}", "the ledger as the sweep wrote it", _suggest_recovery(path)
            )
    elif new or has_no_trials:
        _make_file(path, folder.name)
    else:
        raise StudyError(f"{path} is missing", "the sweep's ledger", _suggest_recovery(path))
    return Ledger(url, _read_sweep_name(folder))


def _has_trials(folder: Path) -> bool:
    bucket = find_bucket(folder)
    return (folder / "trials").exists() or (bucket is not None and bool(bucket.list_files("trials")))


@contextlib.contextmanager
def claim_in_database(url: str, name: str) -> Iterator[str | None]:
    """Claim a sweep whose ledger is in PostgreSQL for this driver alone, whatever machine another one is on.

    The server frees the lock when the connection ends, with its driver or 12 s after its machine. It is held by a
    connection of its own, which no pool takes back.

    Args:
        url: The ledger's address.
        name: The sweep.

    Yields:
        None where it is ours, or in no such database; else where the other driver is.

    Raises:
        StudyError: The database cannot be reached.
    """
    engine = connect_ledger(url)
    if engine.dialect.name != "postgresql":
        yield None
        return
    with contextlib.ExitStack() as stack:
        stack.callback(engine.dispose)
        try:
            held = engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            stack.callback(held.invalidate)  # closed even where the server is gone
            other = _claim(held, name)
        except SQLAlchemyError as error:
            raise make_storage_error(url, error) from None
        yield other


def _claim(connection: Connection, name: str) -> str | None:
    """Take a sweep's lock; return where its other driver is."""
    about = {"name": name, "ours": f"on {socket.gethostname()} (process {os.getpid()})"}
    connection.execute(text(_KEEP_ALIVE), about)
    deadline = time.monotonic() + SILENT_S  # for the lock of a machine that is gone
    while not connection.execute(text(_TAKE), about).scalar_one():
        if time.monotonic() >= deadline:
            return str(connection.execute(text(_WHO), about).scalar() or "on another machine")
        time.sleep(1.0)
    return None


def find_driver_of(ledger: Ledger, folder: Path | None) -> str | None:
    """Find where the driver of a sweep is, whatever machine that is; None where none lives.

    Args:
        ledger: The sweep's.
        folder: Its folder; None where this machine has none.

    Raises:
        StudyError: The database cannot be reached.
    """
    if not file_of(ledger.url):
        engine = connect_ledger(ledger.url)
        try:
            if engine.dialect.name == "postgresql":
                with engine.connect() as connection:
                    found = connection.execute(text(_WHO), {"name": ledger.name}).first()
                return None if found is None else str(found[0] or "on another machine")
        except SQLAlchemyError as error:
            raise make_storage_error(ledger.url, error) from None
        finally:
            engine.dispose()
    return find_driver(folder) if folder else None


def save_copy(folder: Path) -> None:
    """Copy the ledger's file aside, as the state to go back to when it is damaged one day.

    A damaged one is not copied, and a full disk leaves the earlier copy.
    """
    path, draft = folder / LEDGER, folder / f".{LEDGER_COPY}"
    if not path.exists() or _find_damage(path):
        return
    try:
        with contextlib.closing(sqlite3.connect(path)) as ledger, contextlib.closing(sqlite3.connect(draft)) as copy:
            ledger.backup(copy)
        draft.rename(folder / LEDGER_COPY)
    except (sqlite3.Error, OSError) as error:
        draft.unlink(missing_ok=True)
        logger.warning("no copy of %s was made: %s", path, error)


def _read_sweep_name(folder: Path) -> str:
    """Read the sweep's name in its own file, which keeps it when the folder is renamed."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(folder / LEDGER)) as ledger:
        names = [str(name) for (name,) in ledger.execute("SELECT name FROM sweeps")]
        if len(names) == 1:
            return names[0]
    return folder.name


def _make_file(path: Path, name: str) -> None:
    """Make a ledger without trials, whole or not at all."""
    draft = path.with_name(f".{path.name}")
    for leftover in path.parent.glob(f"{draft.name}*"):
        leftover.unlink()
    Ledger(f"sqlite:///{draft}", name, create=True).close()
    draft.rename(path)


def _find_damage(path: Path) -> str:
    """Say what is wrong with a ledger's file; empty when nothing is.

    SQLite itself finds damage only where it happens to read.
    """
    try:
        with contextlib.closing(sqlite3.connect(path, timeout=60)) as ledger:
            (verdict,) = ledger.execute("PRAGMA quick_check(1)").fetchone()
            if verdict == "ok" and not ledger.execute("SELECT count(*) FROM sweeps").fetchone()[0]:
                verdict = "it holds no sweep"
    except sqlite3.Error as error:
        verdict = str(error)
    return "" if verdict == "ok" else first_line(str(verdict))


def _suggest_recovery(path: Path) -> str:
    copy = path.with_name(LEDGER_COPY)
    if not copy.exists():
        return "put a copy of yours there; without one, the trials can only be run again under a new name"
    age = datetime.fromtimestamp(copy.stat().st_mtime).astimezone().isoformat(" ", "seconds")
    return f"rm -f {path}*; cp {copy} {path}   # its state of {age}; what came after it is trained again"
