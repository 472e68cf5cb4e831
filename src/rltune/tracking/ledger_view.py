"""Bring MLflow to what a sweep's ledger has: a run for the sweep, one for each trial, their curves and checkpoints.

The ledger keeps marks of how far MLflow has come. Whatever was sent is marked after it was sent, and sending it again
changes nothing, so that a kill between the two costs nothing. Runs in the outbox's sender thread.
"""

from __future__ import annotations

import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.store import find_store
from rltune.formatting import first_line, format_state
from rltune.records import BASELINE, CERTIFY, TRIALS, Report, RunKey, TrialRecord
from rltune.study.ledger import Ledger, UnsentTrial
from rltune.study.ranking import BestSoFar
from rltune.tracking.mlflow_runs import MLflowRuns, Point

STATUS = {"RUNNING": "RUNNING", "COMPLETE": "FINISHED", "PRUNED": "FINISHED", "FAIL": "FAILED"}
STATE_TAG, NOTE_TAG = "rltune.state", "mlflow.note.content"  # why a run has ended, as a word and as its description
# MLflow's page shows the charts of "<section>/<name>" first, section by section, and those without a section below them
# all: this section holds what trials are compared by, and sorts before "learner".
FIRST = "compare/"
COMPARED = ("objective", "score", "certified_score")
KEY_TAG, SWEEP_TAG, PARENT_TAG = "rltune.key", "rltune.sweep", "mlflow.parentRunId"
TRIAL_TAG, ROOT_TAG = "rltune.trial", "rltune.root"
ENTRY_TAG = "rltune.entry"  # names what a run shows, unlike any other in the same store
SENT_TAG = "rltune.sent_report"  # the mark of the last report that the sweep's run and those below it may have
SUPERSEDED_TAG = "rltune.superseded"  # of a run whose ledger was put back to an older state
KEPT_TAG, CHECKPOINT = "rltune.checkpoint", "checkpoint"  # which checkpoint the run's artifact folder of that name is
FAILURE_TAGS = {"rltune.traceback", "rltune.log"}
SWEEP = ""  # an entry that is no row of the ledger's trials, as BASELINE is none
MAX_REPORTS = 500  # are sent together, and marked together: a slow server must be done before the client gives up
Attempt = Callable[[str, Callable[[], Any]], bool]


@dataclass
class Progress:
    """The best score over the environment steps of all trials, as reports come in.

    Attributes:
        mark: Of the last report.
        best: So far; None before the first finite report.
        env_steps: Of all trials, all seeds together.
        steps: Of each seed, by trial.
        points: Of the curve, that were not sent yet: one at each change.
    """

    mark: int = 0
    best: float | None = None
    env_steps: int = 0
    steps: dict[int, int] = field(default_factory=dict)
    points: list[Point] = field(default_factory=list)
    _following: BestSoFar = field(default_factory=BestSoFar)

    def add(self, reports: Iterable[tuple[int, str, Report]], replicates: int, barred: Collection[int] = ()) -> None:
        """Take reports in, in the order of the ledger; those that it has seen change nothing.

        Args:
            reports: Of all trials.
            replicates: Seeds of each.
            barred: Trials that cannot win, whose scores do not count.
        """
        for mark, kind, report in reports:
            if mark <= self.mark:
                continue
            self.mark = mark
            if kind != TRIALS:
                continue
            self.env_steps += replicates * (report.env_steps - self.steps.get(report.number, 0))
            self.steps[report.number] = report.env_steps
            if report.number in barred:
                continue
            before, self.best = self.best, self._following.add(report.number, report.objective)
            if self.best is not None and self.best != before:
                time_ms = int(report.time_s * 1000)
                self.points += [
                    (name, self.best, self.env_steps, time_ms) for name in ("best_score", f"{FIRST}best_score")
                ]


class LedgerView:
    """A sweep's ledger as MLflow shows it.

    Args:
        ledger: The sweep's.
        runs: Those of its experiment.
        folder: The sweep's, which has the checkpoints.
        notify: Called with what a person should know.
    """

    def __init__(self, ledger: Ledger, runs: MLflowRuns, folder: Path, notify: Callable[[str], None]) -> None:
        self._ledger, self._runs, self._folder, self._notify = ledger, runs, folder, notify
        self._started: tuple[Mapping[str, Any], Mapping[str, str]] | None = None
        self._ids: dict[str, str] = {}  # of runs that are on the server for all we know, by entry
        self._key = ""
        self._unsure = False  # whether there may be runs that the ledger does not know, or two of one entry
        self._incomplete = False  # whether marks were taken back
        self._ended = False  # whether the sweep's run was ended: a round that comes after it must not reopen the run
        self._mark: int | None = None  # of the last report that was sent, should the ledger not keep it
        self._progress = self._begin_progress()
        self._replicates = 0
        self._sweep_run_id: str | None = None
        self._untaken: set[str] = set()  # checkpoints that the server did not take
        self._refused: set[str] = set()  # names of which a person was told
        self._has_warned = False

    def _begin_progress(self) -> Progress:
        return Progress(_following=BestSoFar(self._ledger.criteria.scored))

    def start(self, params: Mapping[str, Any], tags: Mapping[str, str]) -> None:
        """Say what describes the sweep's run; nothing is sent before."""
        self._started = dict(params), dict(tags)

    def connect(self) -> None:
        """Import MLflow and open the store, slowly if need be. Called until it succeeds, before anything else."""
        self._runs.connect()

    def is_alive(self) -> bool:
        """Return whether the server takes what is written, to tell an outage from an operation that cannot work."""
        return self._runs.is_alive(self._sweep_run_id)

    def doubt(self) -> None:
        """Look for every run again before it is used: an operation has failed, or its answer was lost."""
        self._ids.clear()
        self._unsure = True

    def send(self, attempt: Attempt) -> str | None:
        """Send what the ledger has and MLflow lacks. A repetition has no effect.

        Args:
            attempt: Is to call each operation, with its name for a person; returns whether it was carried out, False
                where it was given up, and raises what ends this round.

        Returns:
            The id of the sweep's run; None before the sweep was started.
        """
        if self._started is None:
            return None
        self._ledger.check_lease()
        self._find_sweep()
        # In this order: the reports of a trial that had ended by then are all among those that are read afterwards.
        rows = {(row.kind, row.number): row for row in self._ledger.read_unsent_trials()}
        records = self._read_records(rows)
        changed = {key: row for key, row in rows.items() if row.revision > row.sent_revision}
        whole = False
        while not whole:
            reports = self._ledger.read_reports_after(self._read_mark(), MAX_REPORTS)
            whole = len(reports) < MAX_REPORTS
            curves: dict[tuple[str, int], list[Report]] = defaultdict(list)
            for _, kind, report in reports:
                curves[kind, report.number].append(report)
            records |= self._read_records(curves.keys() - records.keys())
            if reports:  # before they are sent: whoever opens an older ledger learns that MLflow is ahead of it
                self._log(self._find_sweep(), "the sweep", {}, {SENT_TAG: str(reports[-1][0])}, [])
            for key in dict.fromkeys([*changed, *curves]) if whole else curves:
                row, curve = changed.get(key), curves.get(key, [])
                attempt(records[key].run_key.name, partial(self._send_trial, records[key], row, curve, whole=whole))
                if whole and row is not None:
                    self._note(self._ledger.mark_trial_sent, *key, row.revision)
            self._send_progress(attempt, reports)
            if reports:
                self._mark = reports[-1][0]
                self._note(self._ledger.mark_reports_sent, self._mark)
        for key, row in rows.items():
            if records[key].state == "COMPLETE" and row.sent_checkpoint is None:
                self._send_checkpoint(attempt, records[key])
        if self._incomplete:
            self._incomplete = False
            return self.send(attempt)
        return self._find_sweep()

    # -- the sweep's run ----------------------------------------------------------------------------------------------

    def _find_sweep(self) -> str:
        """Find the sweep's run, or create it, and return its id."""
        if SWEEP in self._ids:
            return self._ids[SWEEP]
        if self._started is None:
            raise LookupError("the sweep's run was not begun")
        record = self._ledger.sweep()
        self._key = record.key
        self._runs.open_experiment()
        run = self._runs.read(record.mlflow_run_id)
        if record.mlflow_run_id and run is None:  # another MLflow, or an emptied one
            self._forget_sent(mlflow_run_id=None)
            raise LookupError("MLflow does not have the sweep's run")  # this round's marks are of another place
        if run is None:
            run = next(iter(self._runs.search(KEY_TAG, self._key)), None)
        if run is not None and int(run.data.tags.get(SENT_TAG, 0)) > self._ledger.read_last_report():
            self._supersede(str(run.info.run_id))
            raise LookupError("MLflow is ahead of the ledger")
        params, tags = dict(self._started[0]), {**self._started[1], SWEEP_TAG: record.name, KEY_TAG: self._key}
        if run is None:
            run_id = self._runs.create(record.name, tags, int(time.time() * 1000))
            tags = {}
        else:
            run_id, self._unsure = str(run.info.run_id), True  # a killed driver may have left doubles
            params, tags = self._runs.go_on(run, params, tags)
            if run.info.status != "RUNNING" and not self._ended:
                self._runs.reopen(run_id)
        self._tell_refused(record.name, self._runs.log(run_id, params, tags, []))
        if run_id != record.mlflow_run_id:
            self._note(partial(self._ledger.change_sweep, mlflow_run_id=run_id))
        self._ids[SWEEP] = self._sweep_run_id = run_id
        return run_id

    def _supersede(self, run_id: str) -> None:
        """Leave the runs of a ledger that was put back to an older state as they are, and begin new ones.

        Trials train again what the ledger has lost, and new ones take the numbers of lost ones: their curves must not
        be mixed.
        """
        self._runs.log(run_id, {}, {SUPERSEDED_TAG: "the ledger was put back to an older state"}, [])
        self._end_runs(run_id, "KILLED", int(time.time() * 1000))
        self._forget_sent(key=uuid.uuid4().hex, mlflow_run_id=None)
        self._notify("the ledger is older than what MLflow shows: the sweep goes on in new runs, the old ones stay")

    def _forget_sent(self, **changes: Any) -> None:
        """Send everything again, to runs that are to be made."""
        self._ledger.forget_sent()
        self._ledger.change_sweep(**changes)
        self._mark, self._progress = None, self._begin_progress()
        self._untaken.clear()
        self._ids.clear()

    def _send_progress(self, attempt: Attempt, reports: list[tuple[int, str, Report]]) -> None:
        """Send the sweep's own curve."""
        if not reports:
            return
        if not self._replicates:
            self._replicates = max((len(first.seeds) for first in self._ledger.trials.records([0])), default=0)
        sent, barred = self._read_mark(), self._find_barred()
        while self._progress.mark < sent:  # what an earlier driver has sent
            earlier = self._ledger.read_reports_after(self._progress.mark, MAX_REPORTS)
            self._progress.add((one for one in earlier if one[0] <= sent), self._replicates, barred)
            if not earlier or earlier[-1][0] >= sent:
                self._progress.mark = sent
            self._progress.points.clear()
        self._progress.add(reports, self._replicates, barred)
        if self._progress.points:
            points = self._progress.points
            attempt("best_score", lambda: self._log(self.find_run(None), "the sweep", {}, {}, points))
            self._progress.points.clear()

    def _find_barred(self) -> set[int]:
        """Find the trials that break a constraint by now; without constraints nothing is read for it."""
        if not self._ledger.criteria.constraints:
            return set()
        return {record.number for record in self._ledger.trials.records() if record.broken}

    def end_sweep(self, status: str, end_ms: int) -> None:
        """End the sweep's run, and as KILLED those below it that are still open."""
        if self._incomplete:  # a run that was gone had to be made again
            raise LookupError("the ledger has more to send")
        self._end_runs(self.find_run(None), status, end_ms)
        self._ended = True
        self._ids.clear()

    def _end_runs(self, root: str, status: str, end_ms: int) -> None:
        """End the sweep's run and those below it that are still open; delete doubles."""
        running = "" if self._unsure else " and attributes.status = 'RUNNING'"
        found = self._runs.search(ENTRY_TAG, f"{self._key}/%", running, like=True)
        if self._unsure:
            known = {
                record.mlflow_run_id for kind in (TRIALS, CERTIFY) for record in self._ledger.table(kind).records()
            }
            found = self._delete_doubles(found, ENTRY_TAG, known)
            self._delete_doubles(self._runs.search(KEY_TAG, self._key), KEY_TAG, {root})
        for run in found:
            if run.info.status == "RUNNING":
                is_baseline = run.data.tags[TRIAL_TAG] == BASELINE
                self._runs.end(run.info.run_id, status if is_baseline else "KILLED", end_ms)
        self._runs.end(root, status, end_ms)

    def _delete_doubles(self, found: Iterable[Any], tag: str, known: set[str | None]) -> list[Any]:
        """Keep one run of each value of a tag: a creation whose answer was lost was repeated, and had happened."""
        kept: dict[str, Any] = {}
        for run in sorted(found, key=lambda run: (run.info.run_id not in known, -len(run.data.metrics))):
            if kept.setdefault(run.data.tags[tag], run) is not run:
                self._runs.delete(run.info.run_id)
        return list(kept.values())

    # -- the runs below it --------------------------------------------------------------------------------------------

    def find_run(self, key: RunKey | None) -> str:
        """Return the id of a run, the sweep's or one below it; find or create the run.

        Raises:
            LookupError: The ledger has nothing of this name.
        """
        if key is None:
            return self._find_sweep()
        if key == RunKey(None):
            return self._find_baseline()
        kind = TRIALS if key.seed_index is None else CERTIFY
        rows = self._ledger.trials.records([key.trial or 0]) if kind == TRIALS else self._ledger.runs.records()
        record = next((row for row in reversed(rows) if row.run_key == key), None)
        if record is None:
            raise LookupError(f"there is no {key.name}")
        return self._find_trial(record)

    def _find_baseline(self) -> str:
        """Return the id of the run above the baseline's: that of the first trial of its values, else one of its own."""
        values = next((run.params for run in self._ledger.runs.records() if run.of_trial is None), None)
        if values is not None:
            for record in self._ledger.trials.records():
                if record.params == values:
                    return self._find_trial(record)
        if BASELINE not in self._ids:
            found = self._runs.search(ENTRY_TAG, f"{self._key}/{BASELINE}")
            if not found:
                tags = self._make_tags(RunKey(None), BASELINE)
                self._ids[BASELINE] = self._runs.create(BASELINE, tags, int(time.time() * 1000))
            else:
                self._ids[BASELINE] = str(found[0].info.run_id)
                if found[0].info.status != "RUNNING":
                    self._runs.reopen(self._ids[BASELINE])
        return self._ids[BASELINE]

    def _make_tags(self, key: RunKey, entry: str) -> dict[str, str]:
        tags = {SWEEP_TAG: self._ledger.name, ENTRY_TAG: f"{self._key}/{entry}"}
        tags[TRIAL_TAG] = key.name if key.trial is None or key.seed_index is not None else str(key.trial)
        if key.parent is not None:
            tags[ROOT_TAG] = self.find_run(None)
        return tags | {PARENT_TAG: self.find_run(key.parent)}

    def _find_trial(self, record: TrialRecord) -> str:
        """Return the id of a trial's run; find or create the run, and show what it is."""
        entry = f"{record.kind}/{record.number}"
        if entry not in self._ids:
            params, tags = self._open_trial(record)
            self._log(self._ids[entry], record.run_key.name, params, tags, [])
        return self._ids[entry]

    def _open_trial(self, record: TrialRecord) -> tuple[dict[str, Any], dict[str, str]]:
        """Find a trial's run, or create it; return what it still lacks of its params and tags."""
        entry = f"{record.kind}/{record.number}"
        tags = self._make_tags(record.run_key, entry) | self._make_state_tags(record)
        tags |= {"rltune.enqueued_by": record.enqueued_by} if record.enqueued_by else {}
        tags["rltune.seeds"] = ",".join(str(seed) for seed in record.seeds)
        run = self._runs.read(record.mlflow_run_id)
        is_lost = run is None and record.mlflow_run_id is not None
        if run is None and self._unsure:  # it may have been created and the answer lost
            run = next(iter(self._runs.search(ENTRY_TAG, tags[ENTRY_TAG])), None)
        params: dict[str, Any] = dict(record.params)
        if run is None:
            run_id = self._runs.create(record.run_key.name, tags, int((record.began_s or time.time()) * 1000))
            tags = {}
        else:
            run_id = str(run.info.run_id)
            params, tags = self._runs.go_on(run, params, tags)
            if run.info.status != "RUNNING" and _status_of(record) == "RUNNING":
                self._runs.reopen(run_id)
                for tag in FAILURE_TAGS & run.data.tags.keys():  # of a failure after which it is tried again
                    self._runs.drop_tag(run_id, tag)
        if is_lost:
            curve = self._ledger.table(record.kind).read_reports(record.number)
            self._log(run_id, record.run_key.name, {}, {}, _to_points(curve))
            self._note(self._ledger.mark_trial_sent, record.kind, record.number, 0)
            self._note(self._ledger.mark_checkpoint_sent, record.kind, record.number, None)
            self._incomplete = True
        if run_id != record.mlflow_run_id:
            self._note(self._ledger.table(record.kind).set_mlflow_run, record.number, run_id)
        self._ids[entry] = run_id
        return params, tags

    def _send_trial(self, record: TrialRecord, row: UnsentTrial | None, curve: list[Report], *, whole: bool) -> None:
        """Send what MLflow lacks of a trial.

        Args:
            record: As it was before the reports were read.
            row: None where only reports are to be sent.
            curve: Its reports that are sent now.
            whole: Whether no reports are left, so that its end may be shown.
        """
        entry, status = f"{record.kind}/{record.number}", _status_of(record)
        params: Mapping[str, Any] = {}
        tags: dict[str, str] = {}
        if status == "RUNNING" and row is not None and row.sent_revision:
            self._ids.pop(entry, None)  # it goes on: its run may have been ended, its params may be others
        if entry not in self._ids:
            params, tags = self._open_trial(record)
        points = _to_points(curve)
        is_over = whole and row is not None and status != "RUNNING"
        if is_over:
            tags |= self._make_state_tags(record) | _make_end_tags(record)
            if record.score is not None:
                last = (curve or self._ledger.table(record.kind).read_reports(record.number))[-1]
                ends = {"score": record.score} | ({"certified_score": record.score} if record.kind == CERTIFY else {})
                place = last.nominal_steps, int(last.time_s * 1000)
                points += [(name, value, *place) for name, value in show_first(ends).items()]
        self._log(self._ids[entry], record.run_key.name, params, tags, points)
        if is_over:
            self._runs.end(self._ids[entry], status, int((record.ended_s or time.time()) * 1000))

    def _make_state_tags(self, record: TrialRecord) -> dict[str, str]:
        """Say in a word and in a line what became of a trial: MLflow's statuses know no stopped one."""
        state = note = _describe_state(record)  # never empty: a server refuses an empty tag, and the rest with it
        if state != "running":
            params = self._started[0] if self._started else {}
            whole = f" of {params['budget.env_steps']:,}" if "budget.env_steps" in params else ""
            why = "" if state == "complete" else f": {first_line(record.stop_reason)}"
            note += f" at {max(record.reports, default=0):,}{whole} env steps{why}"
            note += "".join(f"; cannot win: {check}" for check in record.broken)
        return {STATE_TAG: state, NOTE_TAG: note}

    def _send_checkpoint(self, attempt: Attempt, record: TrialRecord) -> None:
        """Send a whole trial's checkpoint, unless its files are gone."""
        path = record.checkpoint.path if record.checkpoint else ""
        try:
            with find_store(self._folder).lend(path) as files:
                if not path or files is None:
                    path = ""
                elif path in self._untaken or not attempt(
                    f"the checkpoint of {record.run_key.name}", partial(self._send_files, record, files)
                ):
                    self._untaken.add(path)  # It is not marked as sent, so that the next driver tries again.
                    return
        except StoreError:
            self._untaken.add(path)
            return
        self._note(self._ledger.mark_checkpoint_sent, record.kind, record.number, path)

    def _send_files(self, record: TrialRecord, files: Path) -> None:
        self._runs.log_files(self._find_trial(record), files, CHECKPOINT)

    # -- the ledger ---------------------------------------------------------------------------------------------------

    def _read_records(self, keys: Iterable[tuple[str, int]]) -> dict[tuple[str, int], TrialRecord]:
        numbers = defaultdict(list)
        for kind, number in keys:
            numbers[kind].append(number)
        found = [record for kind, wanted in numbers.items() for record in self._ledger.table(kind).records(wanted)]
        return {(record.kind, record.number): record for record in found}

    def _read_mark(self) -> int:
        if self._mark is None:
            self._mark = self._ledger.read_sent_report()
        return self._mark

    def _note(self, note: Callable[..., None], *what: Any) -> None:
        """Note in the ledger what was sent; what cannot be noted is sent again one day, without effect."""
        try:
            note(*what)
        except Exception as error:
            if not self._has_warned:
                self._notify(f"the ledger does not keep what MLflow has ({type(error).__name__}): it is sent again")
            self._has_warned = True

    def _log(
        self, run_id: str, name: str, params: Mapping[str, Any], tags: Mapping[str, str], points: list[Point]
    ) -> None:
        if params or tags or points:
            self._tell_refused(name, self._runs.log(run_id, params, tags, points))

    def _tell_refused(self, name: str, refused: list[str]) -> None:
        new = dict.fromkeys(one for one in refused if one not in self._refused)
        if new:
            self._refused |= set(new)
            self._notify(f"MLflow refused {', '.join(new)} of {name}; the rest is there")


def _status_of(record: TrialRecord) -> str:
    """Return MLflow's word for a trial's state; one that was interrupted is KILLED until a resume continues it."""
    if record.state == "RUNNING" and record.stop_reason:
        return "KILLED"
    return "FAILED" if record.diverged else STATUS[record.state]


def _describe_state(record: TrialRecord) -> str:
    """Return a trial's state in a person's word."""
    return "diverged" if record.diverged else format_state(record.state, is_live=not record.stop_reason)


def show_first(numbers: Mapping[str, float]) -> dict[str, float]:
    """Add to a run's numbers those that MLflow's page is to chart before all others, under a second name."""
    return {**numbers, **{f"{FIRST}{name}": numbers[name] for name in COMPARED if name in numbers}}


def _make_end_tags(record: TrialRecord) -> dict[str, str]:
    tags = {"rltune.stop_reason": record.stop_reason, "rltune.breaks": record.breaks}
    if record.state == "FAIL" or record.diverged:
        tags |= {"rltune.traceback": record.traceback, "rltune.log": record.log}
    if record.state == "COMPLETE" and record.checkpoint:
        tags[KEPT_TAG] = Path(record.checkpoint.path).name
    return {name: text for name, text in tags.items() if text}


def _to_points(curve: Iterable[Report]) -> list[Point]:
    return [
        (name, value, report.nominal_steps, int(report.time_s * 1000))
        for report in curve
        for name, value in show_first(report.numbers).items()
    ]
