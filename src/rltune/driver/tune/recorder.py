"""Record what happens while Tune runs: in the ledger first, then for the trackers and Optuna.

Tune calls the methods of `Recorder` back. Runs in the driver.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ray.tune import Callback

from rltune.checkpoints.clients import STORAGE_AWAY, StoreError
from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import Store
from rltune.cluster.head import wait_for_head
from rltune.cluster.resources import Share
from rltune.config.schema import RunConfig
from rltune.driver.stopper import SweepStopper
from rltune.driver.tune.assignments import choose_newest
from rltune.driver.tune.attempts import Attempts, TrialKey
from rltune.driver.tune.failures import (
    Failure,
    explain_death,
    explain_error,
    find_address,
    read_last_error,
    write_failure,
)
from rltune.driver.tune.scheduler import StoppingRuleScheduler
from rltune.driver.tune.stages import Stage
from rltune.errors import RltuneError, describe_exception
from rltune.ledger.disk_full import DISK_FULL, is_disk_full, names_full_disk
from rltune.ledger.lease import LeaseLostError
from rltune.ledger.optuna_study import OptunaStudy
from rltune.ledger.trial_table import CHECKPOINTS
from rltune.records import WHOLE_BUDGET, CheckpointRecord, TrialRecord, trial_dir_of
from rltune.search.schedulers import Stop
from rltune.tracking.feed import Feeds
from rltune.trial.metrics import is_report, make_report
from rltune.trial.supervisor import STOP_FILE

logger = logging.getLogger(__name__)


def _guarded(method: Callable[..., None]) -> Callable[..., None]:
    """Interrupt the sweep where an event cannot be recorded, so that the next driver repeats what is not in the ledger.

    An exception that left the callback would end Tune's run, and the other trials could not save their state.
    """

    @functools.wraps(method)
    def safe(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except LeaseLostError:  # The stopper knows.
            pass
        except Exception as error:
            if is_disk_full(error):
                self.stopper.request(DISK_FULL)
                return
            logger.error("an event was not recorded", exc_info=error)
            reason = error.what if isinstance(error, RltuneError) else describe_exception(error)
            self.stopper.interrupt(f"not everything could be recorded: {reason}")

    return safe


class Recorder(Callback):
    """Writes what happens to trials into the ledger, and wakes the trackers' feeds.

    Args:
        stages: The kinds of trials.
        study: Optuna's study of the search.
        scheduler: Knows what the stopping rule decided.
        tracker: Delivers the sweep to its trackers.
        stopper: Ends the sweep.
        config: The request.
        store: The sweep's.
        retention: Drops the checkpoints that the ledger names no longer.
        notify: Shows a person a line.
        read_beats: Reads how far the running trials are, see `rltune.driver.tune.heartbeats`.
        enlarge: Gives a trial a larger share of a GPU, see `rltune.driver.tune.shares`.
        place: Takes note that Tune's trial of an id has its place.

    Attributes:
        attempts: Judges the attempts that ended before their trials.
    """

    def __init__(
        self,
        stages: Sequence[Stage],
        study: OptunaStudy,
        scheduler: StoppingRuleScheduler,
        tracker: Feeds,
        stopper: SweepStopper,
        config: RunConfig,
        store: Store,
        retention: Retention,
        notify: Callable[[str], None],
        read_beats: Callable[[], Mapping[str, int]] = dict,
        enlarge: Callable[[TrialRecord], Share | None] = lambda record: None,
        place: Callable[[str], None] = lambda trial: None,
    ) -> None:
        self.stopper, self.notify = stopper, notify
        self._stages = {stage.kind: stage for stage in stages}
        self._study, self._scheduler, self._tracker = study, scheduler, tracker
        self._config, self._store, self._retention = config, store, retention
        self._read_beats, self._enlarge, self._place = read_beats, enlarge, place
        self.attempts = Attempts(config.failures.max_retries, config.failures.stop_after)
        # The trials with a result that is not in the ledger: a later report would leave a hole in the curve.
        self._incomplete: set[TrialKey] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its callbacks for a restore that is never used."""
        return {}

    def excuse(self, error: Exception, what: str) -> None:
        """Log an error that ends nothing, and show it to the person; a full disk ends the sweep.

        Args:
            error: The error.
            what: What was not done.
        """
        if isinstance(error, LeaseLostError):  # The stopper knows.
            return
        if is_disk_full(error):
            self.stopper.request(DISK_FULL)
            return
        logger.error(what, exc_info=error)
        self.notify(f"{what} ({describe_exception(error)}); see the sweep's log")

    # -- Tune's events ------------------------------------------------------------------------------------------------

    @_guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial begins or goes on."""
        self._place(trial.trial_id)
        stage, number = self._find(trial)
        self.stopper.live.add(trial_dir_of(stage.kind, number))
        self.attempts.begin((stage.kind, number))
        stage.trials.start(number)
        self._tracker.wake()

    @_guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report, or a checkpoint between two reports."""
        stage, number = self._find(trial)
        key = stage.kind, number
        if key in self._incomplete:
            return
        self._incomplete.add(key)  # Until it is in the ledger, whatever is raised meanwhile.
        before = stage.trials.record(number)
        for note in result.get("notes", ()):
            self.notify(f"{before.name} {note}")
        written = _read_checkpoints(result, before)
        for path in (record.path for record in written.values() if not self._store.can_see(record.path)):
            raise self._store.make_unshared_error(f"{path} lies on node {result.get('node')} alone")
        costs, is_new = self._charge(stage, number, result), False
        if is_report(result):
            report = make_report(result)
            is_new = stage.trials.add_report(report, written, **costs)  # Not if it trained the same steps again.
        else:
            stage.trials.change(number, **written, **costs)
        self._incomplete.discard(key)
        if is_new or _count_saved_steps(written.values()) > _count_saved_steps((before.checkpoint, before.latest)):
            self.attempts.note_progress(key)
        now = stage.trials.record(number)
        self._retention.drop((before.checkpoint, before.latest), keep=(now.checkpoint, now.latest))
        if not is_new:
            return
        self._tracker.wake(connect=True)

    @_guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of an attempt that kept its process: whole, stopped, failed inside, or interrupted."""
        stage, number = self._find(trial)
        result = trial.last_result or {}
        self.stopper.live.discard(trial_dir_of(stage.kind, number))
        decision = self._scheduler.decisions.pop(number, None) if stage.is_search else None
        if (stage.kind, number) in self._incomplete:
            self._interrupt(stage, number, {})  # It goes on from its recorded checkpoint, and reports again.
        elif result.get("failed"):
            failure = explain_error(str(result["failed"]), str(result.get("traceback", "")))
            self._end_attempt(stage, number, failure, result, result.get("node"))
        elif isinstance(decision, Stop):
            self._end(stage, number, "PRUNED", decision.reason, result)
        elif int(result.get("nominal_steps", 0)) < self._config.budget.env_steps:
            self._interrupt(stage, number, result)
        else:
            self._end_whole(stage, number, result)
        _drop_results(trial)

    @_guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of an attempt that lost its process. Tune itself tries no trial again."""
        stage, number = self._find(trial)
        trial_dir, result = trial_dir_of(stage.kind, number), trial.last_result or {}
        self.stopper.live.discard(trial_dir)
        if self._config.cluster.address is not None:
            wait_for_head()
        error = read_last_error(trial.error_file)
        failure = explain_death(self._store, trial_dir, error, result.get("worker_pid"))
        self._end_attempt(stage, number, failure, result, find_address(error))
        _drop_results(trial)

    @_guarded
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Record the costs of trials that did not hand back in time."""
        for stage, number, env_steps in self._find_beats():
            if costs := self._charge(stage, number, {"env_steps": env_steps}):
                stage.trials.change(number, **costs)

    def _find_beats(self) -> list[tuple[Stage, int, int]]:
        """Find how far the trials are whose workers are up: their kind, number, and environment steps of each seed."""
        found = []
        for own, env_steps in self._read_beats().items():
            kind, _, number = own.partition("/")
            found.append((self._stages[kind], int(number), env_steps))
        return found

    # -- what follows from them ---------------------------------------------------------------------------------------

    def _find(self, trial: Any) -> tuple[Stage, int]:
        task = trial.config["assignment"]
        return self._stages[task["kind"]], int(task["number"])

    def _charge(self, stage: Stage, number: int, result: Mapping[str, Any]) -> dict[str, Any]:
        """Count against the sweep's budget what a trial has sampled, and return what the ledger keeps of its costs.

        A trial that trains some steps again, or cannot be restored, has cost no less than was known before.

        Args:
            stage: The trial's kind.
            number: Which.
            result: Its last one.
        """
        known = stage.trials.record(number).env_steps
        costs = {name: result[name] for name in ("node", "env_steps", "train_s") if name in result}
        if costs.get("env_steps", -1) < known:
            return {"node": costs["node"]} if "node" in costs else {}
        if stage.is_search:
            self.stopper.env_steps += (costs["env_steps"] - known) * self._config.replicates
        return costs

    def _end_whole(self, stage: Stage, number: int, result: Mapping[str, Any]) -> None:
        """End a trial that had its whole budget; one that has nothing to show for it has failed."""
        if not stage.trials.record(number).scores:
            reason = f"no episode ended within {self._config.budget.env_steps} environment steps"
            self._end(stage, number, "FAIL", reason, result)
        elif stage.is_search:
            self._end(stage, number, "COMPLETE", WHOLE_BUDGET, result)
        elif not (returns := result.get("returns")):
            self._end(stage, number, "FAIL", "its policy could not be evaluated", result)
        elif not math.isfinite(sum(returns)):  # a NaN has no place in any order
            self._end(stage, number, "FAIL", "its policy's return is not finite", result)
        else:
            self._end(stage, number, "COMPLETE", WHOLE_BUDGET, result, returns=tuple(returns))

    def _end(self, stage: Stage, number: int, state: str, reason: str, result: Mapping[str, Any], **facts: Any) -> None:
        """End a trial in the ledger, then tell Optuna and MLflow.

        Args:
            stage: Its kind.
            number: Which.
            state: COMPLETE, PRUNED or FAIL.
            reason: Why it ended.
            result: Its last report.
            facts: Further fields of `TrialRecord`.
        """
        record = stage.trials.end(number, state, reason, **self._charge(stage, number, result), **facts)
        self._retention.drop_unnamed([record])
        if stage.is_search:
            self._tell_optuna(record)
        self._tracker.wake()

    def _tell_optuna(self, record: TrialRecord) -> None:
        """Tell Optuna of a trial's end; what it does not take it is told when the sweep is opened the next time."""
        try:
            self._study.tell(record)
        except Exception as error:
            self.excuse(error, f"Optuna was not told of {record.name}")

    def _interrupt(self, stage: Stage, number: int, result: Mapping[str, Any]) -> None:
        """Leave a trial RUNNING in the ledger: `sweeps.resume` goes on with it."""
        stage.trials.interrupt(number, **self._charge(stage, number, result))
        self._tracker.wake()

    def _is_storage_away(self) -> bool:
        """Return whether the sweep's storage does not answer here either."""
        try:
            self._store.read(STOP_FILE, is_quick=True)
        except StoreError:
            return True
        return False

    def _end_attempt(
        self, stage: Stage, number: int, failure: Failure, result: Mapping[str, Any], host: str | None
    ) -> None:
        """Let a trial go on after an attempt that ended before it, or fail it; end the sweep if no trial comes further.

        Args:
            stage: The trial's kind.
            number: Which.
            failure: Why the attempt ended.
            result: Its last one.
            host: The name or the address of its node; None if that is unknown.
        """
        record, reason = stage.trials.record(number), failure.reason
        if outage := self._find_outage(failure):
            self.stopper.request(outage)
            self._interrupt(stage, number, result)
            return
        if result.get("outgrew") and (share := self._enlarge(record)):
            self.notify(f"{record.name}: {reason}; it goes on with {share.gpus:g} of a GPU")
            stage.proposer.retry(record)
            return
        may_go_on = self.attempts.end(
            (stage.kind, number), counts_against_trial=failure.counts_against_trial, host=host
        )
        if self.attempts.are_exhausted and not self.stopper.is_requested():
            limit = self._config.failures.stop_after
            self.stopper.interrupt(f"{limit} attempts in a row made no progress; the last one, {record.name}: {reason}")
        # A trial whose loss is no number, or that no GPU has the memory for, would end like that again.
        if result.get("diverged") or result.get("outgrew") or not may_go_on:
            self._fail(stage, number, failure, result)
        elif self.stopper.is_requested():
            self._interrupt(stage, number, result)
        else:
            newest = choose_newest(filter(None, (record.latest, record.checkpoint)))
            start = f"{newest.env_steps:,} steps" if newest else "its beginning"
            place = "" if failure.counts_against_trial or not host else f" on node {host}"
            self.notify(f"{record.name}{place}: {reason}; it goes on from {start}")
            stage.proposer.retry(record)

    def _find_outage(self, failure: Failure) -> str:
        """Find out whether the disk or the storage ended an attempt, for all trials alike; empty if not."""
        if names_full_disk(failure.trace):
            return DISK_FULL
        return STORAGE_AWAY if failure.is_outage and self._is_storage_away() else ""

    def _fail(self, stage: Stage, number: int, failure: Failure, result: Mapping[str, Any]) -> None:
        """End a trial that failed or diverged."""
        diverged = bool(result.get("diverged"))
        facts = write_failure(self._store, trial_dir_of(stage.kind, number), failure)
        self._end(stage, number, "PRUNED" if diverged else "FAIL", failure.reason, result, **facts, diverged=diverged)


def _read_checkpoints(result: Mapping[str, Any], before: TrialRecord) -> dict[str, CheckpointRecord]:
    """Read the checkpoints that came with a report, and number them after those that the ledger has."""
    sequence = 1 + max((record.sequence for record in (before.checkpoint, before.latest) if record), default=0)
    saved = result.get("records") or {}
    return {CHECKPOINTS[name]: CheckpointRecord(**record | {"sequence": sequence}) for name, record in saved.items()}


def _count_saved_steps(records: Iterable[CheckpointRecord | None]) -> int:
    """Return how far a trial was by its checkpoints, in environment steps; -1 without one."""
    return max((record.env_steps for record in records if record), default=-1)


def _drop_results(trial: Any) -> None:
    """Drop what Tune keeps of an ended trial: the ledger holds it all, and 0.1 MB each would add up."""
    trial.run_metadata.metric_analysis.clear()
    trial.run_metadata.metric_n_steps.clear()
    trial.config.clear()  # in place: Tune has it under two names (Ray 2.60)
    trial.evaluated_params, trial.run_metadata.last_result = {}, {}
