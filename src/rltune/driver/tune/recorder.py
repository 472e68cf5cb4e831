"""Record in the ledger what happens to trials, then inform Optuna and the trackers; a Tune callback.

Tune calls the methods of `Recorder` back. Runs in the driver.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ray.tune import Callback

from rltune.algorithms.arguments import count_copies
from rltune.cluster.head import wait_for_head
from rltune.driver.tune.assignments import Assignments, choose_newest
from rltune.driver.tune.attempts import Attempts, TrialKey
from rltune.driver.tune.failures import (
    Failure,
    explain_death,
    explain_report,
    find_outage,
    read_last_error,
    write_failure,
)
from rltune.driver.tune.proposals import Stage
from rltune.driver.tune.scheduler import StoppingRuleScheduler
from rltune.envs.guest import FOLLOWS_SEED
from rltune.errors import Cause, RltuneError, describe_exception
from rltune.ledger.disk_full import DISK_FULL, is_disk_full
from rltune.ledger.lease import LeaseLostError
from rltune.ledger.sweep_folder import make_resume_command
from rltune.ledger.trial_table import CHECKPOINTS
from rltune.records import TRIALS, WHOLE_BUDGET, CheckpointRecord, TrialRecord, trial_dir_of
from rltune.trial.metrics import NUM_ENDED, RECENT, SCORED, is_report, make_report
from rltune.trial.recent_episodes import explain_no_episode, explain_no_score

if TYPE_CHECKING:
    from rltune.driver.sweep import Sweep

logger = logging.getLogger(__name__)

EPISODE_EXPECTED = 0.2  # The fraction of a trial's budget after which the user hears that no episode has ended.


@dataclass(frozen=True)
class _Event:
    """Something that happened to a trial, as Tune reports it.

    Attributes:
        stage: The trial's kind.
        number: The trial's number.
        result: The trial's last result.
        gpus: The part of a GPU that the attempt has.
    """

    stage: Stage
    number: int
    result: Mapping[str, Any] = field(default_factory=dict)
    gpus: float = 0.0

    @property
    def key(self) -> TrialKey:
        return self.stage.table.kind, self.number

    @property
    def trial_dir(self) -> str:
        return trial_dir_of(*self.key)

    @property
    def record(self) -> TrialRecord:
        """The trial's record as it is in the ledger now."""
        return self.stage.table.record(self.number)

    @property
    def is_search(self) -> bool:
        """Whether the trial belongs to the search, whose trials use up the budgets."""
        return self.stage.table.kind == TRIALS


def _interrupt_on_error(method: Callable[..., None]) -> Callable[..., None]:
    """Wrap a callback so that an exception interrupts the sweep; a resume then repeats what the ledger lacks.

    An exception that left the callback would end Tune's run, and the other trials could not save their state.
    """

    @functools.wraps(method)
    def safe(self: Recorder, *args: Any, **kwargs: Any) -> None:
        try:
            method(self, *args, **kwargs)
        except LeaseLostError:
            # The stopper has already noticed the lost lease, and ends the sweep.
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
    """Tune callback that writes the events of trials to the ledger, and then wakes up the trackers.

    Args:
        sweep: The sweep.
        stages: The kinds of trials.
        scheduler: Knows why the stopping rule stopped a trial.
        attempts: Judges the attempts that ended before their trials.
        assignments: Gives a trial a larger share of a GPU.
    """

    def __init__(
        self,
        sweep: Sweep,
        stages: Sequence[Stage],
        scheduler: StoppingRuleScheduler,
        attempts: Attempts,
        assignments: Assignments,
    ) -> None:
        self.sweep, self.stopper = sweep, sweep.stopper
        self._plan, self._store, self._tracker = sweep.plan, sweep.store, sweep.tracker
        self._stages = {stage.table.kind: stage for stage in stages}
        self._scheduler, self._attempts, self._assignments = scheduler, attempts, assignments
        # Trials with a result that could not be recorded; later results are ignored, as the learning curve would have a
        # gap.
        self._incomplete: set[TrialKey] = set()
        self._failures: dict[TrialKey, Failure] = {}  # By the trials' own code, of attempts that were retried.
        self._num_copies = count_copies(self._plan.build.algo)
        self._advised: set[Cause] = set()
        self._has_seen_episode = False  # Or has said that none has ended.
        self._has_noted_unscored = False

    def __getstate__(self) -> dict[str, Any]:
        """Pickle no attributes, because Tune pickles its callbacks for a restore that rltune does not use."""
        return {}

    # -- Methods that Tune calls --------------------------------------------------------------------------------------

    @_interrupt_on_error
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial starts or continues."""
        event = self._make_event(trial)
        self.stopper.active_trial_dirs.add(event.trial_dir)
        self._attempts.begin(event.key)
        event.stage.table.start(event.number)
        self._tracker.wake()

    @_interrupt_on_error
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report of a trial, or a checkpoint between two reports."""
        event = self._make_event(trial, result)
        if event.key in self._incomplete:
            return
        # The trial counts as incomplete until this result is in the ledger.
        self._incomplete.add(event.key)
        before, table = event.record, event.stage.table
        for note in result.get("notes", ()):
            self.sweep.console.note(f"{before.name} {note}")
        checkpoints = _read_checkpoints(result, before)
        for checkpoint in checkpoints.values():
            if not self._store.can_see(checkpoint.path):
                raise self._store.make_unshared_error(f"{checkpoint.path} lies on node {result.get('node')} alone")
        costs, is_new = self._charge(event), False
        if is_report(result):
            # A trial that is continued from a checkpoint repeats reports, which are not new.
            is_new = table.add_report(make_report(result), checkpoints, **costs)
        else:
            table.change(event.number, **checkpoints, **costs)
        self._incomplete.discard(event.key)
        self._note_late_episodes(result)
        self._note_unscored(result)
        if is_new or _count_saved_steps(checkpoints.values()) > _count_saved_steps((before.checkpoint, before.latest)):
            self._attempts.note_progress(event.key)
        now = event.record
        self.sweep.retention.drop((before.checkpoint, before.latest), keep=(now.checkpoint, now.latest))
        if is_new:
            self._tracker.wake(connect=True)

    @_interrupt_on_error
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of an attempt whose process survived: complete, stopped by the rule, failed or interrupted."""
        event = self._make_event(trial, trial.last_result)
        result = event.result
        self.stopper.active_trial_dirs.discard(event.trial_dir)
        reason = self._scheduler.pop_reason(event.number) if event.is_search else None
        if event.key in self._incomplete:
            # It continues from its last recorded checkpoint and repeats the reports that were not recorded.
            event.stage.table.interrupt(event.number)
            self._tracker.wake()
        elif result.get("failed"):
            self._end_attempt(event, explain_report(result))
        elif reason:
            self._end(event, "PRUNED", reason)
        elif int(result.get("nominal_steps", 0)) < self._plan.budget.env_steps and not result.get("ended"):
            self._interrupt(event)
        else:
            self._end_whole(event)
        _drop_results(trial)

    @_interrupt_on_error
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of an attempt whose process died. Tune itself does not retry trials."""
        event = self._make_event(trial, trial.last_result)
        self.stopper.active_trial_dirs.discard(event.trial_dir)
        if self._plan.is_joined:
            wait_for_head()
        error = read_last_error(trial.error_file)
        failure = explain_death(self._store, event.trial_dir, error, event.result.get("worker_pid"))
        self._end_attempt(event, failure)
        _drop_results(trial)

    @_interrupt_on_error
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Record the environment steps of trials that were killed at the deadline, from their heartbeats."""
        for trial_dir, env_steps in self.sweep.search.heartbeats.read().items():
            kind, _, number = trial_dir.partition("/")
            event = _Event(self._stages[kind], int(number), {"env_steps": env_steps})
            if costs := self._charge(event):
                event.stage.table.change(event.number, **costs)

    def _note_unscored(self, result: Mapping[str, Any]) -> None:
        """Note once that some episodes have no score, because their infos lack what the objective reads."""
        num_scored, num_recent = result.get(SCORED), result.get(RECENT)
        if self._has_noted_unscored or not num_scored:
            return
        self._has_noted_unscored = True
        key = self._plan.build.env.objective.get("key")
        self.sweep.console.note(
            f"{num_scored} of {num_recent} episodes have a score, as {SCORED} counts. The others' infos "
            f"lack {key} (objective.key), so that they are left out; objective.missing=0 counts each of them as 0"
        )

    def _note_late_episodes(self, result: Mapping[str, Any]) -> None:
        """Note once, early in the sweep, that a trial has trained for a fifth of its budget without a score."""
        env_steps = int(result.get("env_steps", 0))
        if self._has_seen_episode or not is_report(result):
            return
        if math.isfinite(result["score"]):
            self._has_seen_episode = True
        elif env_steps >= EPISODE_EXPECTED * self._plan.budget.env_steps:
            self._has_seen_episode = True
            self.sweep.console.note(f"{self._explain_no_score(result, env_steps)}. Such a trial has no score")

    def _make_event(self, trial: Any, result: Mapping[str, Any] | None = None) -> _Event:
        task = trial.config["assignment"]
        return _Event(self._stages[task["kind"]], int(task["number"]), result or {}, task["build"]["gpus"])

    # -- Methods that end a trial or an attempt -----------------------------------------------------------------------

    def _charge(self, event: _Event) -> dict[str, Any]:
        """Count a trial's new environment steps against the sweep's budget, and return the costs for the ledger.

        A trial that trains some steps again, or cannot be restored, has cost no less than was recorded before.
        """
        before = event.record.env_steps
        costs = {name: event.result[name] for name in ("node", "env_steps", "train_s") if name in event.result}
        if costs.get("env_steps", -1) < before:
            return {"node": costs["node"]} if "node" in costs else {}
        if event.is_search:
            self.stopper.env_steps += (costs["env_steps"] - before) * self._plan.build.replicates
        return costs

    def _end_whole(self, event: _Event) -> None:
        """End a trial that has used its whole budget, or ended early; without a score it has failed."""
        reason = event.result.get("ended") or WHOLE_BUDGET
        returns, chosen = (tuple(event.result.get(name) or ()) for name in ("returns", "choice_returns"))
        failure = self._failures.pop(event.key, None)
        if not event.record.scores and failure is not None and not event.result.get("episodes"):
            facts = write_failure(self._store, event.trial_dir, failure)
            self._end(event, "FAIL", f"{failure.reason}; no episode has ended before a failure", **facts)
        elif not event.record.scores:
            self._end(event, "FAIL", self._explain_no_score(event.result, self._plan.budget.env_steps))
        elif event.is_search:
            self._end(event, "COMPLETE", reason)
        elif not returns:
            self._end(event, "FAIL", "its policy could not be evaluated")
        elif not math.isfinite(sum((*returns, *chosen))):  # A return of NaN cannot be ranked.
            self._end(event, "FAIL", "its policy's return is not finite")
        else:
            metrics = event.result.get("metrics") or {}
            self._end(event, "COMPLETE", reason, returns=returns, choice_returns=chosen, metrics=metrics)

    def _explain_no_score(self, result: Mapping[str, Any], env_steps: int) -> str:
        """Explain why a trial has no score by now: no episode has ended, or none has what the objective reads."""
        if episodes := int(result.get("episodes", 0)):
            return explain_no_score(episodes, str(self._plan.build.env.objective.get("key")))
        return explain_no_episode(env_steps, self._num_copies, self._plan.budget.env_steps)

    def _end(self, event: _Event, state: str, reason: str, **facts: Any) -> None:
        """Record the final state of a trial in the ledger, then inform Optuna and the trackers.

        Args:
            event: The trial.
            state: COMPLETE, PRUNED or FAIL.
            reason: Why it ended.
            facts: Further fields of `TrialRecord`.
        """
        record = event.stage.table.end(event.number, state, reason, **self._charge(event), **facts)
        self.sweep.retention.drop_unnamed([record])
        event.stage.learn(record)
        self._tracker.wake()

    def _interrupt(self, event: _Event) -> None:
        """Mark a trial as interrupted in the ledger; its state stays RUNNING, so that a resume continues it."""
        event.stage.table.interrupt(event.number, **self._charge(event))
        self._tracker.wake()

    def _end_attempt(self, event: _Event, failure: Failure) -> None:
        """Retry, fail or interrupt a trial whose attempt has failed; end the sweep after too many failures in a row.

        Args:
            event: The trial.
            failure: Why the attempt ended.
        """
        record, result, reason = event.record, event.result, failure.reason
        self._advise(record, failure.cause)
        if outage := find_outage(self._store, failure):
            self.stopper.request(outage)
            self._interrupt(event)
            return
        # Only a worker that reports it has a full GPU: what Ray ends has taken the machine's memory.
        is_gpu_full = result.get("cause") == Cause.OUT_OF_MEMORY
        if is_gpu_full and (share := self._assignments.enlarge_share(record, event.gpus)):
            self.sweep.console.note(f"{record.name}: {reason}; it continues with {share.gpus:g} of a GPU")
            self._retry(event)
            return
        may_go_on = self._attempts.end(
            event.key,
            failure.cause,
            counts_against_trial=failure.counts_against_trial,
            is_nodes_fault=failure.is_nodes_fault,
            has_episode=bool(result.get(NUM_ENDED, True)),
        )
        if self._attempts.are_exhausted and not self.stopper.is_requested():
            limit = self._plan.failures.stop_after
            last = f"{limit} attempts in a row made no progress; the last one, {record.name}: {reason}"
            # If the trials' own code has ended them all, typing the command again would not help.
            (self.stopper.fail if self._attempts.are_own_fault else self.stopper.interrupt)(last)
        # Retrying is useless after divergence, or if no GPU has enough memory.
        diverged = failure.cause is Cause.DIVERGED
        if diverged or is_gpu_full or not may_go_on:
            facts = write_failure(self._store, event.trial_dir, failure)
            self._end(event, "PRUNED" if diverged else "FAIL", reason, **facts, diverged=diverged)
        elif self.stopper.is_requested():
            self._interrupt(event)
        else:
            newest = choose_newest(filter(None, (record.latest, record.checkpoint)))
            start = f"{newest.env_steps:,} steps" if newest else "its beginning"
            self.sweep.console.note(f"{record.name}: {reason}; it continues from {start}")
            self._assignments.note_failure(record)
            if failure.counts_against_trial:
                self._failures[event.key] = failure
            self._retry(event)

    def _advise(self, record: TrialRecord, cause: Cause) -> None:
        """Note once what helps against failures of the environment, for each kind."""
        env = self._plan.build.env
        if cause in self._advised or cause not in (Cause.ENVIRONMENT, Cause.REPEATED) or env.policies is not None:
            return
        self._advised.add(cause)
        if cause is Cause.REPEATED:
            advice = f"the same step each time it plays an episode from its seed: {FOLLOWS_SEED[1]}"
            self.sweep.console.note(f"{record.name} fails at {advice}")
            return
        more, folder = f"env.restarts={max(3, 2 * env.restarts)}", self._plan.folder
        self.sweep.console.note(
            f"{record.name} has failed in its environment: {more} makes a failed copy again and goes on; for this "
            f"sweep, once it has ended or was stopped: {make_resume_command(folder, command='retry')} {more}"
        )

    def _retry(self, event: _Event) -> None:
        """Let a trial continue from its recorded checkpoints; the ended attempt may have saved others."""
        record = event.record
        self.sweep.retention.drop_unnamed([record])
        event.stage.retry(record)


def _read_checkpoints(result: Mapping[str, Any], before: TrialRecord) -> dict[str, CheckpointRecord]:
    """Convert the checkpoints in a result to ledger records, with sequence numbers above the recorded ones."""
    sequence = 1 + max((record.sequence for record in (before.checkpoint, before.latest) if record), default=0)
    saved = result.get("records") or {}
    return {CHECKPOINTS[name]: CheckpointRecord(**record | {"sequence": sequence}) for name, record in saved.items()}


def _count_saved_steps(records: Iterable[CheckpointRecord | None]) -> int:
    """Return the largest number of environment steps among a trial's checkpoints; -1 without any."""
    return max((record.env_steps for record in records if record), default=-1)


def _drop_results(trial: Any) -> None:
    """Free the memory that Tune keeps for an ended trial, about 0.1 MB: the ledger has all of it."""
    trial.run_metadata.metric_analysis.clear()
    trial.run_metadata.metric_n_steps.clear()
    # The config is cleared in place, because Tune keeps two references to it (Ray 2.60).
    trial.config.clear()
    trial.evaluated_params, trial.run_metadata.last_result = {}, {}
