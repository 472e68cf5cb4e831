"""Keeps the books while Tune runs: each event goes into the ledger first, then to MLflow and the console.

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

from rltune.cluster.background_imports import begin_imports
from rltune.cluster.shared_storage import is_here
from rltune.config.schema import RunConfig
from rltune.reporting.console import Console
from rltune.study.checkpoints import TRIALS
from rltune.study.disk_full import DISK_FULL, is_disk_full, names_full_disk
from rltune.study.record import TrialRecord
from rltune.study.study import Study
from rltune.sweep.stopper import SweepStopper
from rltune.sweep.tune.failures import (
    Failure,
    describe_dead_process,
    describe_error,
    describe_in_its_words,
    failure_kind,
    read_last_words,
)
from rltune.sweep.tune.scheduler import StoppingRuleScheduler
from rltune.tracking.tracker import Tracker, TrialEnd
from rltune.trial.metrics import select_logged

logger = logging.getLogger(__name__)
RECORDS = {"best": "checkpoint", "latest": "latest"}  # what a report calls its checkpoints, and what the ledger does
PROGRESS_EVERY_S = 2.0  # the parent's curve needs no point per report
AHEAD = ("rltune.policies.policy", "rltune.reporting.png_figures")  # what a sweep's end needs


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def safe(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if is_disk_full(error):
                self.control.request(DISK_FULL)
                return
            logger.exception("recording failed in %s", method.__name__)
            self.console.note(f"could not record an event ({type(error).__name__}: {error}); see the sweep's log")

    return safe


class Retrier(Protocol):
    """Proposes a trial once more."""

    def retry(self, entry: TrialRecord) -> None:
        """Put a trial that went wrong back in front."""


class Recorder(Callback):
    """Writes what happens to trials into the ledger, MLflow and the console.

    Args:
        study: The ledger.
        tracker: MLflow, or nothing.
        console: What a person watches.
        scheduler: Says which trials it stopped.
        control: Ends the sweep.
        config: The request.
    """

    shelf = TRIALS
    searcher: Retrier  # set by the conductor: searcher and recorder know each other

    def __init__(
        self,
        study: Study,
        tracker: Tracker,
        console: Console,
        scheduler: StoppingRuleScheduler,
        control: SweepStopper,
        config: RunConfig,
    ) -> None:
        self.study, self.tracker, self.console = study, tracker, console
        self.scheduler, self.control, self.config = scheduler, control, config
        self.folder = control.folder
        self._retries: Counter[int] = Counter()
        self._first_failures: list[str] | None = []
        entries = study.entries()
        self._best = max((entry.best for entry in entries if entry.best is not None), default=-math.inf)
        self._steps = {entry.number: entry.env_steps for entry in entries}
        self._told_progress = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles its callbacks for a restore that is never used: the study holds it all."""
        return {}

    # Tune calls this once per turn of its loop.
    @_guarded
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Let the console draw and the budgets be looked at."""
        self.control.check_budgets()
        for warning in self.tracker.warnings():
            self.console.note(warning)
        self.console.tick()

    @_guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial begins or goes on."""
        task = trial.config["assignment"]
        self.control.live.add(self._place(task["number"]))
        entry = self.study.entry(task["number"])
        self.console.trial_started(entry.number, entry.params)
        tags = {"rltune.seeds": ",".join(str(seed) for seed in task["seeds"])}
        self.tracker.trial_started(entry.number, entry.params, tags, entry.attributes.get("mlflow_run_id"))
        for env_steps, objective in entry.reports.items():  # what a killed driver had told the ledger alone
            self.tracker.report(entry.number, {"objective": objective}, env_steps)

    @_guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """A report came."""
        number, env_steps = int(result["number"]), int(result["env_steps"])
        objective, records = float(result["objective"]), result.get("records") or {}
        if self.config.cluster.address is not None and not self._check_here(records, str(result.get("node"))):
            return
        noted = {kept: records[kind] for kind, kept in RECORDS.items() if kind in records}
        _remember(trial.config["assignment"], records)
        if result.get("between") or env_steps <= self._steps.get(number, 0):
            if noted:
                self.study.note(number, **noted)
            return  # asked to stop before it had trained on, or a checkpoint alone: nothing new to tell
        # Nothing between these two: what a kill there costs is the point of all curves but the objective's.
        self.study.report(number, env_steps, objective, **noted)
        self.tracker.report(number, select_logged(result), env_steps)
        if not self.tracker.opening:  # one after the other: threads of one process share its time
            begin_imports(*AHEAD)
        self._count(max(0, env_steps - self._steps.get(number, 0)) * self.config.replicates)
        self._steps[number] = env_steps
        self.console.report(number, objective, env_steps)
        self._tell_progress(objective)

    def _check_here(self, records: Mapping[str, dict[str, Any]], node: str) -> bool:
        """Whether the checkpoints can be seen from here; else the sweep ends: a node came without shared storage."""
        gone = [record["path"] for record in records.values() if not is_here(self.folder / record["path"])]
        for path in gone:
            self.control.lost[path] = node
        if gone:
            self.control.request(f"{gone[0]} lies on node {node} alone")
        return not gone

    def _place(self, number: int) -> str:
        """A trial's own folder in the sweep's."""
        return f"{self.shelf}/{number}"

    def _count(self, env_steps: int) -> None:
        """Charge the sweep's budget of steps."""
        self.control.env_steps += env_steps

    def _tell_progress(self, objective: float) -> None:
        improved = math.isfinite(objective) and objective > self._best
        if improved:
            self._best = objective
        due = time.monotonic() - self._told_progress >= PROGRESS_EVERY_S
        if math.isfinite(self._best) and (improved or due):
            self._told_progress = time.monotonic()
            self.tracker.progress(self._best, self.control.env_steps)

    @_guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial ended without losing its process: whole, stopped, failed inside, or interrupted."""
        result = trial.last_result or {}
        number = int(trial.config["assignment"]["number"])
        self.control.live.discard(self._place(number))
        if result.get("failed"):
            self._failed(number, str(result["failed"]), str(result.get("traceback", "")), result)
        elif number in self.scheduler.stopped:
            level = self.scheduler.stopped[number]
            self._ended(number, "PRUNED", f"stopped by the scheduler at {level} environment steps", result)
        elif any(path.startswith(f"{self._place(number)}/") for path in self.control.lost):
            self._interrupted(number, {})  # what it has reached is out of reach
        elif result.get("interrupted") or int(result.get("env_steps", 0)) < self.config.budget.env_steps:
            self._interrupted(number, result)
        else:
            self._ended(number, "COMPLETE", "whole budget", result)
        _forget(trial)

    @_guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """A trial lost its process, and its retries are used up."""
        number = int(trial.config["assignment"]["number"])
        self.control.live.discard(self._place(number))
        last = trial.last_result or {}
        death = describe_dead_process(
            self.folder, self._place(number), read_last_words(trial.error_file), last.get("worker_pid")
        )
        self._end_failed(number, death, last)
        _forget(trial)

    def _failed(self, number: int, reason: str, trace: str, result: dict[str, Any]) -> None:
        if names_full_disk(trace):  # no fault of the trial's, which goes on when there is room again
            self.control.request(DISK_FULL)
            self._interrupted(number, result)
            return
        if reason.startswith("non-finite") or self._retries[number] >= self.config.failures.max_retries:
            self._end_failed(number, describe_error(self.folder, self._place(number), reason, trace), result)
            return
        self._retries[number] += 1
        self.console.note(
            f"trial {number}: {describe_in_its_words(reason, trace)}; trying once more from its last checkpoint"
        )
        self.searcher.retry(self.study.entry(number))

    def _end_failed(self, number: int, death: Failure, result: dict[str, Any]) -> None:
        reason = death.reason
        self.study.note(number, traceback=death.trace, log=death.log)
        self._ended(number, "FAIL", reason, result, f"; see {self.folder / death.log}")
        if self._first_failures is not None:
            self._first_failures.append(reason)
            limit = self.config.failures.stop_after
            if len(self._first_failures) >= limit and len(set(map(failure_kind, self._first_failures))) == 1:
                self.control.failed = True
                self.control.request(f"the first {limit} trials all failed: {reason}")

    def _ended(self, number: int, state: str, reason: str, result: dict[str, Any], where: str = "") -> None:
        entry = self.study.entry(number)
        if state == "COMPLETE" and entry.best is None:
            state, reason = "FAIL", f"no episode ended within {self.config.budget.env_steps} environment steps"
        if state != "FAIL":
            self._first_failures = None
        self.study.finish(number, state, entry.best, reason, **_cost(result))
        self.console.trial_ended(number, state, entry.best, reason + where if state == "FAIL" else None)
        self._tell_tracker(entry, state, reason)

    def _interrupted(self, number: int, result: dict[str, Any]) -> None:
        """The trial stays RUNNING in the ledger: `sweeps.resume` goes on with it."""
        self.study.note(number, stop_reason="interrupted", **_cost(result))
        entry = self.study.entry(number)
        self.console.trial_ended(number, "INTERRUPTED", entry.best, None)
        self._tell_tracker(entry, "INTERRUPTED", "interrupted")

    def _tell_tracker(self, entry: TrialRecord, state: str, reason: str) -> None:
        end = make_trial_end(self.folder, entry, state, reason)
        self.tracker.trial_ended(entry.number, state, metrics=end.metrics, tags=end.tags, artifacts=end.artifacts)


def _remember(task: dict[str, Any], records: Mapping[str, dict[str, Any]]) -> None:
    """A worker that dies is started again with this config: let it go on from here, not from the beginning."""
    for record in records.values():
        if task["latest"] is None or record["env_steps"] >= task["latest"]["env_steps"]:
            task["latest"] = record
    if "best" in records:
        task["best_objective"], task["best_path"] = records["best"]["objective"], records["best"]["path"]


def _cost(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a trial's last report says of its costs, and where it ran."""
    spent = {"env_steps": int(result["env_steps"]), "train_s": float(result["train_s"])} if "train_s" in result else {}
    return spent | ({"node": result["node"]} if "node" in result else {})


def make_trial_end(folder: Path, entry: TrialRecord, state: str, reason: str) -> TrialEnd:
    """What MLflow is told of a trial's end.

    Args:
        folder: The sweep's.
        entry: The trial as the ledger has it.
        state: As `Ending` has it.
        reason: Why it ended.
    """
    attributes = entry.attributes
    record = attributes.get("checkpoint")
    tags = {"rltune.stop_reason": reason}
    if state == "FAIL":
        tags |= {f"rltune.{key}": str(attributes[key]) for key in ("traceback", "log") if key in attributes}
    return TrialEnd(
        state,
        metrics={} if entry.best is None else {"best_objective": entry.best},
        tags=tags,
        artifacts=folder / record["path"] if record and state == "COMPLETE" else None,
        params=entry.params,
        reports=entry.reports,
    )


def _forget(trial: Any) -> None:
    """Drop what Tune keeps of an ended trial: the study holds it all, and 0.1 MB each would add up."""
    trial.run_metadata.metric_analysis.clear()
    trial.run_metadata.metric_n_steps.clear()
    trial.config.clear()  # in place: Tune has it under two names (Ray 2.60)
    trial.evaluated_params, trial.run_metadata.last_result = {}, {}
