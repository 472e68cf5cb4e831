"""Keep the submissions: one row for each sweep that was handed to a service, its place in the queue, how it ended.

The sweeps themselves are in their ledgers. A row has a sweep's settings, as they were composed when it was submitted,
and the process that runs it. SQLite in the service's folder, or a table beside the ledgers in PostgreSQL.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
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

from rltune.config.uris import redact_address
from rltune.errors import StudyError, choices
from rltune.formatting import spell_command
from rltune.study.ledger import make_storage_error
from rltune.study.tables import connect_ledger, has_table, make_tables

QUEUED, RUNNING, COMPLETE, FAILED, INTERRUPTED, REFUSED = (
    "queued",
    "running",
    "complete",
    "failed",
    "interrupted",
    "refused",
)
ENDED = (COMPLETE, FAILED, INTERRUPTED, REFUSED)
FORMAT = 2
"""Of the queue. Format 1 had no number, and kept what was typed instead of settings."""
_metadata = MetaData()
_ID = BigInteger().with_variant(Integer, "sqlite")
TABLE = Table(
    "submissions",
    _metadata,
    Column("id", _ID, primary_key=True),
    Column("service", String(1024), nullable=False),  # its folder: several services may share a database
    Column("name", String(255), nullable=False),
    Column("family", String(255)),
    Column("words", JSON, nullable=False),  # to be displayed; the sweep runs with its settings
    Column("settings", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("place", BigInteger, nullable=False),  # in the queue; only grows
    Column("reason", Text),
    Column("process", JSON),
    Column("stopping", Boolean, nullable=False, default=False),
    Column("submitted_s", Float, nullable=False),
    Column("begun_s", Float),
    Column("ended_s", Float),
    UniqueConstraint("service", "name"),
)
_format = Table("submissions_format", _metadata, Column("format", Integer, primary_key=True, autoincrement=False))


@dataclass(frozen=True)
class Submission:
    """A sweep that was submitted.

    Attributes:
        id: Its row; who was submitted earlier has a smaller one.
        name: The sweep's.
        words: The overrides that were typed for it, besides its name.
        state: queued, running, complete, failed, interrupted or refused.
        place: Who has a smaller one begins earlier.
        family: The group that it was submitted with.
        reason: Why it ended so; None where there is nothing to say.
        process: Number and starting time of its driver; None before it has one.
        stopping: Whether its driver was asked to end.
        submitted_s: When, in seconds of the epoch.
        begun_s: When its driver was started last.
        ended_s: When that ended.
        settings: Its composed settings as YAML, with interpolations unresolved; empty in a list of all submissions.
    """

    id: int
    name: str
    words: tuple[str, ...]
    state: str
    place: int
    family: str | None = None
    reason: str | None = None
    process: Mapping[str, Any] = field(default_factory=dict)
    stopping: bool = False
    submitted_s: float = 0.0
    begun_s: float | None = None
    ended_s: float | None = None
    settings: str = ""


_COLUMNS = [TABLE.c[entry.name] for entry in fields(Submission) if entry.name != "settings"]


class UnknownSubmissionError(StudyError):
    """No sweep of this name was submitted here."""


class Submissions:
    """The submissions of one service. May be used from several threads.

    Args:
        url: Of the database.
        service: The service's folder.

    Raises:
        StudyError: The database cannot be used.
    """

    def __init__(self, url: str, service: str) -> None:
        self._service = service
        try:
            self._engine = connect_ledger(url)
            found = self._read_format()
            if found is None:
                make_tables(self._engine, _metadata)
                with self._engine.begin() as connection:
                    connection.execute(insert(_format).values(format=FORMAT))
        except Exception as error:
            raise make_storage_error(url, error) from None
        if found not in (None, FORMAT):
            raise StudyError(
                f"the queue in {redact_address(url)} has format {found}, not {FORMAT}",
                f"queues of format {FORMAT}, which this version of rltune writes and reads",
                "remove it, or drop the table submissions of a database; sweeps and their ledgers stay",
            )

    def _read_format(self) -> int | None:
        """Read the format of the tables that are there; None where there are none."""
        if has_table(self._engine, _format):
            with self._engine.connect() as connection:
                # Without a row, a service was killed while it made the tables.
                return connection.execute(select(_format.c.format)).scalar_one_or_none()
        return 1 if has_table(self._engine, TABLE) else None

    def list(self) -> Sequence[Submission]:
        """Return all of them: in the order in which they are, or were, to begin."""
        return self._find(TABLE.c.service == self._service)

    def get(self, name: str) -> Submission:
        """Return one.

        Raises:
            UnknownSubmissionError: There is none of this name.
        """
        found = self._find((TABLE.c.service == self._service) & (TABLE.c.name == name), TABLE.c.settings)
        if not found:
            known = [one.name for one in self.list()]
            raise UnknownSubmissionError(
                f"sweep={name}: no such sweep was submitted", choices(name, known), spell_command("list")
            )
        return found[0]

    def _find(self, wanted: Any, *more: Column[Any]) -> Sequence[Submission]:
        statement = select(*_COLUMNS, *more).where(wanted).order_by(TABLE.c.place, TABLE.c.id)
        with self._engine.connect() as connection:
            rows: Sequence[Any] = connection.execute(statement).mappings().all()
        return [Submission(**{**row, "words": tuple(row["words"]), "process": row["process"] or {}}) for row in rows]

    def add(self, name: str, words: Sequence[str], family: str | None = None, settings: str = "") -> Submission:
        """Put a sweep at the queue's end. One of this name that has ended, and left nothing behind, gives way.

        Raises:
            StudyError: One of this name waits or runs.
        """
        own = (TABLE.c.service == self._service) & (TABLE.c.name == name)
        row: dict[str, Any] = {
            "service": self._service,
            "name": name,
            "words": [*words],
            "settings": settings,
            "family": family,
            "state": QUEUED,
        }
        row |= {"submitted_s": time.time(), "stopping": False}
        try:
            with self._engine.begin() as connection:
                connection.execute(delete(TABLE).where(own, TABLE.c.state.in_(ENDED)))
                connection.execute(insert(TABLE).values(**row, place=_next_place()))
        except IntegrityError:
            raise StudyError(
                f"name={name}: a sweep of this name is in the queue",
                "a name of its own for each sweep",
                f"leave name= out, or {spell_command(f'stop sweep={name}')} first",
            ) from None
        return self.get(name)

    def queue_again(self, submission: Submission, more: Sequence[str] = (), settings: str | None = None) -> bool:
        """Put one that has ended at the queue's end; return whether it was still as it is given.

        Args:
            submission: Which.
            more: Overrides that it was resumed with, such as a larger budget.
            settings: Its settings from now on; None leaves them as they are.
        """
        changed = {word.partition("=")[0] for word in more}
        words = [*(word for word in submission.words if word.partition("=")[0] not in changed), *more]
        facts: dict[str, Any] = {"place": _next_place(), "stopping": False, "reason": None, "process": None}
        facts |= {} if settings is None else {"settings": settings}
        return self.change(submission, state=QUEUED, words=words, **facts, begun_s=None, ended_s=None)

    def change(self, submission: Submission, **facts: Any) -> bool:
        """Change a row, if it is in the state and at the place that the submission shows; return whether it was."""
        is_same = (TABLE.c.id == submission.id) & (TABLE.c.state == submission.state)
        is_same &= TABLE.c.place == submission.place  # It may have been resumed, and have ended again, meanwhile.
        with self._engine.begin() as connection:
            return bool(connection.execute(update(TABLE).where(is_same).values(**facts)).rowcount)

    def close(self) -> None:
        """Give connections back."""
        self._engine.dispose()


def _next_place() -> Any:
    return select(func.coalesce(func.max(TABLE.c.place), 0) + 1).scalar_subquery()
