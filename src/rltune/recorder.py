"""Keeps the books while Tune runs: each event goes into the ledger first, then to MLflow and the console.

A Tune callback; an exception in one would end the whole sweep, so none leaves it. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback, Stopper

from rltune import ahead, deaths, disk, shared_storage
from rltune.checkpoint import TRIALS
from rltune.config import RunConfig
from rltune.console import Console
from rltune.schedule import AshaScheduler
from rltune.study import Entry, Study
from rltune.tracking import Ending, Tracker
from rltune.trial import STOP_FILE

logger = logging.getLogger(__name__)
GRACE_S = 8.0  # for trials to save their state after a stop was asked for
PROMISED_S = 9.5  # from a signal to the exit
METRICS = (
    "objective",
    "return_mean",
    "return_min",
    "return_max",
    "return_std_over_seeds",
    "episode_length_mean",
    "episodes",
    "env_steps_per_s",
    "train_s",
)
RECORDS = {"best": "checkpoint", "latest": "latest"}  # what a report calls its checkpoints, and what the ledger does
PROGRESS_EVERY_S = 2.0  # the parent's curve needs no point per report
AHEAD = ("rltune.policy", "matplotlib.figure", "matplotlib.backends.backend_agg")  # what a sweep's end needs
ENDED_KEPT = 64  # trials of the past that Tune still goes through at every event


class Control(Stopper):
    """Why the sweep is to end early, and by when.

    Args:
        folder: The sweep's folder, where trials look for the stop file.
        config: Its budgets.
        spent_steps: Environment steps of earlier sessions.
    """

    def __init__(self, folder: Path, config: RunConfig, spent_steps: int = 0) -> None:
        self.folder = folder
        self._file = folder / STOP_FILE
        self._file.unlink(missing_ok=True)
        self._config = config
        self._began = time.monotonic()
        self._deadline = math.inf
        self.env_steps = spent_steps
        self.reason: str | None = None
        self.signal: int | None = None
        self.failed = False  # given up because nothing works
        self.lost: dict[str, str] = {}  # checkpoints that were written but cannot be seen from here, and on which node
        self.live: set[str] = set()  # places of the trials whose workers are up, and have a state to save

    def __getstate__(self) -> dict[str, Any]:
        """Tune pickles it with the experiment, into a folder that all may read (2.60); the config may hold logins."""
        return {}

    def request(self, reason: str, signal: int | None = None) -> None:
        """Ask the trials to save their state and hand back."""
        if self.reason is None:
            self.reason, self.signal = reason, signal
            self._deadline = time.monotonic() + GRACE_S
            with contextlib.suppress(OSError):  # on a full disk nobody is asked: their processes end at the deadline
                self._file.touch()

    def asked(self) -> bool:
        """Whether an end was asked for."""
        return self.reason is not None

    def left_s(self) -> float:
        """Seconds for what is left to do after a signal: MLflow may be laying out its first store."""
        return max(1.0, self._deadline - GRACE_S + PROMISED_S - time.monotonic())

    def check_budgets(self) -> None:
        """Ask for the end when a budget of the whole sweep is spent."""
        budget = self._config.budget
        if budget.wall_time_s is not None and time.monotonic() - self._began >= budget.wall_time_s:
            self.request("budget.wall_time_s is spent")
        if budget.total_env_steps is not None and self.env_steps >= budget.total_env_steps:
            self.request("budget.total_env_steps is spent")

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        """No single trial is stopped here."""
        return False

    def stop_all(self) -> bool:
        """Tune's question after each event: give up on trials that did not hand back in time."""
        return self.asked() and (not self.live or time.monotonic() > self._deadline)

    def clear(self) -> None:
        """Remove the stop file."""
        self._file.unlink(missing_ok=True)


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(method)
    def safe(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            if disk.is_full(error):
                self.control.request(disk.FULL)
                return
            logger.exception("recording failed in %s", method.__name__)
            self.console.note(f"could not record an event ({type(error).__name__}: {error}); see the sweep's log")

    return safe


class Retrier(Protocol):
    """Proposes a trial once more."""

    def retry(self, entry: Entry) -> None:
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
        scheduler: AshaScheduler,
        control: Control,
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
        if len(trials) > 2 * ENDED_KEPT:  # the list is Tune's own (Ray 2.60); it looks through all of it at every event
            trials[:] = [trial for trial in trials[:-ENDED_KEPT] if not trial.is_finished()] + trials[-ENDED_KEPT:]

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
        learner = {name: value for name, value in result.items() if name.startswith("learner/")}
        learner |= {f"learner/{name}": value for name, value in (result.get("learner") or {}).items()}
        metrics = {name: result[name] for name in METRICS if name in result} | learner
        # Nothing between these two: what a kill there costs is the point of all curves but the objective's.
        self.study.report(number, env_steps, objective, **noted)
        self.tracker.report(number, metrics, env_steps)
        if not self.tracker.opening:  # one after the other: threads of one process share its time
            ahead.begin(*AHEAD)
        self._count(max(0, env_steps - self._steps.get(number, 0)) * self.config.replicates)
        self._steps[number] = env_steps
        self.console.report(number, objective, env_steps)
        self._tell_progress(objective)

    def _check_here(self, records: Mapping[str, dict[str, Any]], node: str) -> bool:
        """Whether the checkpoints can be seen from here; else the sweep ends: a node came without shared storage."""
        gone = [
            record["path"] for record in records.values() if not shared_storage.is_here(self.folder / record["path"])
        ]
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
        death = deaths.of_process(
            self.folder, self._place(number), deaths.last_words(trial.error_file), last.get("worker_pid")
        )
        self._end_failed(number, death, last)
        _forget(trial)

    def _failed(self, number: int, reason: str, trace: str, result: dict[str, Any]) -> None:
        if disk.says_full(trace):  # no fault of the trial's, which goes on when there is room again
            self.control.request(disk.FULL)
            self._interrupted(number, result)
            return
        if reason.startswith("non-finite") or self._retries[number] >= self.config.failures.max_retries:
            self._end_failed(number, deaths.of_work(self.folder, self._place(number), reason, trace), result)
            return
        self._retries[number] += 1
        self.console.note(
            f"trial {number}: {deaths.in_its_words(reason, trace)}; trying once more from its last checkpoint"
        )
        self.searcher.retry(self.study.entry(number))

    def _end_failed(self, number: int, death: deaths.Death, result: dict[str, Any]) -> None:
        reason = death.reason
        self.study.note(number, traceback=death.trace, log=death.log)
        self._ended(number, "FAIL", reason, result, f"; see {self.folder / death.log}")
        if self._first_failures is not None:
            self._first_failures.append(reason)
            limit = self.config.failures.stop_after
            if len(self._first_failures) >= limit and len(set(map(deaths.kind, self._first_failures))) == 1:
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

    def _tell_tracker(self, entry: Entry, state: str, reason: str) -> None:
        end = ending(self.folder, entry, state, reason)
        self.tracker.trial_ended(entry.number, state, metrics=end.metrics, tags=end.tags, artifacts=end.artifacts)


def _remember(task: dict[str, Any], records: Mapping[str, dict[str, Any]]) -> None:
    """A worker that dies is started again with this config: let it go on from here, not from the beginning."""
    for record in records.values():
        if task["latest"] is None or record["env_steps"] >= task["latest"]["env_steps"]:
            task["latest"] = record
    if "best" in records:
        task["best"], task["best_path"] = records["best"]["objective"], records["best"]["path"]


def _cost(result: Mapping[str, Any]) -> dict[str, Any]:
    """What a trial's last report says of its costs, and where it ran."""
    spent = {"env_steps": int(result["env_steps"]), "train_s": float(result["train_s"])} if "train_s" in result else {}
    return spent | ({"node": result["node"]} if "node" in result else {})


def ending(folder: Path, entry: Entry, state: str, reason: str) -> Ending:
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
    return Ending(
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
    trial.config, trial.evaluated_params, trial.run_metadata.last_result = {}, {}, {}
    trial._Trial__unresolved_config = {}
