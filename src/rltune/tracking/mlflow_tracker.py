"""Show a sweep in MLflow: a run for the sweep and a child run for each trial.

Each method may be repeated without effect. Runs are found by a tag before they are created, and MLflow keeps a point of
the same name, step, time and value once. Runs in the feed's thread (`rltune.tracking.feed`).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rltune.config.criteria import Criteria
from rltune.config.schema import TrackingConfig
from rltune.config.uris import resolve_uri
from rltune.formatting import first_line, format_state
from rltune.ledger.outcome import Outcome
from rltune.ledger.ranking import BestSoFar
from rltune.records import BASELINE, CERTIFY, TRIALS, Report, RunKey, TrialRecord
from rltune.secrets import redact
from rltune.tracking.mlflow_address import ENTRY_TAG, FIRST, make_charts_page
from rltune.tracking.mlflow_client import check_uri
from rltune.tracking.mlflow_runs import PARENT_TAG, REFUSALS, MissingError, MLflowRuns, Point
from rltune.tracking.tracker import BATCH_SIZE, SweepDescription, Tracker, get_certified_score

STATUS = {"RUNNING": "RUNNING", "COMPLETE": "FINISHED", "PRUNED": "FINISHED", "FAIL": "FAILED"}
# MLflow's page shows charts named "<section>/<name>" first, section by section, and charts without a section below. The
# section `FIRST` holds the metrics that compare trials, and sorts before "learner".
COMPARED = ("score", "certified_score")
# MLflow shows the tag "mlflow.note.content" as a run's description.
STATE_TAG, NOTE_TAG = "rltune.state", "mlflow.note.content"
KEY_TAG, SWEEP_TAG = "rltune.key", "rltune.sweep"
TRIAL_TAG, ROOT_TAG = "rltune.trial", "rltune.root"
# The tag names the checkpoint whose files are in the run's artifact folder.
KEPT_TAG, CHECKPOINT = "rltune.checkpoint", "checkpoint"
FAILURE_TAGS = {"rltune.traceback", "rltune.log"}


class BestScoreCurve:
    """The curve of a sweep's best score so far over the environment steps of all trials together.

    Args:
        criteria: Which scores are better.
        replicates: The number of seeds of each trial.

    Attributes:
        mark: The id of the last report.
        points: Those of the curve that were not sent yet: one at each change.
    """

    def __init__(self, criteria: Criteria, replicates: int) -> None:
        self.mark, self.points = 0, list[Point]()
        self._best_so_far, self._replicates = BestSoFar(criteria.direction), replicates
        self._best: float | None = None
        self._env_steps, self._steps = 0, dict[int, int]()

    def add(self, reports: Iterable[tuple[int, str, Report]], barred: Collection[int] = ()) -> None:
        """Add reports in the order of their ids; reports that the curve already has are skipped.

        Args:
            reports: Of all trials.
            barred: Trials that cannot win, whose scores do not count.
        """
        for report_id, kind, report in reports:
            if report_id <= self.mark:
                continue
            self.mark = report_id
            if kind != TRIALS:
                continue
            self._env_steps += self._replicates * (report.env_steps - self._steps.get(report.number, 0))
            self._steps[report.number] = report.env_steps
            if report.number in barred:
                continue
            before, self._best = self._best, self._best_so_far.add(report.number, report.score)
            if self._best is not None and self._best != before:
                time_ms = int(report.time_s * 1000)
                for name in ("best_score", f"{FIRST}best_score"):
                    self.points.append((name, self._best, self._env_steps, time_ms))


class MLflowTracker(Tracker):
    """The tracker that shows a sweep in MLflow. The sweep's ledger keeps the ids of the runs."""

    name = "MLflow"
    has_registry = True

    def __init__(self, sweep: SweepDescription) -> None:
        super().__init__(sweep)
        self._ledger = sweep.ledger
        self._runs = MLflowRuns(resolve_uri(sweep.uri), sweep.experiment)
        self._is_connected = False
        self._ids: dict[str, str] = {}  # The ids of MLflow runs that are known to exist, by entry tag.
        self._ended: set[str] = set()  # The entry tags of trials whose MLflow runs this tracker has ended.
        self._may_miss_runs = False  # Whether the server may have trials' runs whose ids the ledger does not know.
        self._sweep_run_id = ""
        self._has_ended = False  # Whether the sweep's run has ended and takes only what is still to be delivered.
        self._texts: dict[str, str] = {}  # The files about the sweep that are still to be logged.
        self._curve: BestScoreCurve | None = None

    # -- Methods that the feed calls ----------------------------------------------------------------------------------

    @classmethod
    def check(cls, tracking: TrackingConfig) -> None:
        """Check that the MLflow address in the settings can work."""
        check_uri(tracking.uri)

    def open(self) -> None:
        """Import MLflow, open the store, and create or continue the sweep's run.

        After a failure every run is looked up again before it is used: a server that has stalled may still carry out
        what it was sent. A store that does not have the sweep's run, another one or an emptied one, gets everything.
        """
        sweep, record = self.sweep, self._ledger.sweep()
        if self._is_connected:
            self._may_miss_runs = True
        else:
            self._runs.connect()
            self._is_connected = True
        self._ids.clear()
        self._runs.open_experiment()
        run, curves = self._runs.read(record.mlflow_run_id), self._ledger.trials.read_curves()
        if run is not None and (key := run.data.tags.get(KEY_TAG, sweep.key)) != sweep.key:
            # The sweep was taken over. Nobody else may be there to end the runs of the driver that was given up.
            self._end_runs(key, "KILLED")
            run = None
        run = self._find_own([run], curves)
        if record.mlflow_run_id and run is None:
            self._ledger.forget_mlflow(self.name)
            # The ids were just deleted from the ledger, but the server may still have the trials' runs.
            self._may_miss_runs = True
            self._curve, self._sweep_run_id = None, ""
        if run is None:
            run = self._find_own(self._runs.search(KEY_TAG, sweep.key), curves)
        params, tags = dict(sweep.params), {**sweep.tags, SWEEP_TAG: sweep.name, KEY_TAG: sweep.key}
        if run is None:
            run_id = self._runs.create(sweep.name, tags, int(time.time() * 1000))
            tags = {}
        else:
            run_id = str(run.info.run_id)
            # A driver that was killed may have created trials' runs without storing their ids.
            self._may_miss_runs = True
            params, tags = self._runs.compare(run, params, tags)
            if run.info.status != "RUNNING" and not self._has_ended:
                self._runs.reopen(run_id)
        self._runs.log(run_id, params, tags, [])
        if not self._sweep_run_id:
            self._texts = dict(sweep.texts)
        store = {"uri": redact(resolve_uri(sweep.uri)), "experiment": self._runs.experiment}
        if (run_id, store) != (record.mlflow_run_id, record.mlflow):
            self._ledger.change_sweep(mlflow_run_id=run_id, mlflow=store)
        self._sweep_run_id = run_id
        with contextlib.suppress(Exception):  # The store of artifacts may be another server, which holds up no points.
            self._log_texts()

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        """Log reports to a trial's MLflow run, which is created, continued or ended as the trial's state requires."""
        entry, status, points = _name_entry(trial), _status_of(trial), _to_points(reports)
        if status == "RUNNING" and entry in self._ended:
            # The trial was resumed or retried, so its MLflow run has to be looked up and reopened.
            self._ids.pop(entry, None)
        params, tags = ({}, {}) if entry in self._ids else self._open_trial(trial)
        if status != "RUNNING":
            tags |= self._make_state_tags(trial) | _make_end_tags(trial)
            if certified := get_certified_score(trial):
                last = (reports or self._ledger.table(trial.kind).read_reports(trial.number))[-1]
                place = last.nominal_steps, int(last.time_s * 1000)
                points += [(name, value, *place) for name, value in _repeat_compared(certified).items()]
        self._runs.log(self._ids[entry], params, tags, points)
        if status != "RUNNING":
            self._runs.end(self._ids[entry], status, int((trial.ended_s or time.time()) * 1000))
            self._ended.add(entry)

    def write_sweep(self, reports: Sequence[tuple[int, str, Report]]) -> None:
        """Log the best score so far to the sweep's MLflow run."""
        barred = set[int]()
        if self._ledger.criteria.constraints:
            barred = {record.number for record in self._ledger.trials.records() if record.broken}
        if self._curve is None:
            replicates = max((len(first.seeds) for first in self._ledger.trials.records([0])), default=0)
            self._curve = BestScoreCurve(self._ledger.criteria, replicates)
            delivered = self._ledger.read_delivered_report(self.name)
            # The curve starts from the first report again; points that an earlier driver has sent are not sent twice.
            while self._curve.mark < delivered:
                earlier = self._ledger.read_reports_after(self._curve.mark, BATCH_SIZE)
                self._curve.add((entry for entry in earlier if entry[0] <= delivered), barred)
                if not earlier or earlier[-1][0] >= delivered:
                    break
            self._curve.points.clear()
        self._curve.add(reports, barred)
        if self._curve.points:
            self._runs.log(self._sweep_run_id, {}, {}, self._curve.points)
            self._curve.points.clear()

    def write_checkpoint(self, trial: TrialRecord, folder: Path) -> None:
        """Upload a checkpoint's files to the trial's MLflow run."""
        self._runs.log_files(self._find_trial(trial), folder, CHECKPOINT)

    def describe(self, key: RunKey | None, metrics: Mapping[str, float], tags: Mapping[str, str]) -> None:
        """Log metrics at step 0 and tags to a run.

        In a tag, ``{page}`` becomes the address of the run's page, ``{trials}`` that of the charts of the trials.
        """
        run_id, experiment = self._find_run(key), self._runs.experiment
        page = f"#/experiments/{experiment}/runs/{run_id}"
        charts = make_charts_page(experiment, self.sweep.key, self._ledger.criteria.direction)
        tags = {name: text.replace("{page}", page).replace("{trials}", charts) for name, text in tags.items()}
        self._runs.log_changed(run_id, _repeat_compared(metrics), tags, int(time.time() * 1000))

    def keep_files(self, path: Path, folder: str | None) -> None:
        """Upload files to the sweep's MLflow run."""
        self._runs.log_files(self._sweep_run_id, path, folder)

    def end(self, status: str, outcome: Outcome | None) -> None:
        """End the sweep's and the baseline's MLflow runs with the status, and other open child runs as KILLED."""
        self._end_runs(self.sweep.key, status)
        self._has_ended = True
        self._log_texts()

    def _log_texts(self) -> None:
        """Log the texts about the sweep that MLflow does not have yet."""
        for file, text in [*self._texts.items()]:
            self._runs.log_text(self._sweep_run_id, text, file)
            del self._texts[file]

    def _end_runs(self, key: str, status: str) -> None:
        running, end_ms = " and attributes.status = 'RUNNING'", int(time.time() * 1000)
        children = self._runs.search(ENTRY_TAG, f"{key}/%", running, like=True)
        for run in (*children, *self._runs.search(KEY_TAG, key, running)):
            is_baseline = run.data.tags.get(TRIAL_TAG) == BASELINE
            is_ended = is_baseline or run.info.run_id == self._sweep_run_id
            self._runs.end(run.info.run_id, status if is_ended else "KILLED", end_ms)

    def is_refusal(self, error: BaseException) -> bool:
        """Return whether MLflow refuses the content of a request, or what was to be sent does not exist here."""
        is_refused = getattr(error, "error_code", "") in REFUSALS or isinstance(error, MissingError)
        return is_refused or super().is_refusal(error)

    def _find_own(self, runs: Iterable[Any], reports: Iterable[Report]) -> Any:
        """Return the first run whose newest points the ledger has; None if there is none.

        Other points are of a driver with another copy of the ledger, such as a newer one than was restored from a
        backup. Its run stays as it is, because MLflow would keep the points of both, twice at a step.
        """
        names, times = {"score", "best_score"}, set()
        for report in reports:
            names.update(report.numbers)
            times.add(int(report.time_s * 1000))
        return next((run for run in runs if run and self._runs.read_last_times(run, names) <= times), None)

    # -- Methods for the MLflow runs of trials ------------------------------------------------------------------------

    def _find_run(self, key: RunKey | None) -> str:
        """Return the id of the sweep's MLflow run or of a child run, which is created if missing.

        Raises:
            MissingError: The ledger has no such trial.
        """
        if key is None:
            return self._sweep_run_id
        if key == RunKey(None):
            return self._find_baseline()
        kind = TRIALS if key.seed_index is None else CERTIFY
        records = self._ledger.trials.records([key.trial or 0]) if kind == TRIALS else self._ledger.runs.records()
        record = next((record for record in reversed(records) if record.run_key == key), None)
        if record is None:
            raise MissingError(f"there is no {key.name}")
        return self._find_trial(record)

    def _find_baseline(self) -> str:
        """Return the parent run of the baseline's runs: that of a trial with the same values, or a new one."""
        values = next((run.params for run in self._ledger.runs.records() if run.of_trial is None), None)
        if values is not None:
            for record in self._ledger.trials.records():
                if record.params == values:
                    return self._find_trial(record)
        if BASELINE not in self._ids:
            run = next(iter(self._runs.search(ENTRY_TAG, f"{self.sweep.key}/{BASELINE}")), None)
            if run is None:
                tags = self._make_tags(RunKey(None), BASELINE)
                self._ids[BASELINE] = self._runs.create(BASELINE, tags, int(time.time() * 1000))
            else:
                self._ids[BASELINE] = str(run.info.run_id)
                if run.info.status != "RUNNING":
                    self._runs.reopen(self._ids[BASELINE])
        return self._ids[BASELINE]

    def _find_trial(self, trial: TrialRecord) -> str:
        """Return the id of a trial's MLflow run, which is created if missing."""
        entry = _name_entry(trial)
        if entry not in self._ids:
            params, tags = self._open_trial(trial)
            self._runs.log(self._ids[entry], params, tags, [])
        return self._ids[entry]

    def _open_trial(self, trial: TrialRecord) -> tuple[dict[str, Any], dict[str, str]]:
        """Find or create a trial's MLflow run, and return the params and tags that it still lacks."""
        entry = _name_entry(trial)
        tags = self._make_tags(trial.run_key, entry) | self._make_state_tags(trial)
        tags |= {"rltune.enqueued_by": trial.enqueued_by} if trial.enqueued_by else {}
        tags |= {"rltune.origin": trial.origin} if trial.origin else {}
        tags["rltune.seeds"] = ",".join(str(seed) for seed in trial.seeds)
        reports = self._ledger.table(trial.kind).read_reports(trial.number)
        run = self._find_own([self._runs.read(trial.mlflow_run_id)], reports)
        is_lost = run is None and trial.mlflow_run_id is not None
        # A create request whose answer was lost may have succeeded, so the run is searched by its tag.
        if run is None and self._may_miss_runs:
            run = self._find_own(self._runs.search(ENTRY_TAG, tags[ENTRY_TAG]), reports)
        params: dict[str, Any] = dict(trial.params)
        if run is None:
            run_id = self._runs.create(trial.run_key.name, tags, int((trial.began_s or time.time()) * 1000))
            tags = {}
        else:
            run_id = str(run.info.run_id)
            params, tags = self._runs.compare(run, params, tags)
            if run.info.status != "RUNNING" and _status_of(trial) == "RUNNING":
                self._runs.reopen(run_id)
                # The trial is retried, so tags about its earlier failure are deleted.
                for tag in FAILURE_TAGS & run.data.tags.keys():
                    self._runs.drop_tag(run_id, tag)
        if is_lost:  # MLflow does not have the trial's run any more, so all of its reports are logged again.
            self._runs.log(run_id, {}, {}, _to_points(reports))
            self._ledger.mark_trial(self.name, trial.kind, trial.number, revision=0, checkpoint=None)
        if run_id != trial.mlflow_run_id:
            self._ledger.table(trial.kind).set_mlflow_run(trial.number, run_id)
        self._ids[entry] = run_id
        self._ended.discard(entry)
        return params, tags

    def _make_tags(self, key: RunKey, entry: str) -> dict[str, str]:
        tags = {SWEEP_TAG: self.sweep.name, ENTRY_TAG: f"{self.sweep.key}/{entry}"}
        tags[TRIAL_TAG] = key.name if key.trial is None or key.seed_index is not None else str(key.trial)
        if key.parent is not None:
            tags[ROOT_TAG] = self._sweep_run_id
        return tags | {PARENT_TAG: self._find_run(key.parent)}

    def _make_state_tags(self, trial: TrialRecord) -> dict[str, str]:
        """Return the tags with a trial's state and a one-line description of it."""
        # MLflow would refuse an empty tag, and with it all tags of the same request.
        state = note = _describe_state(trial)
        if state != "running":
            budget = self.sweep.params.get("budget.env_steps")
            whole = f" of {budget:,}" if budget is not None else ""
            why = "" if state == "complete" else f": {first_line(trial.stop_reason)}"
            note += f" at {max(trial.reports, default=0):,}{whole} env steps{why}"
            note += "".join(f"; cannot win: {check}" for check in trial.broken)
        return {STATE_TAG: state, NOTE_TAG: note}


def _name_entry(trial: TrialRecord) -> str:
    return f"{trial.kind}/{trial.number}"


def _status_of(trial: TrialRecord) -> str:
    """Return MLflow's status for a trial's state; an interrupted trial is KILLED until it is resumed."""
    if trial.state == "RUNNING" and trial.stop_reason:
        return "KILLED"
    return "FAILED" if trial.diverged else STATUS[trial.state]


def _describe_state(trial: TrialRecord) -> str:
    return "diverged" if trial.diverged else format_state(trial.state, is_live=not trial.stop_reason)


def _repeat_compared(numbers: Mapping[str, float]) -> dict[str, float]:
    """Add copies of the metrics that compare trials, under names which MLflow's page charts first."""
    return {**numbers, **{f"{FIRST}{name}": numbers[name] for name in COMPARED if name in numbers}}


def _make_end_tags(trial: TrialRecord) -> dict[str, str]:
    tags = {"rltune.stop_reason": trial.stop_reason, "rltune.breaks": trial.breaks}
    if trial.state == "FAIL" or trial.diverged:
        tags |= {"rltune.traceback": trial.traceback, "rltune.log": trial.log}
    if trial.state == "COMPLETE" and trial.checkpoint:
        tags[KEPT_TAG] = Path(trial.checkpoint.path).name
    return {name: text for name, text in tags.items() if text}


def _to_points(reports: Iterable[Report]) -> list[Point]:
    return [
        (name, value, report.nominal_steps, int(report.time_s * 1000))
        for report in reports
        for name, value in _repeat_compared(report.numbers).items()
    ]
