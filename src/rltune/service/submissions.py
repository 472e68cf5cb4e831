"""Store the submissions of a service in a table: one row per sweep, with its queue position and state.

The sweeps themselves are in their ledgers. A row has a sweep's settings, as they were composed when it was submitted.
The table is in a SQLite file in the service's folder, or beside the ledgers in PostgreSQL.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
    delete,
    func,
    insert,
    select,
    update,
)
from sqlalchemy.exc import IntegrityError

from rltune.errors import StudyError, choices
from rltune.formatting import spell_command
from rltune.ledger.database import connect_ledger, has_table, make_storage_error, make_tables

QUEUED, RUNNING, COMPLETE, FAILED, INTERRUPTED, REFUSED = (
    "queued",
    "running",
    "complete",
    "failed",
    "interrupted",
    "refused",
)
ENDED = (COMPLETE, FAILED, INTERRUPTED, REFUSED)
STATES = (QUEUED, RUNNING, *ENDED)
GROUP = r"[a-zA-Z0-9_.-]{1,255}"  # A regular expression for the names of groups.
FORMAT = 5  # The version of the queue's table schema.
_metadata = MetaData()
_ID = BigInteger().with_variant(Integer, "sqlite")
TABLE = Table(
    "submissions",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("service", String(64), nullable=False),  # Services with the same database are told apart by their id.
    Column("name", String(255), nullable=False),
    Column("group", String(255)),
    Column("overrides", JSON, nullable=False),  # For display only, because the sweep runs with its composed settings.
    Column("settings", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("position", BigInteger, nullable=False),  # A new submission gets the largest position.
    Column("reason", Text),
    Column("last_request", BigInteger, nullable=False, default=0),
    Column("last_driver", String(32)),
    Column("is_adopted", Boolean, nullable=False, default=False),
    Column("is_stopping", Boolean, nullable=False, default=False),
    Column("submitted_s", Float, nullable=False),
    Column("started_s", Float),
    Column("ended_s", Float),
    UniqueConstraint("service", "name"),
)
EVENTS = Table(
    "submission_events",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("submission", BigInteger, nullable=False, index=True),
    Column("at_s", Float, nullable=False),
    Column("state", String(16), nullable=False),
    Column("reason", Text),
)
_format = Table("submissions_format", _metadata, Column("format", Integer, primary_key=True, autoincrement=False))


@dataclass(frozen=True)
class Submission:
    """A sweep that was submitted to a service, as a row of the queue's table.

    Attributes:
        id: The number of its row; an earlier submission has a smaller one.
        name: The sweep's name.
        overrides: The overrides that were typed for it, besides its name.
        state: queued, running, complete, failed, interrupted or refused.
        position: Its position in the queue: the smallest one starts first.
        group: The group that it was submitted with.
        reason: Why it is in this state; None if there is nothing to say.
        last_request: The id of the newest request in the sweep's ledger when its process was started; later ones are
            addressed to that process.
        last_driver: The id of the last driver in the sweep's lease when its process was started; None if there was
            none, and for a process that the service did not start.
        is_adopted: Whether it is driven by a process that no service has started.
        is_stopping: Whether its driver was asked to end.
        submitted_s: When it was submitted, in seconds of the epoch.
        started_s: When its driver was started last; `Event` has the earlier starts.
        ended_s: When that driver ended.
        settings: Its composed settings as YAML, with interpolations unresolved.
    """

    id: int
    name: str
    overrides: tuple[str, ...]
    state: str
    position: int
    group: str | None = None
    reason: str | None = None
    last_request: int = 0
    last_driver: str | None = None
    is_adopted: bool = False
    is_stopping: bool = False
    submitted_s: float = 0.0
    started_s: float | None = None
    ended_s: float | None = None
    settings: str = ""


@dataclass(frozen=True)
class Event:
    """A change of a submission's state: it was queued, its driver was started, or that driver has ended.

    Attributes:
        at_s: When, in seconds of the epoch.
        state: The state from then on. A driver that was lost is followed by `QUEUED`.
        reason: Why; None if there is nothing to say.
    """

    at_s: float
    state: str
    reason: str | None


_COLUMNS = [TABLE.c[field.name] for field in fields(Submission)]


class UnknownSubmissionError(StudyError):
    """The service has no submission of this name."""


class Submissions:
    """Read and change the submissions of one service. Thread-safe.

    Args:
        url: The address of the database.
        service: The id of the service.

    Raises:
        StudyError: The database cannot be used.
    """

    def __init__(self, url: str, service: str) -> None:
        self._service = service
        try:
            self._engine = connect_ledger(url)
            format_number = self._read_format()
            if format_number is None:
                make_tables(self._engine, _metadata)
                with self._engine.begin() as connection:
                    connection.execute(insert(_format).values(format=FORMAT))
        except Exception as error:
            raise make_storage_error(url, error) from None
        if format_number not in (None, FORMAT):
            raise StudyError(
                f"the queue in {url} has format {format_number}, not {FORMAT}",
                f"queues of format {FORMAT}, which this version of rltune writes and reads",
                "remove it, or drop the tables submissions and submissions_format of a database; sweeps and their "
                "ledgers stay",
            )

    def _read_format(self) -> int | None:
        """Read the schema version of the queue's tables; None if the database has no tables."""
        if not has_table(self._engine, _format):
            return None
        with self._engine.connect() as connection:
            # The version's row is missing if a service was killed while it created the tables.
            return connection.execute(select(_format.c.format)).scalar_one_or_none()

    def list(self, state: str | None = None) -> Sequence[Submission]:
        """Return all submissions, or those in a state, in queue order."""
        return self._read_rows() if state is None else self._read_rows(TABLE.c.state == state)

    def get(self, name: str) -> Submission:
        """Return the submission of a sweep.

        Raises:
            UnknownSubmissionError: There is none of this name.
        """
        # No sweep has a name that is not printable, and PostgreSQL raises an error for text with NUL.
        rows = self._read_rows(TABLE.c.name == name) if name.isprintable() else []
        if not rows:
            names = [submission.name for submission in self.list()]
            raise UnknownSubmissionError(
                ": no such sweep was submitted", choices(name, names), spell_command("list"), key="sweep", value=name
            )
        return rows[0]

    def _read_rows(self, *conditions: Any) -> Sequence[Submission]:
        is_ours = TABLE.c.service == self._service
        statement = select(*_COLUMNS).where(is_ours, *conditions).order_by(TABLE.c.position, TABLE.c.id)
        with self._engine.connect() as connection:
            rows: Sequence[Any] = connection.execute(statement).mappings().all()
        return [Submission(**{**row, "overrides": tuple(row["overrides"])}) for row in rows]

    def add(self, name: str, overrides: Sequence[str], group: str | None = None, settings: str = "") -> Submission:
        """Append a sweep to the queue, in place of an ended submission of the same name.

        Raises:
            StudyError: A sweep of this name waits or runs.
        """
        has_name = (TABLE.c.service == self._service) & (TABLE.c.name == name)
        row: dict[str, Any] = {
            "service": self._service,
            "name": name,
            "overrides": [*overrides],
            "settings": settings,
            "group": group,
            "state": QUEUED,
            "submitted_s": time.time(),
        }
        try:
            with self._engine.begin() as connection:
                replaced = select(TABLE.c.id).where(has_name, TABLE.c.state.in_(ENDED))
                connection.execute(delete(EVENTS).where(EVENTS.c.submission.in_(replaced)))
                connection.execute(delete(TABLE).where(has_name, TABLE.c.state.in_(ENDED)))
                statement = insert(TABLE).values(**row, position=_next_position()).returning(TABLE.c.id)
                _add_event(connection, connection.execute(statement).scalar_one(), QUEUED, None)
        except IntegrityError:
            state = {QUEUED: "waits in the queue", RUNNING: "runs"}.get(self.get(name).state, "has just ended")
            raise StudyError(
                f": a sweep of this name {state}",
                "a new name for each sweep",
                f"leave name= out, or {spell_command(f'stop sweep={name}')} first",
                key="name",
                value=name,
            ) from None
        return self.get(name)

    def queue_again(
        self, submission: Submission, more_overrides: Sequence[str] = (), settings: str | None = None
    ) -> bool:
        """Append an ended sweep to the queue again; return False if its row has changed meanwhile.

        Args:
            submission: The sweep.
            more_overrides: What it was resumed with, such as a larger budget.
            settings: Its settings from now on; None leaves them as they are.
        """
        changed_keys = {word.partition("=")[0] for word in more_overrides}
        kept = (word for word in submission.overrides if word.partition("=")[0] not in changed_keys)
        values: dict[str, Any] = {"overrides": [*kept, *more_overrides], "position": _next_position()}
        values |= {"is_stopping": False, "is_adopted": False, "reason": None, "started_s": None, "ended_s": None}
        values |= {} if settings is None else {"settings": settings}
        return self.change(submission, state=QUEUED, **values)

    def change(self, submission: Submission, **values: Any) -> bool:
        """Change a submission's row, and return True, unless its state or position has changed meanwhile."""
        is_same = (TABLE.c.id == submission.id) & (TABLE.c.state == submission.state)
        # Each time a sweep is queued it gets a new position, which shows whether it has run again meanwhile.
        is_same &= TABLE.c.position == submission.position
        with self._engine.begin() as connection:
            is_changed = bool(connection.execute(update(TABLE).where(is_same).values(**values)).rowcount)
            if is_changed and "state" in values:
                _add_event(connection, submission.id, values["state"], values.get("reason"))
        return is_changed

    def list_events(self, ids: Collection[int]) -> Mapping[int, Sequence[Event]]:
        """Return the changes of the states of submissions by their ids, the oldest first."""
        columns = EVENTS.c.submission, EVENTS.c.at_s, EVENTS.c.state, EVENTS.c.reason
        statement = select(*columns).where(EVENTS.c.submission.in_(ids)).order_by(EVENTS.c.id)
        events: dict[int, list[Event]] = {number: [] for number in ids}
        with self._engine.connect() as connection:
            for number, *values in connection.execute(statement):
                events[number].append(Event(*values))
        return events

    def close(self) -> None:
        """Close all connections to the queue's database."""
        self._engine.dispose()


def _add_event(connection: Connection, submission: int, state: str, reason: str | None) -> None:
    connection.execute(insert(EVENTS).values(submission=submission, at_s=time.time(), state=state, reason=reason))


def _next_position() -> Any:
    return select(func.coalesce(func.max(TABLE.c.position), 0) + 1).scalar_subquery()
