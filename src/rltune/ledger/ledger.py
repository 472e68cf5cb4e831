"""Read and write the ledger of a sweep: parameters, reports, checkpoints, states, seeds and costs of its trials.

The ledger is the source of truth and commits first. Optuna's study (`rltune.ledger.optuna_study`) and what MLflow shows
(`rltune.tracking`) are derived from it and can be rebuilt. Writing runs in the driver; reading runs anywhere.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Engine, Table, delete, func, insert, or_, select, true, update
from sqlalchemy.exc import SQLAlchemyError

from rltune.config.criteria import Criteria
from rltune.config.settings_file import FORMAT, OLDEST_FORMAT, check_format
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.ledger.database import (
    add_tables,
    begin_alone,
    connect_ledger,
    file_of,
    has_table,
    make_storage_error,
    make_tables,
)
from rltune.ledger.lease import Fence, Lease, LeaseState, read_lease
from rltune.ledger.tables import (
    DELIVERIES,
    LEASES,
    REPORTS,
    REQUESTS,
    SWEEP_TRIALS,
    SWEEPS,
    TRIAL_DELIVERIES,
)
from rltune.ledger.trial_table import REPORT_COLUMNS, TrialTable, make_report
from rltune.records import CERTIFY, SPACE, TRIALS, Report, SweepRecord, SweepRequest, TrialRecord

_REQUEST_COLUMNS = [REQUESTS.c[entry.name] for entry in fields(SweepRequest)]
SWEEP_COLUMNS = [SWEEPS.c[entry.name] for entry in fields(SweepRecord)]
# The stop reason of a failed trial that a user wants to retry and that has not started again yet.
_REOPENED = "to be tried again"


class MissingSweepError(StudyError):
    """The database has no sweep of this name."""


@dataclass(frozen=True)
class PendingTrial:
    """A trial whose latest state or checkpoint a tracker, such as MLflow, has not received yet.

    Attributes:
        kind: TRIALS or CERTIFY.
        number: Its number.
        revision: Counts the changes of the trial that trackers show.
        delivered: The revision that the tracker has; 0 before it has the trial.
        checkpoint: The path of the checkpoint whose files the tracker has; '' if there were none to deliver, None
            before the delivery.
    """

    kind: str
    number: int
    revision: int
    delivered: int
    checkpoint: str | None


class Ledger:
    """The ledger of one sweep.

    Args:
        url: An SQLAlchemy URL.
        name: The sweep; None is the only one of a file.
        key: The sweep's random key, as its folder has it; None accepts the sweep of this name whatever its key.
        create: Whether to add the sweep; otherwise it has to exist.

    Attributes:
        trials: The trials of the search.
        runs: The runs of the certification.
        fence: Begins the transactions that write, and has the driver's lease.
        sweep_id: The id of the sweep's row.
        key: The random key in that row.

    Raises:
        StudyError: The sweep to add was begun already, or the sweep to open is missing, has another key or another
            format, or cannot be read.
    """

    def __init__(self, url: str, name: str | None = None, key: str | None = None, *, create: bool = False) -> None:
        self.url = url
        try:
            self._engine = connect_ledger(url)
            row = _find_or_add_sweep(self._engine, name) if name and create else _find_sweep(self._engine, name)
        except Exception as error:
            raise make_storage_error(url, error) from None
        if row is None:
            problem = f"the sweep '{name}' is not in its ledger" if name else f"{file_of(url)} has no sweep"
            raise MissingSweepError(problem, "a ledger of this sweep", spell_command("list"))
        self.sweep_id, self.name, self._format, self.key = row
        # Tables on a server are not migrated, so that an earlier format is read in files only.
        oldest = OLDEST_FORMAT if self.is_file and not create else FORMAT
        check_format(": its ledger", self._format, oldest, self.name)
        self.fence = Fence(self._engine, self.sweep_id)
        if key not in (None, self.key):
            raise self.make_other_sweep_error()
        self.trials = TrialTable(self.fence, TRIALS)
        self.runs = TrialTable(self.fence, CERTIFY)
        if create:
            self.require_new()

    def make_other_sweep_error(self) -> StudyError:
        """Make the error for a row that another sweep of the same name has."""
        folder = self.sweep().folder
        return StudyError(
            ": its ledger has another sweep of this name" + (f", of {folder}" if folder else ""),
            "the sweep whose key config.yaml has",
            "the same command with another name=... or another study.storage=... begins this one again",
            key="sweep",
            value=self.name,
        )

    @property
    def criteria(self) -> Criteria:
        """The direction, constraints and second objective by which trials are judged."""
        return self.trials.criteria

    def judge_by(self, criteria: Criteria) -> Ledger:
        """Judge all trials by the sweep's direction, constraints and second objective; return the ledger."""
        self.trials.criteria = self.runs.criteria = criteria
        return self

    def table(self, kind: str) -> TrialTable:
        """Return the table of the search's trials or of the certification's runs."""
        return self.trials if kind == TRIALS else self.runs

    @property
    def is_file(self) -> bool:
        """Whether the ledger is a SQLite file, rather than rows in a server's database."""
        return file_of(self.url) is not None

    def add_columns(self) -> None:
        """Add the columns that an earlier version's tables lack; only the driver that holds the lease may do that.

        Raises:
            StudyError: The ledger cannot be written.
        """
        try:
            make_tables(self._engine)
        except Exception as error:
            raise make_storage_error(self.url, error) from None
        self.close()  # Open connections of SQLite read a view in the table's place.

    # -- Methods for the sweep's own record ---------------------------------------------------------------------------

    def sweep(self) -> SweepRecord:
        """Read the sweep's own row, without its trials."""
        (row,) = self.fence.read(select(*SWEEP_COLUMNS).where(SWEEPS.c.id == self.sweep_id))
        return SweepRecord(*row)

    def change_sweep(self, **facts: Any) -> None:
        """Change fields in the sweep's own row.

        Args:
            facts: The new values by the names of the record's fields.
        """
        with self.fence.begin() as connection:
            connection.execute(update(SWEEPS).where(SWEEPS.c.id == self.sweep_id).values(**facts))

    def require_new(self) -> None:
        """Refuse a sweep that has been started: its row has settings, or it has trials.

        Raises:
            StudyError: The sweep has been begun.
        """
        if self.sweep().config is not None or self.trials.num_trials:
            name = self.name
            raise StudyError(
                ": a sweep of this name exists", "a new name", "choose another name=", key="name", value=name
            )

    @property
    def lease(self) -> Lease | None:
        """The lease of the driver that writes with this object; None in processes that only read or send requests."""
        return self.fence.lease

    def check_lease(self) -> None:
        """Check in the database that this driver still holds the lease; for readers, which have no lease, do nothing.

        `require_ownership` asks the bucket, too.

        Raises:
            LeaseLostError: Another driver has taken the sweep over.
        """
        if self.lease:
            self.lease.check()
            with self.fence.begin():
                pass

    def require_ownership(self) -> None:
        """Check that this driver still owns the sweep: it has the lease, and is the last driver in the bucket.

        The driver's housekeeping asks this every few seconds, and the driver asks it before each publication.

        Raises:
            LeaseLostError: Another driver has taken the sweep over.
            StoreError: The bucket cannot be used.
        """
        self.check_lease()
        if self.lease:
            self.lease.check_bucket()

    def has_lost_ownership(self) -> bool:
        """Return whether another driver is known to have taken the sweep over; never fails, even without database."""
        with contextlib.suppress(StudyError, SQLAlchemyError):
            self.require_ownership()
        return self.lease is not None and self.lease.is_lost

    def read_lease(self) -> LeaseState:
        """Read the state of the sweep's lease, which names its driver."""
        return read_lease(self._engine, self.sweep_id)

    def close(self) -> None:
        """Close this object's database connections, so that a SQLite file can be moved; the lease has its own."""
        self._engine.dispose()

    # -- Methods for requests to the sweep's driver -------------------------------------------------------------------

    def add_request(self, kind: str, payload: Mapping[str, Any], requested_by: str, *, is_taken: bool = False) -> int:
        """Add a request for the sweep's driver, such as one to stop, and return its id; see `SweepRequest`.

        Args:
            kind: The kind of the request.
            payload: Its details.
            requested_by: The user and host that it comes from.
            is_taken: Whether it counts as carried out: a driver keeps such a request for later drivers.

        Raises:
            StudyError: The ledger cannot be written, or has an older format, whose sweeps end with their version.
        """
        check_format(": its ledger", self._format, FORMAT, self.name)
        row = {"kind": kind, "payload": dict(payload), "requested_by": requested_by, "requested_s": time.time()}
        row |= {"taken_s": row["requested_s"]} if is_taken else {}
        try:
            with self._engine.begin() as connection:
                added = connection.execute(insert(REQUESTS).returning(REQUESTS.c.id), row | {"sweep_id": self.sweep_id})
                return int(added.scalar_one())
        except SQLAlchemyError as error:
            raise make_storage_error(self.url, error) from None

    def read_requests(self, *kinds: str, waiting: bool = True) -> list[SweepRequest]:
        """Read the requests to the sweep's driver, by default those that it has not taken yet, the oldest first.

        Args:
            kinds: The kinds of requests to read; none for all.
            waiting: Whether to leave out those that a driver has taken.
        """
        conditions = [REQUESTS.c.sweep_id == self.sweep_id]
        conditions += [REQUESTS.c.kind.in_(kinds)] if kinds else []
        conditions += [REQUESTS.c.taken_s.is_(None)] if waiting else []
        statement = select(*_REQUEST_COLUMNS).where(*conditions).order_by(REQUESTS.c.id)
        return [SweepRequest(*row) for row in self.fence.read(statement)]

    def take_request(self, number: int) -> None:
        """Mark a request as taken, because the driver has carried it out or it is void."""
        with self.fence.begin() as connection:
            connection.execute(update(REQUESTS).where(REQUESTS.c.id == number).values(taken_s=time.time()))

    def withdraw_request(self, number: int) -> bool:
        """Delete a request that no driver has taken yet; return False if one has."""
        with self._engine.begin() as connection:
            statement = delete(REQUESTS).where(REQUESTS.c.id == number, REQUESTS.c.taken_s.is_(None))
            return bool(connection.execute(statement).rowcount)

    def change_space(self, ranges: Mapping[str, Any], requested_by: str, config: str) -> None:
        """Record that other ranges are searched from the next trial on, in one transaction.

        What samplers remember in trials and study is of the former ranges, and is dropped.

        Args:
            ranges: The new ranges by name.
            requested_by: The user and host that they come from.
            config: The sweep's settings with them as YAML.
        """
        now, of_sweep = time.time(), SWEEP_TRIALS.c.sweep_id == self.sweep_id
        row = {"kind": SPACE, "payload": dict(ranges), "requested_by": requested_by, "requested_s": now, "taken_s": now}
        with self.fence.begin() as connection:
            connection.execute(insert(REQUESTS).values(**row, sweep_id=self.sweep_id, trial=self.trials.num_trials))
            connection.execute(update(SWEEP_TRIALS).where(of_sweep).values(sampler_state=None))
            connection.execute(
                update(SWEEPS).where(SWEEPS.c.id == self.sweep_id).values(sampler_state={}, config=config)
            )

    def reopen_failed(self, request: SweepRequest) -> list[TrialRecord]:
        """Set failed trials and certification runs back to RUNNING, as a user's request names them, in one transaction.

        They keep their numbers, values, reports and checkpoints, and go on from the checkpoints.

        Args:
            request: Names the trials by kind. Those that have not failed stay as they are.

        Returns:
            The reopened trials and runs.
        """
        columns = SWEEP_TRIALS.c
        is_named = or_(
            *((columns.kind == kind) & columns.number.in_(numbers) for kind, numbers in request.payload.items())
        )
        has_failed = (columns.sweep_id == self.sweep_id) & (columns.state == "FAIL") & is_named
        values = {"state": "RUNNING", "stop_reason": _REOPENED, "ended_s": None}
        values |= dict.fromkeys(("traceback", "log", "cause"))
        reopen = update(SWEEP_TRIALS).where(has_failed).values(**values, revision=columns.revision + 1)
        with self.fence.begin() as connection:
            reopened = connection.execute(reopen.returning(columns.kind, columns.number)).all()
            connection.execute(update(REQUESTS).where(REQUESTS.c.id == request.id).values(taken_s=time.time()))
        return [self.table(kind).record(number) for kind, number in sorted(reopened)]

    # -- Methods that record what trackers have received --------------------------------------------------------------

    def read_pending_trials(self, tracker: str, *, with_checkpoints: bool = False) -> list[PendingTrial]:
        """Read the trials whose latest state or checkpoint a tracker lacks, in the order in which they were proposed.

        Args:
            tracker: Its name.
            with_checkpoints: Whether it also takes the checkpoint's files of each trial that is COMPLETE.
        """
        marks = TRIAL_DELIVERIES
        delivered = func.coalesce(marks.c.revision, 0)
        pending = SWEEP_TRIALS.c.revision > delivered
        if with_checkpoints:
            pending |= (SWEEP_TRIALS.c.state == "COMPLETE") & marks.c.checkpoint.is_(None)
        columns = SWEEP_TRIALS.c
        statement = (
            select(columns.kind, columns.number, columns.revision, delivered, marks.c.checkpoint)
            .outerjoin(marks, (marks.c.trial_id == columns.id) & (marks.c.tracker == tracker))
            .where(columns.sweep_id == self.sweep_id, pending)
            .order_by(columns.id)
        )
        return [PendingTrial(*row) for row in self.fence.read(statement)]

    def mark_trial(self, tracker: str, kind: str, number: int, **marks: Any) -> None:
        """Record which revision and checkpoint of a trial a tracker has received.

        Args:
            tracker: Its name.
            kind: TRIALS or CERTIFY.
            number: The trial's.
            marks: ``revision`` and ``checkpoint`` as in `PendingTrial`; a revision of 0 delivers the trial again.
        """
        columns = SWEEP_TRIALS.c
        of_trial = (columns.sweep_id == self.sweep_id) & (columns.kind == kind) & (columns.number == number)
        with self.fence.begin() as connection:
            trial_id = connection.execute(select(columns.id).where(of_trial)).scalar_one()
            _upsert(connection, TRIAL_DELIVERIES, {"tracker": tracker, "trial_id": trial_id}, marks)

    def read_delivered_report(self, tracker: str) -> int:
        """Return the id of the last report that was delivered to a tracker; 0 before the first one."""
        mine = (DELIVERIES.c.sweep_id == self.sweep_id) & (DELIVERIES.c.tracker == tracker)
        rows = self.fence.read(select(DELIVERIES.c.report).where(mine))
        return int(rows[0].report) if rows else 0

    def mark_reports(self, tracker: str, report: int) -> None:
        """Record that all reports up to this id were delivered to a tracker."""
        with self.fence.begin() as connection:
            _upsert(connection, DELIVERIES, {"tracker": tracker, "sweep_id": self.sweep_id}, {"report": report})

    def read_reports_after(self, mark: int, limit: int) -> list[tuple[int, str, Report]]:
        """Return the reports that were added after a given report, in the order in which they were added.

        Args:
            mark: The other report's id; 0 is before the first.
            limit: The largest number of reports.

        Returns:
            Each report's id, its trial's kind, and the report.
        """
        newer = (
            select(REPORTS.c.id, SWEEP_TRIALS.c.kind, SWEEP_TRIALS.c.number, *REPORT_COLUMNS)
            # Because of the + 0, SQLite does not use the index on trial_id, with which it would read all reports of all
            # trials.
            .join(SWEEP_TRIALS, SWEEP_TRIALS.c.id == REPORTS.c.trial_id + 0)
            .where(SWEEP_TRIALS.c.sweep_id == self.sweep_id, REPORTS.c.id > mark)
            .order_by(REPORTS.c.id)
            .limit(limit)
        )
        return [(report_id, kind, make_report(*values)) for report_id, kind, *values in self.fence.read(newer)]

    def forget_mlflow(self, tracker: str | None = None) -> None:
        """Delete the MLflow run ids and what counts as delivered, so that a new MLflow store receives everything.

        Args:
            tracker: The tracker to which all is delivered again; None for every tracker.
        """
        trials = select(SWEEP_TRIALS.c.id).where(SWEEP_TRIALS.c.sweep_id == self.sweep_id)
        of_sweep = DELIVERIES.c.sweep_id == self.sweep_id
        with self.fence.begin() as connection:
            marks = TRIAL_DELIVERIES.c
            named, named_trials = (
                true() if tracker is None else column == tracker for column in (DELIVERIES.c.tracker, marks.tracker)
            )
            connection.execute(delete(TRIAL_DELIVERIES).where(named_trials, marks.trial_id.in_(trials)))
            connection.execute(delete(DELIVERIES).where(of_sweep, named))
            is_trial, is_sweep = SWEEP_TRIALS.c.sweep_id == self.sweep_id, SWEEPS.c.id == self.sweep_id
            connection.execute(update(SWEEP_TRIALS).where(is_trial).values(mlflow_run_id=None))
            connection.execute(update(SWEEPS).where(is_sweep).values(mlflow_run_id=None, mlflow=None))
        self.trials.forget_mlflow_runs()
        self.runs.forget_mlflow_runs()


def _upsert(connection: Connection, table: Table, key: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Update the row with this key, or insert it. Only the driver with the lease writes, so there is no race."""
    mine = [table.c[name] == value for name, value in key.items()]
    if not connection.execute(update(table).where(*mine).values(**values)).rowcount:
        connection.execute(insert(table), {**key, **values})


def find_sweeps(engine: Engine, names: Iterable[str]) -> dict[str, int]:
    """Return the row ids of sweeps by name; a missing sweep, or one of another ledger format, is left out."""
    wanted = select(SWEEPS.c.name, SWEEPS.c.id).where(SWEEPS.c.name.in_(list(names)), SWEEPS.c.format == FORMAT)
    with engine.connect() as connection:
        return {str(row.name): int(row.id) for row in connection.execute(wanted)}


def _find_sweep(engine: Engine, name: str | None) -> tuple[int, str, int, str] | None:
    """Return the row id, the name, the ledger format and the key of a sweep; None if the database has no such sweep."""
    if not has_table(engine, SWEEPS):
        return None
    with engine.connect() as connection:
        return _read_sweep(connection, name)


def _find_or_add_sweep(engine: Engine, name: str) -> tuple[int, str, int, str]:
    """Return a sweep's row id, name, ledger format and key, after creating the tables and the sweep where missing."""
    with begin_alone(engine) as connection:
        add_tables(connection)
        if existing := _read_sweep(connection, name):
            return existing
        key = make_key()
        row = {"name": name, "format": FORMAT, "key": key}
        sweep_id = int(connection.execute(insert(SWEEPS).returning(SWEEPS.c.id), row).scalar_one())
        connection.execute(insert(LEASES), {"sweep_id": sweep_id})
    return sweep_id, name, FORMAT, key


def make_key() -> str:
    """Make the random key of a new sweep."""
    return uuid.uuid4().hex


def _read_sweep(connection: Connection, name: str | None) -> tuple[int, str, int, str] | None:
    is_wanted = true() if name is None else SWEEPS.c.name == name
    columns = SWEEPS.c.id, SWEEPS.c.name, SWEEPS.c.format, SWEEPS.c.key
    row = connection.execute(select(*columns).where(is_wanted)).first()
    return (int(row.id), str(row.name), int(row.format), str(row.key)) if row else None
