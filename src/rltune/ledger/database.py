"""Connect to the database of a ledger, a SQLite file or a PostgreSQL server, create its tables, and explain failures.

The journal of a file depends on the file system. A write-ahead log shares memory between its readers and its writer, so
all of them have to be on one host, and SQLite supports it on no network file system. A rollback journal works there,
but a commit then waits for the disk twice, and readers let the writer wait. The driver chooses the journal; readers
leave it as it is. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import shlex
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
from sqlalchemy import (
    Connection,
    Dialect,
    Engine,
    MetaData,
    QueuePool,
    Table,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.exc import InterfaceError, OperationalError
from sqlalchemy.schema import CreateColumn, CreateSchema

from rltune.errors import StudyError, StudyUnavailableError, describe_exception
from rltune.ledger.disk_full import is_disk_full
from rltune.ledger.tables import GROWN, METADATA, SCHEMA
from rltune.secrets import conceal, redact_error, reveal

# PostgreSQL rolls back a transaction that is idle this long. It is shorter than a lease, so no lock outlasts one.
IDLE_S = 10.0
CONNECT_S = 5  # A server that does not accept a connection within this time is down.
ANSWER_S = 30.0  # So is one that has not answered a statement within this time, or to which nothing gets through.
KEEPALIVE_S = 5  # An idle connection is probed at this interval; after three probes without an answer it is lost.
RESTART_S = 30.0  # A new connection waits this long for a database server that is restarting.
NETWORK_FILE_SYSTEMS = frozenset({
    "9p", "afpfs", "afs", "beegfs", "ceph", "cifs", "gfs2", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs", "nfs4",
    "ocfs2", "orangefs", "panfs", "pvfs2", "smb", "smb2", "smb3", "smbfs", "virtiofs", "webdav", "wekafs",
})  # fmt: skip
LOCAL_FUSE = frozenset({"fuse.fuse-overlayfs"})  # Rootless containers use this FUSE file system for their local disk.
TIMEOUT_S = 60.0  # A SQLite statement waits this long for a lock of another process.
# The PostgreSQL driver raises the same exception class for a wrong login and for a server that is down, so a wrong
# login is recognized by its message.
_REFUSED = re.compile(r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry")
# The compiled statements of all files: a dictionary, because the statements of a ledger are a few dozen.
_COMPILED: dict[Any, Any] = {}
logger = logging.getLogger(__name__)


def connect_ledger(url: str) -> Engine:
    """Connect to the database of a ledger, whose tables need not exist yet.

    Args:
        url: The address of the database.

    Raises:
        ValueError: The database is neither SQLite nor PostgreSQL. MySQL rounds floats and cannot return inserted ids.
    """
    url = reveal(conceal(url))  # From now on, no text of this process shows the login.
    if not url.startswith("sqlite:"):
        if make_url(url).get_backend_name() not in ("sqlite", "postgresql"):
            raise ValueError("a ledger is kept in SQLite or PostgreSQL")
        engine = create_engine(url, pool_pre_ping=True, connect_args=_choose_time_limits(url))
        _wait_for_restarts(engine)
        if engine.dialect.name == "postgresql":
            event.listen(engine, "connect", _limit_transactions)
            return engine.execution_options(schema_translate_map={None: SCHEMA})
        return engine
    parsed, dialect = make_url(url), _make_file_dialect()
    file = Path(parsed.database or "")
    connect: Any = functools.partial(connect_file, file)  # SQLAlchemy's protocol of a connection is narrower.
    engine = Engine(QueuePool(connect, dialect=dialect), dialect, parsed)
    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "connect", _complete_older_table)
    return engine.execution_options(compiled_cache=_COMPILED)


@functools.cache
def _make_file_dialect() -> Dialect:
    """Make the dialect that the engines of all files share, and with it `_COMPILED`.

    An engine of its own would compile each statement anew, which takes longer than to read a small ledger.
    """
    engine = create_engine("sqlite://")
    event.listen(engine, "handle_error", _name_damaged_file)  # SQLAlchemy keeps this listener in the dialect.
    with engine.connect():  # The first connection tells the dialect what this SQLite can do.
        return engine.dialect


def _name_damaged_file(context: ExceptionContext) -> None:
    """Raise a `StudyError` that names the file if SQLite reports that the file is damaged.

    SQLite notices damage only in the pages that it happens to read, so any read may be the first to fail.
    """
    error = context.original_exception
    # If text in the file is not UTF-8, Python's sqlite3 raises an error without an SQLite error code.
    is_garbled = isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)
    # The low byte is SQLite's primary error code; the higher bytes refine it.
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if context.engine and (code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or is_garbled):
        file = context.engine.url.database
        path, damaged = shlex.quote(str(file)), shlex.quote(f"{file}.damaged")
        raise StudyError(
            f"{file} is damaged: {error}",
            "the file as rltune wrote it",
            f"mv {path} {damaged} && sqlite3 {damaged} .recover | sqlite3 {path}",
        ) from None


def _choose_time_limits(url: str) -> dict[str, Any]:
    """Return the connection parameters that bound each wait for a PostgreSQL server, except those that the URL sets.

    They are libpq's, which other drivers than psycopg do not have.
    """
    parsed = make_url(url)
    if not parsed.get_driver_name().startswith("psycopg"):
        return {}
    limits = {
        "connect_timeout": CONNECT_S,
        "keepalives_idle": KEEPALIVE_S,
        "keepalives_interval": KEEPALIVE_S,
        "keepalives_count": 3,
        "tcp_user_timeout": int(1000 * ANSWER_S),
    }
    return {key: value for key, value in limits.items() if key not in parsed.query}


def _connect(dialect: Any, arguments: Any, options: Any) -> Any:
    """Connect so that each statement has a time limit on this side, too.

    A server whose processes are suspended enforces no ``statement_timeout``, and its kernel goes on acknowledging what
    it receives, so that no time-out of TCP ends the wait either.
    """
    if dialect.driver != "psycopg":
        return dialect.connect(*arguments, **options)
    import psycopg

    class TimedConnection(psycopg.Connection[Any]):
        def wait(self, gen: Any, interval: float = 0.1, timeout: float | None = None) -> Any:
            try:
                return super().wait(gen, interval, ANSWER_S if timeout is None else timeout)
            except psycopg.errors.OperationalError:
                # After a time-out the server may still answer, so that no later statement can use the connection.
                if self.pgconn.transaction_status == psycopg.pq.TransactionStatus.ACTIVE:
                    self.pgconn.finish()
                raise

    return TimedConnection.connect(*arguments, **options)


def _wait_for_restarts(engine: Engine) -> None:
    """Let new connections wait while the database server restarts; otherwise a restart would end the sweep.

    The first connection does not wait, so that a wrong address is reported at once.
    """
    has_answered = False

    def connect(dialect: Any, _: Any, arguments: Any, options: Any) -> Any:
        nonlocal has_answered
        deadline = time.monotonic() + (RESTART_S if has_answered else 0.0)
        while True:
            try:
                connection = _connect(dialect, arguments, options)
            except dialect.loaded_dbapi.OperationalError:
                if time.monotonic() >= deadline:
                    # The server has stayed away, so the next connections fail at once instead of waiting again.
                    has_answered = False
                    raise
                time.sleep(0.2)
            else:
                has_answered = True
                return connection

    event.listen(engine, "do_connect", connect)


def _limit_transactions(connection: Any, _: Any) -> None:
    """Let PostgreSQL end idle transactions, because a suspended process's locks would block the next driver.

    Statements that take too long end, too, so that they keep no locks after this side has given them up.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_S:g}s'")
        cursor.execute(f"SET statement_timeout = '{ANSWER_S:g}s'")
    connection.commit()


def set_pragmas(connection: Any, _: Any) -> None:
    """With a write-ahead log, do not sync the file at each commit: even then a killed process loses no commit."""
    cursor = connection.cursor()
    (journal,) = cursor.execute("PRAGMA journal_mode").fetchone()
    if journal == "wal":  # With a rollback journal, synchronous=NORMAL could corrupt the file in a power failure.
        cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def _complete_older_table(connection: Any, _: Any) -> None:
    """Let a ledger of an earlier version be read as if it had the columns of this one, all of them empty.

    A temporary view, which is stored in no file, takes the table's place in this connection. Nobody writes to such a
    table: a sweep of another format is not resumed, and the driver of one of this format adds the columns first.
    """
    for name, columns in ((table.name, table.c) for table in GROWN):
        present = {row[1] for row in connection.execute(f"PRAGMA main.table_info({name})")}
        missing = [f"NULL AS {column.name}" for column in columns if column.name not in present]
        if present and missing:
            view = f"SELECT *, {', '.join(missing)} FROM main.{name}"  # noqa: S608
            connection.execute(f"CREATE TEMP VIEW {name} AS {view}")


def file_of(url: str) -> Path | None:
    """Return the file that a SQLite address names; None for a server's address."""
    return Path(url.removeprefix("sqlite:///").partition("?")[0]) if url.startswith("sqlite:") else None


# -- Functions that create tables --------------------------------------------------------------------------------------


def has_table(engine: Engine, table: Table) -> bool:
    """Return whether the database has a table."""
    schema = SCHEMA if engine.dialect.name == "postgresql" else None
    return inspect(engine).has_table(table.name, schema=schema)


def make_tables(engine: Engine, tables: MetaData = METADATA) -> None:
    """Create those of the given tables that do not exist yet."""
    with begin_alone(engine) as connection:
        add_tables(connection, tables)


def add_tables(connection: Connection, tables: MetaData = METADATA) -> None:
    """Create missing tables in a transaction that `begin_alone` has begun."""
    # Creating a schema needs a privilege, and using an existing one does not, so it is created only if missing.
    if connection.dialect.name == "postgresql" and not inspect(connection).has_schema(SCHEMA):
        connection.execute(CreateSchema(SCHEMA))
    tables.create_all(connection)
    for table in GROWN if tables is METADATA else ():
        # An earlier version may have created the table without the columns of this format, which are empty then.
        schema = SCHEMA if connection.dialect.name == "postgresql" else "main"
        present = {column["name"] for column in inspect(connection).get_columns(table.name, schema=schema)}
        for column in (column for column in table.c if column.name not in present):
            definition = CreateColumn(column).compile(dialect=connection.dialect)
            connection.exec_driver_sql(f"ALTER TABLE {schema}.{table.name} ADD COLUMN {definition}")


@contextlib.contextmanager
def begin_alone(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that creates tables or sweeps; a lock admits one such transaction at a time."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": SCHEMA})
        else:  # Python's sqlite3 does not begin a transaction before CREATE TABLE, so BEGIN is sent explicitly.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection


@contextlib.contextmanager
def read_at_one_moment(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction whose queries all see the tables as they are at the first one."""
    with engine.connect() as connection:
        if connection.dialect.name == "postgresql":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        else:  # Python's sqlite3 does not begin a transaction before SELECT, so BEGIN is sent explicitly.
            connection.exec_driver_sql("BEGIN")
        yield connection


# -- Functions for files of SQLite -------------------------------------------------------------------------------------


def find_network_file_system(path: Path) -> str | None:
    """Return the type of the network file system on which a path lies, such as ``nfs4``; None on a local disk.

    Everything that FUSE mounts except disks counts as a network, because which of these share memory is not known.
    """
    real = path.absolute().resolve()
    mounts = {Path(mount.mountpoint): mount.fstype.lower() for mount in psutil.disk_partitions(all=True)}
    kind = next((mounts[folder] for folder in (real, *real.parents) if folder in mounts), "")
    return kind if kind in NETWORK_FILE_SYSTEMS or (kind.startswith("fuse.") and kind not in LOCAL_FUSE) else None


def choose_journal(file: Path, shared: bool = False) -> None:
    """Choose the journal of a SQLite file: a write-ahead log, or a rollback journal if several hosts use the file.

    Args:
        file: A SQLite file, which keeps the choice.
        shared: Whether other hosts see it, even if its file system here is a local one: a host may export its disk.

    Raises:
        sqlite3.Error: It cannot be written, or another process does not let go of it.
    """
    kind = find_network_file_system(file)
    if kind:
        logger.warning(
            "%s lies on a network file system (%s): it is written without a write-ahead log, which is slower; "
            "PostgreSQL is made for several hosts: study.storage=postgresql+psycopg://host/db",
            file,
            kind,
        )
    with contextlib.closing(sqlite3.connect(file, timeout=TIMEOUT_S)) as opened:
        opened.execute(f"PRAGMA journal_mode={'DELETE' if kind or shared else 'WAL'}")


def has_write_ahead_log(file: Path) -> bool:
    """Return whether the header of a SQLite file says that it uses a write-ahead log."""
    with file.open("rb") as opened:
        # Bytes 18 and 19 of a SQLite file are both 2 if it uses a write-ahead log.
        return opened.read(20)[18:] == b"\2\2"


def connect_file(file: Path) -> sqlite3.Connection:
    """Connect to a SQLite file, even if its folder is read-only.

    Reading a file that has a write-ahead log needs a second file beside it for shared memory, which SQLite cannot make
    in a read-only folder. If the log is empty, nobody writes the file, so it is read as one that does not change.
    """
    log = file.with_name(f"{file.name}-wal")
    has_log_entries = log.exists() and log.stat().st_size > 0
    is_read_only = file.is_file() and not os.access(file.parent, os.W_OK)
    is_unchanging = is_read_only and not has_log_entries and has_write_ahead_log(file)
    address = f"file:{quote(str(file.absolute()))}{'?immutable=1' if is_unchanging else ''}"
    # SQLAlchemy's pool passes a connection from thread to thread, but two threads never use it at the same time.
    return sqlite3.connect(address, timeout=TIMEOUT_S, uri=True, check_same_thread=False)


# -- Functions that explain errors of a database -----------------------------------------------------------------------


def check_storage(url: str) -> None:
    """Refuse a database that cannot be used, before a sweep begins; a missing SQLite file is created later.

    Args:
        url: The setting ``study.storage``.

    Raises:
        StudyError: The database is of an unsupported kind, or cannot be reached.
    """
    try:
        engine = connect_ledger(url)
        if engine.dialect.name != "sqlite":
            engine.connect().close()
        engine.dispose()
    except Exception as error:
        raise make_storage_error(url, error) from None


def make_storage_error(url: str, error: Exception) -> StudyError:
    """Make the error for a database that cannot be used; the login in the database's address is left out.

    It is unavailable if the disk is full or the server is down, but not if the server refuses the login.
    """
    if isinstance(error, StudyError):  # The file's damage was detected earlier, and this error already names the file.
        return error
    is_away = isinstance(error, (OperationalError, InterfaceError)) and not url.startswith("sqlite")
    is_unavailable = is_disk_full(error) or (is_away and not _REFUSED.search(str(error)))
    return (StudyUnavailableError if is_unavailable else StudyError)(
        f"cannot be opened: {redact_error(url, describe_exception(error))}",
        "room for it on its disk" if is_disk_full(error) else "a database that can be reached",
        "study.storage=postgresql+psycopg://user@host/database, or study.storage=null for a file in the sweep's folder",
        key="study.storage",
        value=_redact_url(url),
    )


def _redact_url(url: str) -> str:
    """Remove the login from a database URL; text that is no URL is hidden entirely, as it may be a password."""
    return conceal(url) if "://" in url else "***"
