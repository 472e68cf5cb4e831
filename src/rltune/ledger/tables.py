"""Describe the ledger's tables, and create them.

A SQLite file holds nothing else. In PostgreSQL the tables are in a schema of their own, apart from Optuna's tables and
the user's. Runs anywhere.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
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
    inspect,
    text,
)
from sqlalchemy.schema import CreateSchema

SCHEMA = "rltune"  # The schema of the tables in PostgreSQL.
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
    Column("sampler_state", _Json),  # The system attributes that the sampler stores in Optuna's study.
)

LEASES = Table(
    "leases",
    _metadata,
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), primary_key=True, autoincrement=False),
    Column("driver_id", String(32)),  # A driver's id stays when the lease is given back; NULL before the first driver.
    Column("driver", _Json),  # The fields of `rltune.ledger.lease.DriverRecord`.
    Column("counter", BigInteger, nullable=False, default=0),  # The counter grows while the driver lives.
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
    Column("origin", String(16)),
    Column("sampler_state", _Json),  # The system attributes that the sampler stores in Optuna's trial.
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
    Column("revision", Integer, nullable=False, default=0),  # Counts the changes of a trial's row that trackers show.
    UniqueConstraint("sweep_id", "kind", "number"),
)

REPORTS = Table(
    "reports",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("trial_id", _ID, ForeignKey(SWEEP_TRIALS.c.id), nullable=False),
    Column("nominal_steps", BigInteger, nullable=False),  # The mark of the budget at which trials are compared.
    Column("env_steps", BigInteger, nullable=False),  # The environment steps that the trial had sampled by this report.
    Column("score", Float),  # The score is NULL before the first episode has ended.
    Column("numbers", _Json, nullable=False),
    Column("time_s", Float, nullable=False),
    UniqueConstraint("trial_id", "nominal_steps"),
    sqlite_autoincrement=True,  # Ids of reports only grow, so an id marks how far a tracker has come.
)

DELIVERIES = Table(  # The reports of each sweep that a tracker has received.
    "deliveries",
    _metadata,
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), primary_key=True, autoincrement=False),
    Column("tracker", String(64), primary_key=True),
    Column("report", _ID, nullable=False),  # The tracker has all reports up to this report's id.
)

TRIAL_DELIVERIES = Table(  # The state of each trial, besides its reports, that a tracker has received.
    "trial_deliveries",
    _metadata,
    Column("trial_id", _ID, ForeignKey(SWEEP_TRIALS.c.id), primary_key=True, autoincrement=False),
    Column("tracker", String(64), primary_key=True),
    Column("revision", Integer, nullable=False, default=0),
    Column("checkpoint", _PlainText),  # The attribute of the same name in `PendingTrial`.
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
    Column("taken_s", Float),  # The time at which a driver took the request; NULL before.
    Column("trial", Integer),  # The number of the trial of an enqueued configuration.
)


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
    # An existing schema can be used by a role without the right to create schemas.
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
