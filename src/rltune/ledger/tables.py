"""Define the ledger's tables for SQLAlchemy.

A SQLite file holds nothing else. In PostgreSQL the tables are in a schema of their own, apart from Optuna's tables and
the user's. Runs anywhere.
"""

from __future__ import annotations

import json
from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Float,
    ForeignKey,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
    # While the ORM is imported, it registers itself with the core module by module, and a statement of the ledger in
    # another thread would meet a half-imported one. Optuna and MLflow import it in threads, so it is imported here.
    orm,  # noqa: F401
)

SCHEMA = "rltune"  # In PostgreSQL, the tables are in this schema.
# SQLite generates primary keys only for columns of the type INTEGER.
_ID = BigInteger().with_variant(Integer(), "sqlite")
METADATA = MetaData()


class _PlainText(TypeDecorator[str]):
    """Text in which characters that databases refuse, such as NUL, are escaped; an error would end the driver."""

    impl, cache_ok = Text, True

    def process_bind_param(self, value: str | None, dialect: Any) -> str | None:
        """Escape NUL and lone surrogates, such as those of undecodable file names."""
        if value is None:
            return None
        return value.encode("utf-8", "backslashreplace").decode().replace("\0", "\\0")


class _Json(TypeDecorator[Any]):
    """JSON stored as text, because a database's JSON type refuses infinity, a valid value of a hyperparameter."""

    impl, cache_ok = Text, True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        """Encode a value as JSON; None becomes NULL."""
        return None if value is None else json.dumps(value, separators=(",", ":"))

    def process_result_value(self, value: str | None, dialect: Any) -> Any:
        """Decode a value from JSON."""
        return None if value is None else json.loads(value)


SWEEPS = Table(
    "sweeps",
    METADATA,
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
    Column("mlflow", _Json),  # The store and the experiment of that run, see `SweepRecord`.
    Column("sampler_state", _Json),  # Optuna's study attributes, in which samplers store their state.
)

LEASES = Table(
    "leases",
    METADATA,
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), primary_key=True, autoincrement=False),
    Column("driver_id", String(32)),  # The last driver, kept after the lease is released; NULL before the first one.
    Column("driver", _Json),  # The fields of `rltune.ledger.lease.DriverRecord` as JSON.
    Column("counter", BigInteger, nullable=False, default=0),  # The driver increments it as long as it lives.
    Column("released", Boolean, nullable=False, default=True),
)

SWEEP_TRIALS = Table(
    "sweep_trials",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("number", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("params", _Json, nullable=False),
    Column("drawn", _Json),
    Column("origin", String(16)),
    Column("sampler_state", _Json),  # Optuna's trial attributes, in which samplers store their state.
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
    Column("returns", _Json),  # A list, or by the fields of `TrialRecord` if other returns choose.
    Column("metrics", _Json),
    # Reserved for what no version records yet, so that the format need not be raised again.
    Column("cause", String(32)),  # Who failed, as whoever saw it says: environment, diverged, out of memory and so on.
    Column("parent", _Json),  # The trial and the checkpoint from which this trial was forked.
    Column("schedule", _Json),  # Values that change during training, by parameter and environment steps.
    Column("revision", Integer, nullable=False, default=0),  # Grows with each change that trackers such as MLflow show.
    UniqueConstraint("sweep_id", "kind", "number"),
)

GROWN = SWEEPS, SWEEP_TRIALS  # The tables that have more columns now than in the oldest format that is read.

REPORTS = Table(
    "reports",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("trial_id", _ID, ForeignKey(SWEEP_TRIALS.c.id), nullable=False),
    Column("nominal_steps", BigInteger, nullable=False),  # The step of the budget at which trials are compared.
    # The environment steps that the trial had actually taken at this report.
    Column("env_steps", BigInteger, nullable=False),
    Column("score", Float),  # NULL before the first episode has ended.
    Column("numbers", _Json, nullable=False),
    Column("time_s", Float, nullable=False),
    UniqueConstraint("trial_id", "nominal_steps"),
    sqlite_autoincrement=True,  # Ids are never reused, so a tracker's progress is a single id.
)

DELIVERIES = Table(  # Which reports of each sweep a tracker, such as MLflow, has received.
    "deliveries",
    METADATA,
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), primary_key=True, autoincrement=False),
    Column("tracker", String(64), primary_key=True),
    Column("report", _ID, nullable=False),  # All reports up to this id were delivered to the tracker.
)

TRIAL_DELIVERIES = Table(  # Which state and checkpoint of each trial a tracker has received.
    "trial_deliveries",
    METADATA,
    Column("trial_id", _ID, ForeignKey(SWEEP_TRIALS.c.id), primary_key=True, autoincrement=False),
    Column("tracker", String(64), primary_key=True),
    Column("revision", Integer, nullable=False, default=0),
    Column("checkpoint", _PlainText),  # See `PendingTrial.checkpoint`.
)

REQUESTS = Table(
    "requests",
    METADATA,
    Column("id", _ID, primary_key=True),
    Column("sweep_id", _ID, ForeignKey(SWEEPS.c.id), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("payload", _Json, nullable=False),
    Column("asked_s", Float, nullable=False, key="requested_s"),
    Column("asked_by", _PlainText, nullable=False, key="requested_by"),
    Column("taken_s", Float),  # The time at which a driver took the request; NULL until then.
    Column("trial", Integer),  # The number of the trial of an enqueued configuration.
    # Requests can be withdrawn, and whoever remembers the id of the newest one must not see that id again.
    sqlite_autoincrement=True,
)
