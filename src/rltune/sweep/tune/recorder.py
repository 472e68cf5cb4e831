"""Record what happens while Tune runs: into the ledger first, then in MLflow and on the console.

A Tune callback; an exception in one would end the whole sweep, so none leaves it. Runs in the driver.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback

from rltune.cluster.background_imports import NEEDED_AT_END, begin_imports
from rltune.cluster.shared_storage import is_here
from rltune.config.schema import RunConfig
from rltune.study.checkpoints import TRIALS
from rltune.study.disk_full import DISK_FULL, is_disk_full, names_full_disk
from rltune.study.record import TrialRecord
from rltune.study.study import Study
from rltune.sweep.stopper import SweepStopper
from rltune.sweep.tune.failures import (
    Failure,
    classify_failure,
    describe_dead_process,
    describe_error,
    describe_reason,
    read_last_error,
)
from rltune.sweep.tune.scheduler import StoppingRuleScheduler
from rltune.tracking.tracker import TrialEnd
from rltune.trial.metrics import select_logged

logger = logging.getLogger(__name__)
RECORDS = {"best": "checkpoint", "latest": "latest"}  # what a report calls its checkpoints, and what the ledger does
PROGRESS_EVERY_S = 2.0  # the parent's curve needs no point per report


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Keep an exception from leaving a callback, where it would end Tune's run."""

    @functools.wraps(method)
    def safe(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if is_disk_full(error):
                self.stopper.request(DISK_FULL)
                return
            logger.exception("recording failed in %s", method.__name__)
            self.console.note(f"could not record an event ({type(error).__name__}: {error}); see the sweep's log")

    return safe


class TrialTracker(Protocol):
    """What a recorder needs of MLflow: `rltune.tracking.tracker.Tracker` is one."""

    @property
    def opening(self) -> bool:
        """Whether MLflow is still being imported."""

    def warnings(self) -> list[str]:
        """Return what a person should learn; each message comes once."""

    def trial_started(
        self, number: int, params: Mapping[str, Any], tags: Mapping[str, str], run_id: str | None
    ) -> None:
        """Create the trial's run, or go on with the one of this id."""

    def report(self, number: int, metrics: Mapping[str, float], env_steps: int) -> None:
        """Add a point to each curve."""

    def progress(self, best: float, total_env_steps: int) -> None:
        """Add a point to the sweep's own curve."""

    def trial_ended(
        self,
        number: int,
        state: str,
        *,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        artifacts: Path | None,
    ) -> None:
        """End the trial's run."""


class TrialConsole(Protocol):
    """What a recorder needs of the display: `rltune.reporting.console.Console` is one."""

    def trial_started(self, number: int, params: Mapping[str, Any]) -> None:
        """Show that a trial runs."""

    def report(self, number: int, objective: float | None, env_steps: int) -> None:
        """Show a trial's newest report."""

    def trial_ended(self, number: int, state: str, objective: float | None = None, reason: str | None = None) -> None:
        """Show how a trial ended."""

    def note(self, text: str) -> None:
        """Show a line."""

    def tick(self) -> None:
        """Draw if it is time to."""


class Recorder(Callback):
    """Writes what happens to trials into the ledger, MLflow and the console.

    A subclass for other runs than the search's may override `charge_steps`, `report_progress` and `end_trial`, and the
    two class attributes.

    Args:
        study: The ledger.
        tracker: MLflow, or nothing.
        console: What a person watches.
        scheduler: Knows which trials it stopped.
        stopper: Ends the sweep.
        config: The request.
        retry: Proposes a trial once more.

    Attributes:
        kind: Where the trials' own folders lie: TRIALS or CERTIFY.
        gives_up: Whether the sweep ends when its first trials all fail alike.
    """

    kind = TRIALS
    gives_up = True

    def __init__(
        self,
        study: Study,
        tracker: TrialTracker,
        console: TrialConsole,
        scheduler: StoppingRuleScheduler,
        stopper: SweepStopper,
        config: RunConfig,
        *,
        retry: Callable[[TrialRecord], None],
    ) -> None:
        self.study, self.tracker, self.console = study, tracker, console
        self.scheduler, self.stopper, self.config = scheduler, stopper, config
        self.folder = stopper.folder
        self._retry = retry
        self._num_retries: Counter[int] = Counter()
        self._first_failures: list[str] | None = [] if self.gives_up else None  # None once a trial has not failed
        records = study.trials()
        self._best = max((record.best for record in records if record.best is not None), default=-math.inf)
        self.env_steps = {record.number: record.env_steps for record in records}
        self._reported_progress = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its callbacks for a restore that is never used."""
        return {}

    # Tune calls this once per turn of its loop.
    @_guarded
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Check the sweep's budgets, show warnings, draw."""
        self.stopper.check_budgets()
        for warning in self.tracker.warnings():
            self.console.note(warning)
        self.console.tick()

    @_guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial begins or goes on."""
        task = trial.config["assignment"]
        self.stopper.live.add(self._trial_dir(task["number"]))
        record = self.study.trial(task["number"])
        self.console.trial_started(record.number, record.params)
        tags = {"rltune.seeds": ",".join(str(seed) for seed in task["seeds"])}
        self.tracker.trial_started(record.number, record.params, tags, record.mlflow_run_id)
        for env_steps, objective in record.reports.items():  # a killed driver may have written the ledger alone
            self.tracker.report(record.number, {"objective": objective}, env_steps)

    @_guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report."""
        number, env_steps = int(result["number"]), int(result["env_steps"])
        objective, records = float(result["objective"]), result.get("records") or {}
        if self.config.cluster.address is not None and not self._check_visible(records, str(result.get("node"))):
            return
        noted = {kept: records[kind] for kind, kept in RECORDS.items() if kind in records}
        _update_task(trial.config["assignment"], records)
        if result.get("between") or env_steps <= self.env_steps.get(number, 0):
            if noted:
                self.study.note(number, **noted)
            return  # stopped before it had trained on, or a checkpoint alone: nothing new to report
        # Nothing may stand between these two: a kill here costs a point of every curve but the objective's.
        self.study.report(number, env_steps, objective, **noted)
        self.tracker.report(number, select_logged(result), env_steps)
        if not self.tracker.opening:  # one after the other: threads of one process share its time
            begin_imports(*NEEDED_AT_END)
        self.charge_steps(max(0, env_steps - self.env_steps.get(number, 0)) * self.config.replicates)
        self.env_steps[number] = env_steps
        self.console.report(number, objective, env_steps)
        self.report_progress(objective)

    def _check_visible(self, records: Mapping[str, dict[str, Any]], node: str) -> bool:
        """Return whether the checkpoints are visible here; else request the end: a node lacks the shared storage."""
        gone = [record["path"] for record in records.values() if not is_here(self.folder / record["path"])]
        for path in gone:
            self.stopper.lost[path] = node
        if gone:
            self.stopper.request(f"{gone[0]} lies on node {node} alone")
        return not gone

    def _trial_dir(self, number: int) -> str:
        """Return a trial's own folder, relative to the sweep's."""
        return f"{self.kind}/{number}"

    def charge_steps(self, env_steps: int) -> None:
        """Charge the sweep's budget of steps."""
        self.stopper.env_steps += env_steps

    def report_progress(self, objective: float) -> None:
        """Report the best objective so far to MLflow, when it improves and now and then."""
        improved = math.isfinite(objective) and objective > self._best
        if improved:
            self._best = objective
        due = time.monotonic() - self._reported_progress >= PROGRESS_EVERY_S
        if math.isfinite(self._best) and (improved or due):
            self._reported_progress = time.monotonic()
            self.tracker.progress(self._best, self.stopper.env_steps)

    @_guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of a trial that kept its process: whole, stopped, failed inside, or interrupted."""
        result = trial.last_result or {}
        number = int(trial.config["assignment"]["number"])
        self.stopper.live.discard(self._trial_dir(number))
        if result.get("failed"):
            self._retry_or_fail(number, str(result["failed"]), str(result.get("traceback", "")), result)
        elif number in self.scheduler.stopped:
            level = self.scheduler.stopped[number]
            self.end_trial(number, "PRUNED", f"stopped by the scheduler at {level} environment steps", result)
        elif any(path.startswith(f"{self._trial_dir(number)}/") for path in self.stopper.lost):
            self._interrupt(number, {})  # what it has reached is out of reach
        elif result.get("interrupted") or int(result.get("env_steps", 0)) < self.config.budget.env_steps:
            self._interrupt(number, result)
        else:
            self.end_trial(number, "COMPLETE", "whole budget", result)
        _drop_results(trial)

    @_guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of a trial that lost its process and has used up its retries."""
        number = int(trial.config["assignment"]["number"])
        self.stopper.live.discard(self._trial_dir(number))
        last = trial.last_result or {}
        failure = describe_dead_process(
            self.folder, self._trial_dir(number), read_last_error(trial.error_file), last.get("worker_pid")
        )
        self._fail(number, failure, last)
        _drop_results(trial)

    def _retry_or_fail(self, number: int, reason: str, trace: str, result: dict[str, Any]) -> None:
        if names_full_disk(trace):  # no fault of the trial's, which goes on when there is room again
            self.stopper.request(DISK_FULL)
            self._interrupt(number, result)
            return
        if reason.startswith("non-finite") or self._num_retries[number] >= self.config.failures.max_retries:
            self._fail(number, describe_error(self.folder, self._trial_dir(number), reason, trace), result)
            return
        self._num_retries[number] += 1
        self.console.note(
            f"trial {number}: {describe_reason(reason, trace)}; trying once more from its last checkpoint"
        )
        self._retry(self.study.trial(number))

    def _fail(self, number: int, failure: Failure, result: dict[str, Any]) -> None:
        reason = failure.reason
        self.study.note(number, traceback=failure.trace, log=failure.log)
        self.end_trial(number, "FAIL", reason, result, f"; see {self.folder / failure.log}")
        if self._first_failures is not None:
            self._first_failures.append(reason)
            limit = self.config.failures.stop_after
            if len(self._first_failures) >= limit and len(set(map(classify_failure, self._first_failures))) == 1:
                self.stopper.failed = True
                self.stopper.request(f"the first {limit} trials all failed: {reason}")

    def end_trial(self, number: int, state: str, reason: str, result: dict[str, Any], where: str = "") -> None:
        """Record how a trial ended.

        Args:
            number: Which.
            state: COMPLETE, PRUNED or FAIL; COMPLETE becomes FAIL where no episode ended.
            reason: Why it ended.
            result: Its last report.
            where: What the console adds to the reason of a failure.
        """
        record = self.study.trial(number)
        if state == "COMPLETE" and record.best is None:
            state, reason = "FAIL", f"no episode ended within {self.config.budget.env_steps} environment steps"
        if state != "FAIL":
            self._first_failures = None
        self.study.finish(number, state, record.best, reason, **_costs(result))
        self.console.trial_ended(number, state, record.best, reason + where if state == "FAIL" else None)
        self._end_tracked_run(record, state, reason)

    def _interrupt(self, number: int, result: dict[str, Any]) -> None:
        """The trial stays RUNNING in the ledger: `sweeps.resume` goes on with it."""
        self.study.note(number, stop_reason="interrupted", **_costs(result))
        record = self.study.trial(number)
        self.console.trial_ended(number, "INTERRUPTED", record.best, None)
        self._end_tracked_run(record, "INTERRUPTED", "interrupted")

    def _end_tracked_run(self, record: TrialRecord, state: str, reason: str) -> None:
        end = make_trial_end(self.folder, record, state, reason)
        self.tracker.trial_ended(record.number, state, metrics=end.metrics, tags=end.tags, artifacts=end.artifacts)


def _update_task(task: dict[str, Any], records: Mapping[str, dict[str, Any]]) -> None:
    """Put the newest checkpoints into a trial's config, from which Tune starts a worker that died again."""
    for record in records.values():
        if task["latest"] is None or record["env_steps"] >= task["latest"]["env_steps"]:
            task["latest"] = record
    if "best" in records:
        task["best_objective"], task["best_path"] = records["best"]["objective"], records["best"]["path"]


def _costs(result: Mapping[str, Any]) -> dict[str, Any]:
    """Read what a trial's last report says of its costs, and where it ran."""
    costs = {"env_steps": int(result["env_steps"]), "train_s": float(result["train_s"])} if "train_s" in result else {}
    return costs | ({"node": result["node"]} if "node" in result else {})


def make_trial_end(folder: Path, record: TrialRecord, state: str, reason: str) -> TrialEnd:
    """Make what MLflow shows of a trial's end.

    Args:
        folder: The sweep's.
        record: The trial as the ledger has it.
        state: As `TrialEnd` has it.
        reason: Why it ended.
    """
    attributes, checkpoint = record.attributes, record.checkpoint
    tags = {"rltune.stop_reason": reason}
    if state == "FAIL":
        tags |= {f"rltune.{key}": str(attributes[key]) for key in ("traceback", "log") if key in attributes}
    return TrialEnd(
        state,
        metrics={} if record.best is None else {"best_objective": record.best},
        tags=tags,
        artifacts=folder / checkpoint["path"] if checkpoint and state == "COMPLETE" else None,
        params=record.params,
        reports=record.reports,
    )


def _drop_results(trial: Any) -> None:
    """Drop what Tune keeps of an ended trial: the study holds it all, and 0.1 MB each would add up."""
    trial.run_metadata.metric_analysis.clear()
    trial.run_metadata.metric_n_steps.clear()
    trial.config.clear()  # in place: Tune has it under two names (Ray 2.60)
    trial.evaluated_params, trial.run_metadata.last_result = {}, {}
