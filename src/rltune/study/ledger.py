"""Keep the ledger: every trial's values, whole reports, checkpoints, state, seeds and costs, as typed rows.

The one truth of a sweep; it commits first. Optuna's study (`rltune.study.optuna_study`) and what MLflow shows
(`rltune.tracking`) are derived from it, and can be made again. Runs in the driver; reading runs anywhere.
"""

from __future__ import annotations

import contextlib
import re
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import Connection, Engine, delete, func, insert, or_, select, update
from sqlalchemy.exc import InterfaceError, OperationalError, SQLAlchemyError

from rltune.config.criteria import Criteria
from rltune.config.settings_file import FORMAT
from rltune.config.uris import redact_address, redact_error
from rltune.errors import StudyError, StudyUnavailableError, describe_exception
from rltune.formatting import spell_command
from rltune.records import CERTIFY, TRIALS, Report, SweepRecord, SweepRequest, TrialRecord
from rltune.study.disk_full import is_disk_full
from rltune.study.lease import Fence, Lease, LeaseState, read_lease
from rltune.study.tables import (
    LEASES,
    REPORTS,
    REQUESTS,
    SWEEP_TRIALS,
    SWEEPS,
    add_tables,
    begin_alone,
    connect_ledger,
    has_table,
)
from rltune.study.trial_table import REPORT_COLUMNS, TrialTable, make_report

_REQUEST = [REQUESTS.c[entry.name] for entry in fields(SweepRequest)]
_AGAIN = "to be tried again"  # why a trial that failed is RUNNING before it runs
# What a PostgreSQL server answers to a login or a database that is wrong; it has no class of its own for these.
_REFUSED = re.compile(r"authentication failed|no password supplied|does not exist|no pg_hba\.conf entry")
_FIELDS = [SWEEPS.c[entry.name] for entry in fields(SweepRecord)]


class MissingSweepError(StudyError):
    """There is a ledger, but no such sweep in it."""


@dataclass(frozen=True)
class UnsentTrial:
    """A trial of which MLflow does not show all.

    Attributes:
        kind: TRIALS or CERTIFY.
        number: Its number.
        revision: Counts what is to be shown of it.
        sent_revision: The revision that MLflow shows; 0 before it has a run of the trial.
        sent_checkpoint: The path of the checkpoint whose files MLflow has; None before it was asked to take them.
    """

    kind: str
    number: int
    revision: int
    sent_revision: int
    sent_checkpoint: str | None


class Ledger:
    """The ledger of one sweep.

    Args:
        url: An SQLAlchemy URL.
        name: The sweep.
        create: True for a new sweep, False for one that must be there.

    Attributes:
        trials: The search's trials.
        runs: The certification's.
        fence: Begins what writes; it has the lease of a driver.
        sweep_id: The sweep's row.

    Raises:
        StudyError: A new sweep was begun already, another one is missing, has another format, or cannot be read.
    """

    def __init__(self, url: str, name: str, *, create: bool = False) -> None:
        self.url, self.name = url, name
        try:
            self._engine = connect_ledger(url)
            found = _find_or_add_sweep(self._engine, name) if create else _find_sweep(self._engine, name)
        except Exception as error:
            raise make_storage_error(url, error) from None
        if found is None:
            raise MissingSweepError(
                f"the sweep '{name}' is not in its ledger", "a ledger of this sweep", spell_command("list")
            )
        self.sweep_id, form = found
        if form != FORMAT:
            raise StudyError(
                f"sweep={name}: its ledger has format {form}",
                f"format {FORMAT}, which this version of rltune reads",
                "run the sweep again, or open it with the version that wrote it",
            )
        self.fence = Fence(self._engine, self.sweep_id)
        self.trials = TrialTable(self.fence, TRIALS)
        self.runs = TrialTable(self.fence, CERTIFY)
        if create:
            self.require_new()

    @property
    def criteria(self) -> Criteria:
        """What trials are judged by besides their scores."""
        return self.trials.criteria

    def judge_by(self, criteria: Criteria) -> Ledger:
        """Have all trials judged by the sweep's criteria from now on; return the ledger."""
        self.trials.criteria = self.runs.criteria = criteria
        return self

    def table(self, kind: str) -> TrialTable:
        """Return the trials of a kind."""
        return self.trials if kind == TRIALS else self.runs

    # -- the sweep ----------------------------------------------------------------------------------------------------

    def sweep(self) -> SweepRecord:
        """Return what is known of the sweep as a whole."""
        with self._engine.connect() as connection:
            row = connection.execute(select(*_FIELDS).where(SWEEPS.c.id == self.sweep_id)).mappings().one()
        return SweepRecord(**row)

    def change_sweep(self, **facts: Any) -> None:
        """Change fields of the sweep's record.

        Args:
            facts: By the fields of `SweepRecord`.
        """
        with self.fence.begin() as connection:
            connection.execute(update(SWEEPS).where(SWEEPS.c.id == self.sweep_id).values(**facts))

    def require_new(self) -> None:
        """Refuse a sweep that a driver has begun; one without settings was left by a driver that was killed before.

        Raises:
            StudyError: The sweep was begun.
        """
        if self.sweep().config is not None or self.trials.read_states():
            name = self.name
            raise StudyError(f"name={name}: a sweep of this name exists", "a new name", "choose another name=")

    @property
    def lease(self) -> Lease | None:
        """The lease of the driver that writes by this object; None for commands and readers."""
        return self.fence.lease

    def check_lease(self) -> None:
        """Refuse to go on where the row says that another driver has the lease; without effect for readers.

        What lies outside the ledger has no fence of its own, so a driver checks before it writes there.

        Raises:
            LeaseLostError: Another driver has taken the sweep over.
        """
        if self.lease:
            self.lease.check()
            with self.fence.begin():
                pass

    def has_lost_lease(self) -> bool:
        """Return whether another driver has taken the sweep over; what is known, where the database is away."""
        with contextlib.suppress(StudyError, SQLAlchemyError):
            self.check_lease()
        return self.lease is not None and self.lease.is_lost

    def read_lease(self) -> LeaseState:
        """Read which driver writes this sweep."""
        return read_lease(self._engine, self.sweep_id)

    def close(self) -> None:
        """Give connections back, so that the file can be moved or read elsewhere."""
        self._engine.dispose()

    # -- what is asked of its driver ----------------------------------------------------------------------------------

    def ask(self, kind: str, payload: Mapping[str, Any], asked_by: str, *, is_taken: bool = False) -> int:
        """Leave a request for the sweep's driver, and return its id; see `SweepRequest` for the arguments.

        Args:
            kind: What is asked.
            payload: In detail.
            asked_by: Who asks.
            is_taken: Whether the driver has seen to it: it keeps the request for those that resume the sweep.

        Raises:
            StudyError: The ledger cannot be written.
        """
        row = {"kind": kind, "payload": dict(payload), "asked_by": asked_by, "asked_s": time.time()}
        row |= {"taken_s": row["asked_s"]} if is_taken else {}
        try:
            with self._engine.begin() as connection:
                added = connection.execute(insert(REQUESTS).returning(REQUESTS.c.id), row | {"sweep_id": self.sweep_id})
                return int(added.scalar_one())
        except SQLAlchemyError as error:
            raise make_storage_error(self.url, error) from None

    def read_requests(self, *kinds: str, waiting: bool = True) -> list[SweepRequest]:
        """Read what was asked of the sweep's driver, the oldest first.

        Args:
            kinds: Of which kinds; none for all.
            waiting: Whether those are left out that a driver has seen to.
        """
        wanted = [REQUESTS.c.sweep_id == self.sweep_id]
        wanted += [REQUESTS.c.kind.in_(kinds)] if kinds else []
        wanted += [REQUESTS.c.taken_s.is_(None)] if waiting else []
        with self._engine.connect() as connection:
            rows = connection.execute(select(*_REQUEST).where(*wanted).order_by(REQUESTS.c.id)).mappings().all()
        return [SweepRequest(**row) for row in rows]

    def take_request(self, number: int) -> None:
        """Note that a request was seen to, or does not count any more."""
        with self.fence.begin() as connection:
            connection.execute(update(REQUESTS).where(REQUESTS.c.id == number).values(taken_s=time.time()))

    def withdraw_request(self, number: int) -> bool:
        """Take a request back; return False where a driver has taken it already."""
        with self._engine.begin() as connection:
            mine = delete(REQUESTS).where(REQUESTS.c.id == number, REQUESTS.c.taken_s.is_(None))
            return bool(connection.execute(mine).rowcount)

    def reopen_failed(self, request: SweepRequest) -> list[TrialRecord]:
        """Let trials and runs that failed be tried again, and take the request for it: all of it or nothing.

        They keep number, values, reports and checkpoints, and go on from the latter.

        Args:
            request: Names them; those of them that have not failed are left as they are.

        Returns:
            Those that are RUNNING now.
        """
        which = or_(
            *((SWEEP_TRIALS.c.kind == kind) & SWEEP_TRIALS.c.number.in_(some) for kind, some in request.payload.items())
        )
        failed = (SWEEP_TRIALS.c.sweep_id == self.sweep_id) & (SWEEP_TRIALS.c.state == "FAIL") & which
        fresh = {"state": "RUNNING", "stop_reason": _AGAIN, "ended_s": None, "traceback": None, "log": None}
        again = update(SWEEP_TRIALS).where(failed).values(**fresh, revision=SWEEP_TRIALS.c.revision + 1)
        with self.fence.begin() as connection:
            found = connection.execute(again.returning(SWEEP_TRIALS.c.kind, SWEEP_TRIALS.c.number)).all()
            connection.execute(update(REQUESTS).where(REQUESTS.c.id == request.id).values(taken_s=time.time()))
        return [self.table(kind).record(number) for kind, number in sorted(found)]

    # -- what MLflow shows --------------------------------------------------------------------------------------------

    def read_unsent_trials(self) -> list[UnsentTrial]:
        """Return the trials of which MLflow does not show all but reports, in the order in which they were proposed."""
        of_sweep = SWEEP_TRIALS.c.sweep_id == self.sweep_id
        lacks_files = (SWEEP_TRIALS.c.state == "COMPLETE") & SWEEP_TRIALS.c.sent_checkpoint.is_(None)
        behind = (SWEEP_TRIALS.c.revision > SWEEP_TRIALS.c.sent_revision) | lacks_files
        columns = [SWEEP_TRIALS.c[entry.name] for entry in fields(UnsentTrial)]
        with self._engine.connect() as connection:
            statement = select(*columns).where(of_sweep, behind).order_by(SWEEP_TRIALS.c.id)
            rows = connection.execute(statement).mappings().all()
        return [UnsentTrial(**row) for row in rows]

    def mark_trial_sent(self, kind: str, number: int, revision: int) -> None:
        """Note that MLflow shows a trial as it was at this revision."""
        self.table(kind).mark(number, sent_revision=revision)

    def mark_checkpoint_sent(self, kind: str, number: int, path: str | None) -> None:
        """Note that MLflow has a checkpoint's files; '' that there are none to send, None that they are sent again."""
        self.table(kind).mark(number, sent_checkpoint=path)

    def read_last_report(self) -> int:
        """Return the mark of the newest report; 0 before the first."""
        newest = select(func.max(REPORTS.c.id)).join(SWEEP_TRIALS, SWEEP_TRIALS.c.id == REPORTS.c.trial_id)
        with self._engine.connect() as connection:
            found = connection.execute(newest.where(SWEEP_TRIALS.c.sweep_id == self.sweep_id)).scalar_one()
        return int(found or 0)

    def read_sent_report(self) -> int:
        """Return the mark of the last report that MLflow has; 0 before the first."""
        with self._engine.connect() as connection:
            found = connection.execute(select(SWEEPS.c.sent_report).where(SWEEPS.c.id == self.sweep_id)).scalar_one()
        return int(found)

    def read_reports_after(self, mark: int, limit: int) -> list[tuple[int, str, Report]]:
        """Return the reports that came after a mark, in the order in which they came.

        Args:
            mark: 0 is before the first.
            limit: At most so many.

        Returns:
            For each its own mark, its trial's kind, and the report.
        """
        newer = (
            select(REPORTS.c.id, SWEEP_TRIALS.c.kind, SWEEP_TRIALS.c.number, *REPORT_COLUMNS)
            # The + 0 keeps SQLite from going through all reports of all trials, by the index of the trials.
            .join(SWEEP_TRIALS, SWEEP_TRIALS.c.id == REPORTS.c.trial_id + 0)
            .where(SWEEP_TRIALS.c.sweep_id == self.sweep_id, REPORTS.c.id > mark)
            .order_by(REPORTS.c.id)
            .limit(limit)
        )
        with self._engine.connect() as connection:
            rows: Sequence[Any] = connection.execute(newer).all()
        return [(int(row[0]), str(row[1]), make_report(*row[2:])) for row in rows]

    def forget_sent(self) -> None:
        """Forget what was sent, because it was sent to another MLflow: all of it is sent again."""
        of_sweep = SWEEP_TRIALS.c.sweep_id == self.sweep_id
        nothing = {"sent_revision": 0, "sent_checkpoint": None, "mlflow_run_id": None}
        with self.fence.begin() as connection:
            connection.execute(update(SWEEP_TRIALS).where(of_sweep).values(**nothing))
            connection.execute(update(SWEEPS).where(SWEEPS.c.id == self.sweep_id).values(sent_report=0))
        self.trials.forget_mlflow_runs()
        self.runs.forget_mlflow_runs()

    def mark_reports_sent(self, mark: int) -> None:
        """Note that MLflow has all reports up to this mark."""
        with self.fence.begin() as connection:
            connection.execute(update(SWEEPS).where(SWEEPS.c.id == self.sweep_id).values(sent_report=mark))


def _find_sweep(engine: Engine, name: str) -> tuple[int, int] | None:
    """Return a sweep's row and format; None without one."""
    if not has_table(engine, SWEEPS):
        return None
    with engine.connect() as connection:
        return _read_sweep(connection, name)


def _find_or_add_sweep(engine: Engine, name: str) -> tuple[int, int]:
    """Return a sweep's row and format; add the sweep, and the tables, where they are not there yet."""
    with begin_alone(engine) as connection:
        add_tables(connection)
        if found := _read_sweep(connection, name):
            return found
        row = {"name": name, "format": FORMAT, "key": uuid.uuid4().hex}
        sweep_id = int(connection.execute(insert(SWEEPS).returning(SWEEPS.c.id), row).scalar_one())
        connection.execute(insert(LEASES), {"sweep_id": sweep_id})
    return sweep_id, FORMAT


def _read_sweep(connection: Connection, name: str) -> tuple[int, int] | None:
    row = connection.execute(select(SWEEPS.c.id, SWEEPS.c.format).where(SWEEPS.c.name == name)).first()
    return (int(row.id), int(row.format)) if row else None


def check_storage(url: str) -> None:
    """Refuse a database that cannot be used, before anything is begun; a file of SQLite is made later.

    Args:
        url: ``study.storage``.

    Raises:
        StudyError: It is of another kind, or cannot be reached.
    """
    try:
        engine = connect_ledger(url)
        if engine.dialect.name != "sqlite":
            engine.connect().close()
        engine.dispose()
    except Exception as error:
        raise make_storage_error(url, error) from None


def make_storage_error(url: str, error: Exception) -> StudyError:
    """Say that a database cannot be used, without its login.

    A disk without room, or a server that does not answer, may work later; a refused login will not.
    """
    if isinstance(error, StudyError):  # Damage is named already.
        return error
    is_away = isinstance(error, (OperationalError, InterfaceError)) and not url.startswith("sqlite")
    is_unavailable = is_disk_full(error) or (is_away and not _REFUSED.search(str(error)))
    return (StudyUnavailableError if is_unavailable else StudyError)(
        f"study.storage={_redact_url(url)} cannot be opened: {redact_error(url, describe_exception(error))}",
        "room for it on its disk" if is_disk_full(error) else "a database that can be reached",
        "study.storage=postgresql+psycopg://user@host/database, or study.storage=null for a file in the sweep's folder",
    )


def _redact_url(url: str) -> str:
    """Return an address fit for a message; what is no URL at all may still hold a password."""
    return redact_address(url) if "://" in url else "***"
