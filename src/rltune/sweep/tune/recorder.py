"""Record what happens while Tune runs: into the ledger first, then for MLflow, Optuna and the console.

A Tune callback; an exception in one would end the whole sweep, so none leaves it. Runs in the driver.
"""

from __future__ import annotations

import functools
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ray.tune import Callback

from rltune.cluster.background_imports import NEEDED_AT_END, begin_imports
from rltune.cluster.shared_storage import is_here
from rltune.config.schema import RunConfig
from rltune.records import CheckpointRecord, TrialRecord
from rltune.search.schedulers import Exploit, Stop
from rltune.study.checkpoints import copy_checkpoint
from rltune.study.disk_full import DISK_FULL, is_disk_full, names_full_disk
from rltune.study.optuna_study import OptunaStudy
from rltune.study.trial_table import CHECKPOINTS
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
from rltune.sweep.tune.stages import Stage
from rltune.tracking.tracker import Tracker
from rltune.trial.metrics import make_report

logger = logging.getLogger(__name__)


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Keep an exception from leaving a callback, where it would end Tune's run."""

    @functools.wraps(method)
    def safe(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.excuse(error, "could not record an event")

    return safe


class Recorder(Callback):
    """Writes what happens to trials into the ledger, and wakes all who show it.

    Args:
        stages: The kinds of trials.
        study: Optuna's study of the search.
        scheduler: Knows what the stopping rule decided.
        tracker: MLflow, or nothing.
        stopper: Ends the sweep.
        config: The request.
        notify: Shows a person a line.
        tick: Lets the console draw if it is time to.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        study: OptunaStudy,
        scheduler: StoppingRuleScheduler,
        tracker: Tracker,
        stopper: SweepStopper,
        config: RunConfig,
        notify: Callable[[str], None],
        tick: Callable[[], None],
    ) -> None:
        self.stopper, self.notify = stopper, notify
        self._stages = {stage.kind: stage for stage in stages}
        self._study, self._scheduler, self._tracker = study, scheduler, tracker
        self._config, self._tick, self._folder = config, tick, stopper.folder
        self._num_retries: Counter[tuple[str, int]] = Counter()
        self._first_failures: list[str] | None = []  # None once a trial has not failed

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its callbacks for a restore that is never used."""
        return {}

    def excuse(self, error: Exception, what: str) -> None:
        """Log what went wrong and show it to the person; a full disk ends the sweep.

        Args:
            error: Why.
            what: What was not done.
        """
        if is_disk_full(error):
            self.stopper.request(DISK_FULL)
            return
        logger.error(what, exc_info=error)
        self.notify(f"{what} ({type(error).__name__}: {error}); see the sweep's log")

    # -- Tune's events ------------------------------------------------------------------------------------------------

    # Tune calls this once per turn of its loop.
    @_guarded
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Check the sweep's budgets, show warnings, draw."""
        self.stopper.check_budgets()
        for warning in self._tracker.warnings():
            self.notify(warning)
        self._tick()

    @_guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial begins or goes on."""
        stage, number = self._find(trial)
        self.stopper.live.add(_trial_dir(stage, number))
        stage.console.show_start(stage.trials.start(number))
        self._tracker.wake()

    @_guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report."""
        stage, number = self._find(trial)
        if self.stopper.reason == DISK_FULL:
            return  # a report was lost: one after it, should there be room again, would leave a hole in the curve
        written = _read_checkpoints(result)
        if self._config.cluster.address is not None and not self._check_visible(written, str(result.get("node"))):
            return
        _update_task(trial.config["assignment"], written)
        report, before = make_report(result), stage.trials.record(number).env_steps
        if result.get("between") or report.env_steps <= before:
            stage.trials.change(number, **written)
            return  # stopped before it had trained on, or a checkpoint alone: nothing new to report
        stage.trials.add_report(report, written, **_costs(result, before))
        self._tracker.wake(connect=True)
        if not self._tracker.opening:  # one after the other: threads of one process share its time
            begin_imports(*NEEDED_AT_END)
        if stage.is_search:
            self.stopper.env_steps += (report.env_steps - before) * self._config.replicates
        stage.console.show_report(report)

    @_guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of a trial that kept its process: whole, stopped, failed inside, or interrupted."""
        stage, number = self._find(trial)
        result, own = trial.last_result or {}, _trial_dir(stage, number)
        self.stopper.live.discard(own)
        decision = self._scheduler.decisions.pop(number, None) if stage.is_search else None
        if self.stopper.reason == DISK_FULL:
            self._interrupt(stage, number, {})  # it reports again what was not kept, from its recorded checkpoint
        elif result.get("failed"):
            self._retry_or_fail(stage, number, result)
        elif isinstance(decision, Stop):
            reason = f"stopped by the scheduler at {decision.env_steps} environment steps"
            self._end(stage, number, "PRUNED", reason, result)
        elif isinstance(decision, Exploit):
            self._exploit(stage, number, decision)
        elif any(path.startswith(f"{own}/") for path in self.stopper.lost):
            self._interrupt(stage, number, {})  # what it has reached is out of reach
        elif result.get("interrupted") or int(result.get("env_steps", 0)) < self._config.budget.env_steps:
            self._interrupt(stage, number, result)
        else:
            self._end_whole(stage, number, result)
        _drop_results(trial)

    @_guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of a trial that lost its process and has used up its retries."""
        stage, number = self._find(trial)
        self.stopper.live.discard(_trial_dir(stage, number))
        last = trial.last_result or {}
        failure = describe_dead_process(
            self._folder, _trial_dir(stage, number), read_last_error(trial.error_file), last.get("worker_pid")
        )
        self._fail(stage, number, failure, last)
        _drop_results(trial)

    # -- what follows from them ---------------------------------------------------------------------------------------

    def _find(self, trial: Any) -> tuple[Stage, int]:
        task = trial.config["assignment"]
        return self._stages[task["kind"]], int(task["number"])

    def _check_visible(self, written: Mapping[str, CheckpointRecord], node: str) -> bool:
        """Return whether the checkpoints are visible here; else request the end: a node lacks the shared storage."""
        gone = [record.path for record in written.values() if not is_here(self._folder / record.path)]
        for path in gone:
            self.stopper.lost[path] = node
        if gone:
            self.stopper.request(f"{gone[0]} lies on node {node} alone")
        return not gone

    def _end_whole(self, stage: Stage, number: int, result: Mapping[str, Any]) -> None:
        """End a trial that had its whole budget; one that has nothing to show for it has failed."""
        if stage.trials.record(number).best is None:
            reason = f"no episode ended within {self._config.budget.env_steps} environment steps"
            self._end(stage, number, "FAIL", reason, result)
        elif stage.is_search:
            self._end(stage, number, "COMPLETE", "whole budget", result)
        elif not (returns := result.get("returns")):
            self._end(stage, number, "FAIL", "its policy could not be evaluated", result)
        elif not math.isfinite(sum(returns)):  # a NaN has no place in any order
            self._end(stage, number, "FAIL", "its policy's return is not finite", result)
        else:
            played = {"returns": tuple(returns), "score": sum(returns) / len(returns)}
            self._end(stage, number, "COMPLETE", "whole budget", result, **played)

    def _end(self, stage: Stage, number: int, state: str, reason: str, result: Mapping[str, Any], **facts: Any) -> None:
        """End a trial in the ledger, then tell Optuna, MLflow and the person.

        Args:
            stage: Its kind.
            number: Which.
            state: COMPLETE, PRUNED or FAIL.
            reason: Why it ended.
            result: Its last report.
            facts: Further fields of `TrialRecord`.
        """
        costs = _costs(result, stage.trials.record(number).env_steps)
        record = stage.trials.end(number, state, reason, **costs, **facts)
        if stage.is_search:
            if state != "FAIL" and not record.diverged:
                self._first_failures = None
            self._tell_optuna(record)
        self._tracker.wake()
        stage.console.show_end(record, f"; see {self._folder / record.log}" if record.log else "")

    def _tell_optuna(self, record: TrialRecord) -> None:
        """Tell Optuna of a trial's end; what it does not take it is told when the sweep is opened the next time."""
        try:
            self._study.tell(record)
        except Exception as error:
            self.excuse(error, f"Optuna was not told of {record.name}")

    def _interrupt(self, stage: Stage, number: int, result: Mapping[str, Any]) -> None:
        """Leave a trial RUNNING in the ledger: `sweeps.resume` goes on with it."""
        stage.trials.interrupt(number, **_costs(result, stage.trials.record(number).env_steps))
        self._tracker.wake()
        stage.console.show_end(stage.trials.record(number))

    def _retry_or_fail(self, stage: Stage, number: int, result: Mapping[str, Any]) -> None:
        reason, trace = str(result["failed"]), str(result.get("traceback", ""))
        if names_full_disk(trace):  # no fault of the trial's, which goes on when there is room again
            self.stopper.request(DISK_FULL)
            self._interrupt(stage, number, result)
            return
        retries = self._num_retries[stage.kind, number]
        if result.get("diverged") or retries >= self._config.failures.max_retries:
            failure = describe_error(self._folder, _trial_dir(stage, number), reason, trace)
            self._fail(stage, number, failure, result)
            return
        self._num_retries[stage.kind, number] += 1
        record = stage.trials.record(number)
        self.notify(f"{record.name}: {describe_reason(reason, trace)}; trying once more from its last checkpoint")
        stage.proposer.retry(record)

    def _fail(self, stage: Stage, number: int, failure: Failure, result: Mapping[str, Any]) -> None:
        """End a trial that failed or diverged; give the sweep up when its first ones all do so alike."""
        diverged = bool(result.get("diverged"))
        facts = {"traceback": failure.trace, "log": failure.log, "diverged": diverged}
        self._end(stage, number, "PRUNED" if diverged else "FAIL", failure.reason, result, **facts)
        if stage.is_search and self._first_failures is not None:
            self._first_failures.append(failure.reason)
            limit = self._config.failures.stop_after
            if len(self._first_failures) >= limit and len(set(map(classify_failure, self._first_failures))) == 1:
                self.stopper.failed = True
                self.stopper.request(f"the first {limit} trials all failed: {failure.reason}")

    def _exploit(self, stage: Stage, number: int, decision: Exploit) -> None:
        """Let a trial go on from another's newest state, with the values that the rule wants."""
        record, source = stage.trials.record(number), stage.trials.record(decision.source)
        newest = max(filter(None, (source.latest, source.checkpoint)), key=lambda one: one.saved_s, default=None)
        taken = copy_checkpoint(self._folder, newest, _trial_dir(stage, number)) if newest else None
        if taken is None:
            self.notify(f"{record.name}: {source.name} has no checkpoint yet; it goes on as it was")
        else:
            self.notify(f"{record.name} goes on from {source.name} at {taken.env_steps} environment steps")
            stage.trials.change(number, params={**record.params, **decision.params}, latest=taken)
        stage.proposer.retry(stage.trials.record(number))


def _trial_dir(stage: Stage, number: int) -> str:
    """Return a trial's own folder, relative to the sweep's."""
    return f"{stage.kind}/{number}"


def _read_checkpoints(result: Mapping[str, Any]) -> dict[str, CheckpointRecord]:
    """Read the checkpoints that came with a report; which is newer is said by one clock, the driver's."""
    came = {"saved_s": time.time()}
    return {CHECKPOINTS[name]: CheckpointRecord(**one | came) for name, one in (result.get("records") or {}).items()}


def _update_task(task: dict[str, Any], written: Mapping[str, CheckpointRecord]) -> None:
    """Put the newest checkpoints into a trial's config, from which Tune starts a worker that died again."""
    for record in written.values():
        if task["latest"] is None or record.saved_s >= task["latest"]["saved_s"]:
            task["latest"] = record.to_dict()
    if best := written.get("checkpoint"):
        task["best_objective"], task["best_path"] = best.objective, best.path


def _costs(result: Mapping[str, Any], known_steps: int) -> dict[str, Any]:
    """Read what a trial's last report says of its costs, and where it ran.

    A trial that trains some steps again, or cannot be restored, has cost no less than was known before.

    Args:
        result: The report.
        known_steps: Environment steps of each seed that the ledger has.
    """
    where = {"node": result["node"]} if "node" in result else {}
    if "train_s" not in result or int(result["env_steps"]) < known_steps:
        return where
    return where | {"env_steps": int(result["env_steps"]), "train_s": float(result["train_s"])}


def _drop_results(trial: Any) -> None:
    """Drop what Tune keeps of an ended trial: the ledger holds it all, and 0.1 MB each would add up."""
    trial.run_metadata.metric_analysis.clear()
    trial.run_metadata.metric_n_steps.clear()
    trial.config.clear()  # in place: Tune has it under two names (Ray 2.60)
    trial.evaluated_params, trial.run_metadata.last_result = {}, {}
