"""Read all rows of a sweep from its ledger, and at the next call only those that have changed. Runs anywhere.

Every display of a sweep is made from such a snapshot, see `rltune.views.sweep_view`. Displays read again and again,
so that a second snapshot of a thousand trials has to cost milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from sqlalchemy import ColumnElement, Connection, Engine, Text, and_, case, or_, select, type_coerce

from rltune.envs.spec import EPISODE
from rltune.ledger.database import read_at_one_moment
from rltune.ledger.lease import LeaseState
from rltune.ledger.ledger import SWEEP_COLUMNS
from rltune.ledger.tables import LEASES, REPORTS, SWEEP_TRIALS, SWEEPS
from rltune.ledger.trial_table import COLUMNS, make_record, make_report, read_newest_numbers, read_users
from rltune.records import TRIALS, Report, SweepRecord, TrialRecord

_REPORT = (
    REPORTS.c.id,
    REPORTS.c.trial_id,
    REPORTS.c.nominal_steps,
    REPORTS.c.env_steps,
    REPORTS.c.score,
    REPORTS.c.time_s,
    # All numbers are most of a ledger, so they are read only where some of them are the user's own metrics.
    case((type_coerce(REPORTS.c.numbers, Text).contains(f'"{EPISODE}'), REPORTS.c.numbers)),
)


@dataclass(frozen=True)
class LedgerSnapshot:
    """The ledger rows of one sweep as of one moment.

    Attributes:
        record: The sweep as a whole.
        lease: The sweep's lease.
        trials: The search's trials and the certification's runs by their row's id, in the order in which they began.
            They are not judged by the sweep's criteria.
        revisions: How often each of these rows has changed what MLflow shows.
        reports: The reports of the search's trials in the order in which they came; of their numbers beside the score
            only the user's own metrics.
        last_report: The id of the newest report that was read.
    """

    record: SweepRecord
    lease: LeaseState
    trials: Mapping[int, TrialRecord] = field(default_factory=dict)
    revisions: Mapping[int, int] = field(default_factory=dict)
    reports: tuple[Report, ...] = ()
    last_report: int = 0

    @cached_property
    def is_abandoned(self) -> bool:
        """Whether the sweep's driver is gone although the ledger says that the sweep is still running."""
        return self.record.status in (None, "running") and self.lease.is_abandoned()


def read_snapshots(
    engine: Engine, sweep_ids: Sequence[int], since: Mapping[int, LedgerSnapshot] | None = None
) -> dict[int, LedgerSnapshot]:
    """Read the snapshots of several sweeps of one database with as many queries as a single sweep needs.

    Args:
        engine: The ledger's.
        sweep_ids: The sweeps' rows.
        since: Earlier snapshots by the same ids. Trials that have ended by then are not read again.

    Returns:
        The snapshots by the sweeps' ids; a sweep that does not exist is left out.
    """
    earlier = since or {}
    with read_at_one_moment(engine) as connection:
        records, leases = _read_sweeps(connection, sweep_ids)
        revisions: dict[int, dict[int, int]] = {sweep_id: {} for sweep_id in records}
        first_read, live = set(records.keys() - earlier.keys()), set[int]()
        whole: set[int] = set()
        scan = select(SWEEP_TRIALS.c.id, SWEEP_TRIALS.c.sweep_id, SWEEP_TRIALS.c.revision, SWEEP_TRIALS.c.state)
        for row_id, sweep_id, revision, state in connection.execute(
            scan.where(SWEEP_TRIALS.c.sweep_id.in_(revisions)).order_by(SWEEP_TRIALS.c.id)
        ):
            revisions[sweep_id][row_id] = revision
            if sweep_id in first_read:
                continue
            before = earlier[sweep_id].trials.get(row_id)
            if before is not None and before.state == "RUNNING":
                live.add(row_id)
            elif before is None or state == "RUNNING" or revision != earlier[sweep_id].revisions[row_id]:
                # An earlier snapshot lacks this trial, or has an older attempt of it, so all its reports are read and
                # not only newer ones.
                whole.add(row_id)
        changed = _read_trials(connection, SWEEP_TRIALS.c.sweep_id.in_(first_read), SWEEP_TRIALS.c.id.in_(live | whole))
        marks = [earlier[trial.sweep_id].last_report for trial in changed.values() if trial.row_id in live]
        wanted: list[ColumnElement[bool]] = [REPORTS.c.trial_id.in_(whole)] if whole else []
        if first_read:
            of_sweeps = select(SWEEP_TRIALS.c.id).where(SWEEP_TRIALS.c.sweep_id.in_(first_read))
            wanted.append(REPORTS.c.trial_id.in_(of_sweeps))
        if marks:
            wanted.append(and_(REPORTS.c.trial_id.in_(live), REPORTS.c.id > min(marks)))
        if changed:
            _add_reports(connection, changed, or_(*wanted), earlier)
    return {
        sweep_id: _merge(record, leases[sweep_id], revisions[sweep_id], changed, sweep_id, earlier.get(sweep_id))
        for sweep_id, record in records.items()
    }


@dataclass
class _ChangedTrial:
    """A trial that has changed since an earlier snapshot, with its new reports."""

    row_id: int
    sweep_id: int
    record: TrialRecord
    reports: list[tuple[int, Report]] = field(default_factory=list)
    numbers: Mapping[str, float] | None = None


def _read_sweeps(
    connection: Connection, sweep_ids: Iterable[int]
) -> tuple[dict[int, SweepRecord], dict[int, LeaseState]]:
    """Read the rows and the leases of sweeps in one query."""
    of_lease = [column for column in LEASES.c if column is not LEASES.c.sweep_id]
    statement = select(SWEEPS.c.id, *SWEEP_COLUMNS, *of_lease).join_from(SWEEPS, LEASES, isouter=True)
    records, leases = {}, {}
    for row in connection.execute(statement.where(SWEEPS.c.id.in_(sweep_ids)).order_by(SWEEPS.c.id)):
        sweep_id, *values = row[: 1 + len(SWEEP_COLUMNS)]
        records[sweep_id], leases[sweep_id] = SweepRecord(*values), LeaseState.from_row(row)
    return records, leases


def _read_trials(connection: Connection, *conditions: ColumnElement[bool]) -> dict[int, _ChangedTrial]:
    """Read the trials that meet any of the conditions, without their reports."""
    trials = select(SWEEP_TRIALS.c.id, SWEEP_TRIALS.c.sweep_id, *COLUMNS).where(or_(*conditions))
    rows = connection.execute(trials.order_by(SWEEP_TRIALS.c.id)).mappings().all()
    users = read_users(connection, {row["sweep_id"] for row in rows}) if rows else {}
    changed = {}
    for row in rows:
        record = make_record(row, {}, {}, users.get((row["sweep_id"], row["number"])))
        changed[row["id"]] = _ChangedTrial(row["id"], row["sweep_id"], record)
    return changed


def _add_reports(
    connection: Connection,
    changed: Mapping[int, _ChangedTrial],
    condition: ColumnElement[bool],
    earlier: Mapping[int, LedgerSnapshot],
) -> None:
    """Read the reports that meet an SQL condition, and add them to the trials they belong to.

    Only of the newest report of each trial are all numbers kept.
    """
    grown: set[int] = set()  # The row ids of the trials that have new reports.
    for report_id, row_id, nominal_steps, env_steps, score, time_s, numbers in connection.execute(
        select(*_REPORT).where(condition).order_by(REPORTS.c.id)
    ):
        trial = changed.get(row_id)
        before = earlier.get(trial.sweep_id) if trial else None
        if trial is None or (before and row_id in before.trials and nominal_steps in before.trials[row_id].reports):
            continue
        metrics = {name: float(value) for name, value in (numbers or {}).items() if name.startswith(EPISODE)}
        report = make_report(trial.record.number, nominal_steps, env_steps, score, metrics, time_s)
        trial.reports.append((report_id, report))
        grown.add(row_id)
    # A first read may have more trials than one SQL statement can list, so their sweeps are listed instead.
    if len(grown) > 100:
        has_grown = SWEEP_TRIALS.c.sweep_id.in_({changed[row_id].sweep_id for row_id in grown})
    else:
        has_grown = SWEEP_TRIALS.c.id.in_(grown)
    if grown:
        for row_id, newest in read_newest_numbers(connection, has_grown).items():
            if row_id in grown:
                changed[row_id].numbers = newest


def _merge(
    record: SweepRecord,
    lease: LeaseState,
    revisions: Mapping[int, int],
    changed: Mapping[int, _ChangedTrial],
    sweep_id: int,
    since: LedgerSnapshot | None,
) -> LedgerSnapshot:
    """Combine an earlier snapshot of a sweep with the trials that have changed since."""
    trials, reports = dict(since.trials) if since else {}, []
    for row_id, trial in changed.items():
        if trial.sweep_id != sweep_id:
            continue
        before = trials.get(row_id)
        curve = dict(before.reports) if before else {}
        for _, report in trial.reports:
            curve[report.nominal_steps] = report.score
        numbers = trial.numbers if trial.numbers is not None else before.numbers if before else {}
        trials[row_id] = replace(trial.record, reports=curve, numbers=numbers)
        reports += [(report_id, trial.record.kind, report) for report_id, report in trial.reports]
    reports.sort(key=lambda read: read[0])
    return LedgerSnapshot(
        record=record,
        lease=lease,
        trials=trials,
        revisions=revisions,
        reports=(since.reports if since else ()) + tuple(report for _, kind, report in reports if kind == TRIALS),
        last_report=max(since.last_report if since else 0, reports[-1][0] if reports else 0),
    )
