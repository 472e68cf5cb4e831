"""Describe the ledger's tables, and open a connection to them.

A SQLite file holds nothing else. In PostgreSQL the tables are in a schema of their own, apart from Optuna's tables and
the user's. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shlex
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Engine,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    create_engine,
    event,
    inspect,
    make_url,
    text,
)
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.schema import CreateSchema

from rltune.config.uris import hide_login
from rltune.errors import StudyError
from rltune.ledger.journal import connect_file

SCHEMA = "rltune"  # The schema of the tables in PostgreSQL.
IDLE_S = 10.0  # PostgreSQL ends a transaction that idles for so long, which is less than a lease.
RESTART_S = 30.0  # How long a connection waits for a database server that is being restarted.
_ID = BigInteger().with_variant(Integer(), "sqlite")  # SQLite generates keys only for columns of the type INTEGER.
_metadata = MetaData()


class _PlainText(TypeDecorator[str]):
    """Text with the characters escaped that databases refuse, such as NUL, because an error would end the driver."""

    impl, cache_ok = Text, True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        """Escape lone surrogates, as in undecodable file names, and NUL."""
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


class _Json(TypeDecorator[Any]):
    """JSON as text: a database's own JSON type refuses infinity, which is a valid value of a hyperparameter."""

    impl, cache_ok = Text, True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        """Encode a value; None becomes NULL."""
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Any) -> Any:
        """Decode a value."""
        return None if value is None else json.loads(value)


SWEEPS = Table(
    "sweeps",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("name", String(255), nullable=False, unique=True),
    Column("format", Integer, nullable=False),
    Column("key", String(64), nullable=False),
    Column("status", String(32)),
    Column("folder", _PlainText),
    Column("config", _PlainText),
    Column("versions", _Json),
    Column("git_commit", String(64)),
    Column("command", _PlainText),
    Column("began", String(64)),
    Column("wall_s", Float, nullable=False, default=0.0),
    Column("winner", _Json),
    Column("model", _Json),
    Column("certification", _Json),
    Column("mlflow_run_id", String(64)),
    Column("sampler_state", _Json),  # What the sampler remembers in Optuna's study.
)

LEASES = Table(
    "leases",
    _metadata,
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), primary_key=True, autoincrement=False),
    Column("driver_id", String(32)),  # Kept when the lease is given back; NULL before the first driver.
    Column("driver", _Json),  # See `rltune.ledger.lease.DriverRecord`.
    Column("counter", BigInteger, nullable=False, default=0),  # Grows while the driver lives.
    Column("released", Boolean, nullable=False, default=True),
)

SWEEP_TRIALS = Table(
    "sweep_trials",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("params", _Json, nullable=False),
    Column("drawn", _Json),
    Column("sampler_state", _Json),  # What the sampler remembers in Optuna's trial.
    Column("seeds", _Json, nullable=False),
    Column("env_steps", BigInteger, nullable=False, default=0),
    Column("train_s", Float, nullable=False, default=0.0),
    Column("node", String(255)),
    Column("stop_reason", _PlainText),
    Column("diverged", Boolean, nullable=False, default=False),
    Column("traceback", _PlainText),
    Column("log", _PlainText),
    Column("checkpoint", _Json),
    Column("latest", _Json),
    Column("mlflow_run_id", String(64)),
    Column("began_s", Float),
    Column("ended_s", Float),
    Column("key", _PlainText),
    Column("of_trial", Integer),
    Column("seed_index", Integer),
    Column("returns", _Json),
    Column("revision", Integer, nullable=False, default=0),  # Counts the changes of this row that trackers show.
    UniqueConstraint("sweep_id", "kind", "number"),
)

REPORTS = Table(
    "reports",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("trial_id", _ID, ForeignKey(SWEEP_TRIALS.c.id), nullable=False),
    Column("nominal_steps", BigInteger, nullable=False),  # The mark at which trials are compared.
    Column("env_steps", BigInteger, nullable=False),  # The environment steps that were sampled by then.
    Column("objective", Float),  # NULL before the first episode has ended.
    Column("numbers", _Json, nullable=False),
    Column("time_s", Float, nullable=False),
    UniqueConstraint("trial_id", "nominal_steps"),
    sqlite_autoincrement=True,  # Ids only grow, so that one of them marks how far a tracker has come.
)

DELIVERIES = Table(  # What each tracker has of a sweep.
    "deliveries",
    _metadata,
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), primary_key=True, autoincrement=False),
    Column("tracker", String(64), primary_key=True),
    Column("report", _ID, nullable=False),  # It has the reports up to this row's id.
)

TRIAL_DELIVERIES = Table(  # What each tracker has of a trial besides reports.
    "trial_deliveries",
    _metadata,
    Column("trial_id", _ID, ForeignKey(SWEEP_TRIALS.c.id), primary_key=True, autoincrement=False),
    Column("tracker", String(64), primary_key=True),
    Column("revision", Integer, nullable=False, default=0),
    Column("checkpoint", _PlainText),  # See `rltune.ledger.ledger.PendingTrial`.
)

REQUESTS = Table(
    "requests",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("payload", _Json, nullable=False),
    Column("asked_s", Float, nullable=False, key="requested_s"),
    Column("asked_by", _PlainText, nullable=False, key="requested_by"),
    Column("taken_s", Float),  # NULL until a driver has taken the request.
    Column("trial", Integer),  # The number of the trial of an enqueued configuration.
)


def connect_ledger(url: str) -> Engine:
    """Connect to a database that has the ledger or is going to have it.

    Args:
        url: The address of the database.

    Raises:
        ValueError: The database is neither SQLite nor PostgreSQL. MySQL rounds floats and cannot return inserted ids.
    """
    hide_login(url)
    if not url.startswith("sqlite:"):
        if make_url(url).get_backend_name() not in ("sqlite", "postgresql"):
            raise ValueError("a ledger is kept in SQLite or PostgreSQL")
        engine = create_engine(url, pool_pre_ping=True)
        _wait_for_restarts(engine)
        if engine.dialect.name == "postgresql":
            event.listen(engine, "connect", _limit_idle_transactions)
            return engine.execution_options(schema_translate_map={None: SCHEMA})
        return engine
    file = Path(make_url(url).database or "")
    engine = create_engine(url, creator=functools.partial(connect_file, file))
    event.listen(engine, "connect", set_pragmas)
    event.listen(engine, "handle_error", functools.partial(_name_damaged_file, file))
    return engine


def _name_damaged_file(file: Path, context: ExceptionContext) -> None:
    """Raise SQLite's error of a damaged file as a `StudyError` that names the file.

    SQLite notices damage only in the pages that it happens to read, so any read may be the first to fail.
    """
    error = context.original_exception
    # Python raises an error without a code for bytes that are not text.
    is_garbled = isinstance(error, sqlite3.OperationalError) and "decode to UTF-8" in str(error)
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # The other bytes are SQLite's extended error code.
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB) or is_garbled:
        path, damaged = shlex.quote(str(file)), shlex.quote(f"{file}.damaged")
        raise StudyError(
            f"{file} is damaged: {error}",
            "the file as rltune wrote it",
            f"mv {path} {damaged} && sqlite3 {damaged} .recover | sqlite3 {path}",
        ) from None


def _wait_for_restarts(engine: Engine) -> None:
    """Make new connections wait while the database server is being restarted, since a failure would end the sweep.

    The first connection does not wait, so that a wrong address is reported at once.
    """
    has_answered = False

    def connect(dialect: Any, _: Any, arguments: Any, options: Any) -> Any:
        nonlocal has_answered
        deadline = time.monotonic() + (RESTART_S if has_answered else 0.0)
        while True:
            try:
                connection = dialect.connect(*arguments, **options)
            except dialect.loaded_dbapi.OperationalError:
                if time.monotonic() >= deadline:
                    has_answered = False  # The next connection fails at once.
                    raise
                time.sleep(0.2)
            else:
                has_answered = True
                return connection

    event.listen(engine, "do_connect", connect)


def _limit_idle_transactions(connection: Any, _: Any) -> None:
    """Have the server end idle transactions: the locks of a stopped process would block the next driver."""
    with connection.cursor() as cursor:
        cursor.execute(f"SET idle_in_transaction_session_timeout = '{IDLE_S:g}s'")
    connection.commit()


def set_pragmas(connection: Any, _: Any) -> None:
    """Skip the sync at each commit if the file has a write-ahead log: a killed process loses nothing then."""
    cursor = connection.cursor()
    (journal,) = cursor.execute("PRAGMA journal_mode").fetchone()
    if journal == "wal":  # With another journal, a power failure could damage the file.
        cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.close()


def file_of(url: str) -> Path | None:
    """Return the file that a SQLite address names; None for a server's address."""
    return Path(url.removeprefix("sqlite:///").partition("?")[0]) if url.startswith("sqlite:") else None


def has_table(engine: Engine, table: Table) -> bool:
    """Return whether a table exists."""
    schema = SCHEMA if engine.dialect.name == "postgresql" else None
    return inspect(engine).has_table(table.name, schema=schema)


def make_tables(engine: Engine, tables: MetaData = _metadata) -> None:
    """Create the tables that do not exist yet: the ledger's, or others beside them."""
    with begin_alone(engine) as connection:
        add_tables(connection, tables)


def add_tables(connection: Connection, tables: MetaData = _metadata) -> None:
    """Create the tables that do not exist yet, in a transaction of `begin_alone`."""
    # A role without the right to create schemas may use an existing one.
    if connection.dialect.name == "postgresql" and not inspect(connection).has_schema(SCHEMA):
        connection.execute(CreateSchema(SCHEMA))
    tables.create_all(connection)


@contextlib.contextmanager
def begin_alone(engine: Engine) -> Iterator[Connection]:
    """Begin a transaction that creates tables or sweeps; only one such transaction runs at a time."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": SCHEMA})
        else:  # Python's sqlite3 begins no transaction before statements that create tables.
            connection.exec_driver_sql("BEGIN IMMEDIATE")
        yield connection
