"""Read and write one kind of trials in a ledger: those of the search, or the runs of the certification.

Each method that writes does so in one transaction. Writing runs in the driver; reading runs anywhere.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, bindparam, func, insert, select, update
from sqlalchemy.exc import DBAPIError

from rltune.config.criteria import NO_CRITERIA
from rltune.errors import StudyError
from rltune.formatting import spell_command
from rltune.ledger.database import read_at_one_moment
from rltune.ledger.lease import Fence
from rltune.ledger.tables import REPORTS, REQUESTS, SWEEP_TRIALS, SWEEPS, TRIAL_DELIVERIES
from rltune.records import ENQUEUE, TRIALS, CheckpointRecord, Report, TrialRecord, trial_dir_of

# Maps the worker's names of checkpoints to fields of `TrialRecord`.
CHECKPOINTS = {"best": "checkpoint", "latest": "latest"}
# The fields of `TrialRecord` that are no columns of the table.
_DERIVED = ("reports", "numbers", "checks", "second", "enqueued_by", "choice_returns")
COLUMNS = [SWEEP_TRIALS.c[entry.name] for entry in fields(TrialRecord) if entry.name not in _DERIVED]
_NAMES = frozenset(column.name for column in COLUMNS)
REPORT_COLUMNS = (
    REPORTS.c.nominal_steps,
    REPORTS.c.env_steps,
    REPORTS.c.score,
    REPORTS.c.numbers,
    REPORTS.c.time_s,
)  # In the order of the arguments of `make_report`.

# These statements are built only once, because building them for each report would be slow in SQLAlchemy.
_ADD_REPORT = insert(REPORTS)
_CHANGE = update(SWEEP_TRIALS).where(SWEEP_TRIALS.c.id == bindparam("row"), SWEEP_TRIALS.c.state == "RUNNING")


class TrialTable:
    """The trials of one kind (search or certification) in a ledger.

    Since only one driver writes, it caches the trials that have not ended, and reads them without a query.

    Args:
        fence: Begins the ledger's transactions.
        kind: TRIALS or CERTIFY of `rltune.records`.

    Attributes:
        criteria: The criteria by which trials are judged whenever they are read.
    """

    def __init__(self, fence: Fence, kind: str) -> None:
        self._fence, self._sweep_id, self.kind = fence, fence.sweep_id, kind
        self.criteria = NO_CRITERIA
        self._of_kind = (SWEEP_TRIALS.c.sweep_id == self._sweep_id) & (SWEEP_TRIALS.c.kind == kind)
        self._row_ids: dict[int, int] = {}
        self._open: dict[int, TrialRecord] = {}  # Caches unfinished trials by number.
        # A tracker's thread also changes the cache, when it stores the ids of MLflow runs.
        self._changing = threading.Lock()
        self._num_trials: int | None = None

    @property
    def num_trials(self) -> int:
        """The number of trials that were proposed so far."""
        if self._num_trials is None:
            ((self._num_trials,),) = self._fence.read(select(func.count()).where(self._of_kind))
        return self._num_trials

    def clear_cache(self) -> None:
        """Empty the cache, because another driver may have changed the ledger."""
        with self._changing:
            self._open.clear()
            self._num_trials = None

    # -- Methods that write trials ------------------------------------------------------------------------------------

    def add(
        self,
        params: Mapping[str, Any],
        seeds: Iterable[int],
        request: int | None = None,
        trial_state: Mapping[str, Any] | None = None,
        study_state: Mapping[str, Any] | None = None,
        **facts: Any,
    ) -> TrialRecord:
        """Insert a trial with the next free number.

        Args:
            params: Sampled values by name.
            seeds: One for each replicate.
            request: The id of the request that enqueued the trial, which is taken in the same transaction; None for a
                trial that the search proposes.
            trial_state: What the sampler remembers in the trial, see `rltune.ledger.optuna_study.Proposal`.
            study_state: What the sampler remembers in the study; None if this has not changed.
            facts: Further fields of `TrialRecord`: drawn, origin, key, of_trial, seed_index.
        """
        number = self.num_trials
        row = {"params": dict(params), "seeds": list(seeds), "began_s": time.time(), **_to_row(facts)}
        row["sampler_state"] = dict(trial_state) if trial_state else None
        with self._begin(number) as connection:
            row |= {"sweep_id": self._sweep_id, "kind": self.kind, "number": number, "state": "RUNNING", "revision": 1}
            added = connection.execute(insert(SWEEP_TRIALS).returning(SWEEP_TRIALS.c.id), row)
            self._row_ids[number] = added.scalar_one()
            if request is not None:
                taken = {"taken_s": time.time(), "trial": number}
                connection.execute(update(REQUESTS).where(REQUESTS.c.id == request).values(**taken))
            if study_state is not None:
                of_sweep = SWEEPS.c.id == self._sweep_id
                connection.execute(update(SWEEPS).where(of_sweep).values(sampler_state=dict(study_state)))
        self._num_trials = number + 1
        return self.record(number)

    def add_report(
        self, report: Report, checkpoints: Mapping[str, CheckpointRecord] | None = None, **facts: Any
    ) -> bool:
        """Add a report and the checkpoints that came with it, in one transaction.

        If the connection is lost, as by a restart of PostgreSQL, the report is written once more.

        Args:
            report: The report. It is not kept if the trial has one at this mark or a later one, because it has trained
                the same steps again.
            checkpoints: Checkpoints by the fields of `TrialRecord`, ``checkpoint`` and ``latest``.
            facts: Further fields of `TrialRecord`: train_s, node.

        Returns:
            Whether the report was kept.

        Raises:
            StudyError: The trial has ended.
        """
        facts |= checkpoints or {}
        try:
            return self._add_report(report, facts)
        except DBAPIError as error:
            if not error.connection_invalidated:
                raise
        # The connection was lost, perhaps after the commit. `_add_report` reads the trial again, so nothing is added
        # twice.
        return self._add_report(report, facts)

    def _add_report(self, report: Report, facts: Mapping[str, Any]) -> bool:
        trial = self.record(report.number)
        if report.nominal_steps <= max(trial.reports, default=-1):
            self.change(report.number, **facts)
            return False
        score = report.score
        content = {
            "trial_id": self._find_row(report.number),
            "nominal_steps": report.nominal_steps,
            "env_steps": report.env_steps,
            "score": None if math.isnan(score) else score,
            "numbers": {name: value for name, value in report.numbers.items() if math.isfinite(value)},
            "time_s": report.time_s or time.time(),
        }
        # A trial that resumes from an older checkpoint repeats steps. It has still sampled the steps counted before.
        facts = {**facts, "env_steps": max(trial.env_steps, report.env_steps)}
        with self._begin(report.number) as connection:
            self._write(connection, report.number, facts)
            connection.execute(_ADD_REPORT, content)
        cast(dict[int, float], self._open[report.number].reports)[report.nominal_steps] = score
        self._remember(report.number, facts | {"numbers": content["numbers"]})
        return True

    def change(self, number: int, **facts: Any) -> None:
        """Change fields of an unfinished trial.

        Args:
            number: The trial's number.
            facts: The new values by the fields of `TrialRecord`.

        Raises:
            StudyError: The trial has ended.
        """
        if facts:
            self.record(number)
            with self._begin(number) as connection:
                self._write(connection, number, facts)
            self._remember(number, facts)

    def start(self, number: int, **facts: Any) -> TrialRecord:
        """Record that a trial starts or continues, so that MLflow shows it as running; return its record."""
        self._revise(number, stop_reason=None, **facts)
        return self.record(number)

    def interrupt(self, number: int, **facts: Any) -> None:
        """Record that a trial was interrupted; its state stays RUNNING, so that a resumed sweep continues it."""
        self._revise(number, stop_reason="interrupted", **facts)

    def end(self, number: int, state: str, reason: str, **facts: Any) -> TrialRecord:
        """Record the end of a trial, and return its record.

        Args:
            number: The trial's number.
            state: COMPLETE, PRUNED or FAIL.
            reason: Why it ended.
            facts: Further fields of `TrialRecord`.

        Raises:
            StudyError: The trial has ended already.
        """
        self._revise(number, state=state, stop_reason=reason, ended_s=time.time(), **facts)
        with self._changing:
            return self.criteria.judge(self._open.pop(number))

    def set_mlflow_run(self, number: int, run_id: str) -> None:
        """Record the id of a trial's MLflow run; a slow server may return it only after the trial has ended."""
        self._overwrite(number, mlflow_run_id=run_id)
        self._remember(number, {"mlflow_run_id": run_id})

    def replace_checkpoint(self, number: int, checkpoint: CheckpointRecord) -> None:
        """Replace the best checkpoint of a trial in any state, and let trackers receive the new one."""
        row = self._find_row(number)
        values = {**_to_row({"checkpoint": checkpoint}), "revision": SWEEP_TRIALS.c.revision + 1}
        with self._fence.begin() as connection:
            connection.execute(update(SWEEP_TRIALS).where(SWEEP_TRIALS.c.id == row).values(**values))
            of_trial = TRIAL_DELIVERIES.c.trial_id == row
            connection.execute(update(TRIAL_DELIVERIES).where(of_trial).values(checkpoint=None))
        self._remember(number, {"checkpoint": checkpoint})

    def _overwrite(self, number: int, **values: Any) -> None:
        """Change columns of a trial in any state."""
        statement = update(SWEEP_TRIALS).where(self._of_kind, SWEEP_TRIALS.c.number == number)
        with self._fence.begin() as connection:
            connection.execute(statement.values(**values))

    def forget_training_states(self, keep: Collection[str]) -> list[CheckpointRecord]:
        """Forget the training checkpoints of complete trials whose best one a tracker has; return those to be deleted.

        Args:
            keep: The folders of the trials that keep their latest state.
        """
        columns = SWEEP_TRIALS.c
        delivered = select(TRIAL_DELIVERIES.c.trial_id).where(TRIAL_DELIVERIES.c.checkpoint != "")
        sent = select(columns.number).where(self._of_kind, columns.state == "COMPLETE", columns.id.in_(delivered))
        numbers = [number for (number,) in self._fence.read(sent)]
        forgotten = []
        for record in self.records(numbers) if numbers else ():
            if record.latest and record.checkpoint and trial_dir_of(self.kind, record.number) not in keep:
                self._overwrite(record.number, **_to_row({"latest": None}))
                if record.latest.path != record.checkpoint.path:
                    forgotten.append(record.latest)
        return forgotten

    def forget_mlflow_runs(self) -> None:
        """Delete the MLflow run ids in the cache, after `Ledger.forget_mlflow` has deleted them in the table."""
        with self._changing:
            # A copy is iterated, because the driver's main thread may add trials meanwhile.
            for number, record in list(self._open.items()):
                self._open[number] = replace(record, mlflow_run_id=None)

    @contextlib.contextmanager
    def _begin(self, number: int) -> Iterator[Connection]:
        """Begin a transaction that changes a trial, and remove the trial from the cache if the transaction fails.

        If the connection is lost during the commit, only the database knows whether it has committed.
        """
        try:
            with self._fence.begin() as connection:
                yield connection
        except BaseException:
            with self._changing:
                self._open.pop(number, None)
            self._num_trials = None
            raise

    def _revise(self, number: int, **facts: Any) -> None:
        """Change fields that MLflow shows, and increment the trial's revision, so that trackers receive the change."""
        self.record(number)
        with self._begin(number) as connection:
            self._write(connection, number, facts, {"revision": SWEEP_TRIALS.c.revision + 1})
        self._remember(number, facts)

    def _write(
        self, connection: Connection, number: int, facts: Mapping[str, Any], more: Mapping[str, Any] | None = None
    ) -> None:
        statement = _CHANGE.values(**_to_row(facts), **(more or {}))
        if not connection.execute(statement, {"row": self._find_row(number)}).rowcount:
            raise StudyError(f"trial {number} has ended", "a trial that is RUNNING", spell_command("show"))

    def _remember(self, number: int, facts: Mapping[str, Any]) -> None:
        with self._changing:
            if number in self._open:
                self._open[number] = replace(self._open[number], **facts)

    def _find_row(self, number: int) -> int:
        """Return the primary key of a trial's row."""
        if number not in self._row_ids:
            statement = select(SWEEP_TRIALS.c.id).where(self._of_kind, SWEEP_TRIALS.c.number == number)
            ((self._row_ids[number],),) = self._fence.read(statement)
        return self._row_ids[number]

    # -- Methods that read trials -------------------------------------------------------------------------------------

    def records(self, numbers: Iterable[int] | None = None) -> list[TrialRecord]:
        """Read trials from the database in the order of their numbers; any thread may call this.

        Args:
            numbers: The trials to read; None for all.
        """
        condition = self._of_kind if numbers is None else self._of_kind & SWEEP_TRIALS.c.number.in_(list(numbers))
        trials = select(SWEEP_TRIALS.c.id, *COLUMNS).where(condition).order_by(SWEEP_TRIALS.c.number)
        with read_at_one_moment(self._fence.engine) as connection:
            rows = connection.execute(trials).mappings().all()
            curves: dict[int, dict[int, float]] = {row["id"]: {} for row in rows}
            points = select(REPORTS.c.trial_id, REPORTS.c.nominal_steps, REPORTS.c.score)
            points = points.join(SWEEP_TRIALS).where(condition)
            for row_id, nominal_steps, score in connection.execute(points.order_by(REPORTS.c.id)):
                curves[row_id][nominal_steps] = math.nan if score is None else score
            newest = read_newest_numbers(connection, condition)
            users = read_users(connection, [self._sweep_id])
        records = (
            make_record(row, curves[row["id"]], newest.get(row["id"], {}), users.get((self._sweep_id, row["number"])))
            for row in rows
        )
        return [self.criteria.judge(record) for record in records]

    def record(self, number: int) -> TrialRecord:
        """Return a trial by its number."""
        if number not in self._open:
            (record,) = self.records([number])
            if record.state != "RUNNING":
                return record
            self._open[number] = record
        cached = self._open[number]
        return self.criteria.judge(replace(cached, reports=dict(cached.reports)))

    def read_sampler_states(self) -> tuple[dict[int, Mapping[str, Any]], Mapping[str, Any]]:
        """Read the sampler's state in each trial, by trial number, and its state in the study."""
        states = SWEEP_TRIALS.c.sampler_state
        by_trial = select(SWEEP_TRIALS.c.number, states).where(self._of_kind, states.is_not(None))
        study = select(SWEEPS.c.sampler_state).where(SWEEPS.c.id == self._sweep_id)
        with read_at_one_moment(self._fence.engine) as connection:
            of_study = connection.execute(study).scalar_one()
            return {row.number: row.sampler_state for row in connection.execute(by_trial)}, of_study or {}

    def read_curves(self) -> list[Report]:
        """Read the reports of all trials in their order of arrival, with the score as their only metric."""
        columns = (SWEEP_TRIALS.c.number, *REPORT_COLUMNS[:3], REPORTS.c.time_s)
        statement = select(*columns).join_from(REPORTS, SWEEP_TRIALS).where(self._of_kind).order_by(REPORTS.c.id)
        rows = self._fence.read(statement)
        return [make_report(number, mark, steps, value, {}, time_s) for number, mark, steps, value, time_s in rows]

    def read_reports(self, number: int) -> list[Report]:
        """Read all reports of a trial, ordered by steps."""
        statement = select(*REPORT_COLUMNS).where(REPORTS.c.trial_id == self._find_row(number))
        rows = self._fence.read(statement.order_by(REPORTS.c.nominal_steps))
        return [make_report(number, *row) for row in rows]


def read_newest_numbers(connection: Connection, condition: ColumnElement[bool]) -> dict[int, Mapping[str, float]]:
    """Read all metrics in the newest report of each trial that meets a condition, by the trial's row id."""
    newest = select(func.max(REPORTS.c.id)).join(SWEEP_TRIALS).where(condition).group_by(REPORTS.c.trial_id)
    statement = select(REPORTS.c.trial_id, REPORTS.c.numbers).where(REPORTS.c.id.in_(newest))
    return {row.trial_id: row.numbers for row in connection.execute(statement)}


def read_users(connection: Connection, sweep_ids: Iterable[int]) -> dict[tuple[int, int], str]:
    """Read which users enqueued which trials, by the sweep's row id and the trial's number."""
    columns = REQUESTS.c
    statement = select(columns.sweep_id, columns.trial, columns.requested_by).where(columns.kind == ENQUEUE)
    statement = statement.where(columns.sweep_id.in_(list(sweep_ids)), columns.trial.is_not(None))
    return {(sweep_id, number): user for sweep_id, number, user in connection.execute(statement)}


def make_report(
    number: int,
    nominal_steps: int,
    env_steps: int,
    score: float | None,
    numbers: Mapping[str, float],
    time_s: float,
) -> Report:
    """Make a `Report` from the values of a row of the table `REPORTS`."""
    value = math.nan if score is None else score
    return Report(number, nominal_steps, value, numbers, time_s, env_steps - nominal_steps)


def _to_row(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Convert fields of `TrialRecord` to columns of the table.

    Raises:
        TypeError: A record has no such field.
    """
    if chosen := facts.get("choice_returns"):
        both = {"returns": list(facts["returns"]), "choice_returns": list(chosen)}
        facts = {**facts, "returns": both}
    facts = {name: value for name, value in facts.items() if name != "choice_returns"}
    if unknown := facts.keys() - _NAMES:
        raise TypeError(f"a trial has no {', '.join(sorted(unknown))}")
    plain: dict[str, Any] = {}
    for name, value in facts.items():
        if isinstance(value, CheckpointRecord):
            value = value.to_dict()
        elif isinstance(value, Mapping):
            value = dict(value)
        plain[name] = list(value) if isinstance(value, tuple) else value
    return plain


def make_record(
    row: Mapping[Any, Any], curve: Mapping[int, float], numbers: Mapping[str, float], user: str | None
) -> TrialRecord:
    """Make a `TrialRecord` from a row of the table `SWEEP_TRIALS`.

    Args:
        row: The `COLUMNS` by name; others are left out.
        curve: The score by nominal steps.
        numbers: All numbers of the newest report.
        user: Who has enqueued a trial of this number. A run of the certification may have the same number as a trial.
    """
    values = {name: value for name, value in row.items() if name in _NAMES}
    for name in CHECKPOINTS.values():
        values[name] = CheckpointRecord(**values[name]) if values[name] else None
    # A run whose episodes were of two kinds has both in one column.
    stored = values["returns"]
    values |= stored if isinstance(stored, Mapping) else {}
    for name in ("seeds", "returns", "choice_returns"):
        values[name] = tuple(values.get(name) or ())
    values["metrics"] = values["metrics"] or {}
    enqueued_by = user if row["kind"] == TRIALS else None
    return TrialRecord(reports=curve, numbers=numbers, enqueued_by=enqueued_by, **values)
