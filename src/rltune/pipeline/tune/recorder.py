"""Record what happens while Tune runs: into the ledger first, then for MLflow and Optuna.

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

from rltune.checkpoints.clients import STORAGE_AWAY, StoreError, StoreUnavailableError
from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import Store
from rltune.cluster.head import wait_for_head
from rltune.cluster.losses import Place, explain_loss, find_place
from rltune.cluster.resources import Share
from rltune.cluster.shared_storage import has_other_nodes
from rltune.config.schema import RunConfig
from rltune.formatting import classify_failure
from rltune.pipeline.stopper import SweepStopper
from rltune.pipeline.tune.assignments import choose_newest
from rltune.pipeline.tune.failures import (
    Failure,
    describe_dead_process,
    describe_death,
    describe_error,
    describe_reason,
    find_lost_actor,
    read_error,
    read_last_error,
)
from rltune.pipeline.tune.scheduler import StoppingRuleScheduler
from rltune.pipeline.tune.stages import Stage
from rltune.records import WHOLE_BUDGET, CheckpointRecord, TrialRecord, trial_dir_of
from rltune.search.schedulers import Stop
from rltune.study.disk_full import DISK_FULL, is_disk_full, names_full_disk
from rltune.study.lease import LeaseLostError
from rltune.study.optuna_study import OptunaStudy
from rltune.study.trial_table import CHECKPOINTS
from rltune.tracking.feed import Feeds
from rltune.trial.metrics import is_report, make_report
from rltune.trial.supervisor import STOP_FILE

MAX_LOSSES = 3  # machines that a trial may lose in a row without coming further: it may be what ends them
GATHER_S = 1.0  # the trials of one machine are lost one after the other, and told in one line
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
        tracker: Delivers the sweep to its trackers.
        stopper: Ends the sweep.
        config: The request.
        store: The sweep's.
        retention: Drops the checkpoints that the ledger names no longer.
        notify: Shows a person a line.
        read_beats: Reads how far the running trials are, see `rltune.pipeline.tune.heartbeats`.
        enlarge: Gives a trial a larger share of a GPU, see `rltune.pipeline.tune.shares`.
        place: Takes note that Tune's trial of an id has its place.
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
        self._num_retries: Counter[tuple[str, int]] = Counter()
        self._places: dict[tuple[str, int], Place | None] = {}
        self._losses: dict[tuple[str, int], tuple[int, int]] = {}  # steps reached, machines lost there
        self._moves: dict[str, list[str]] = {}  # what became of a machine: the trials that go on elsewhere
        self._moves_since = 0.0
        records = [record for stage in stages if stage.is_search for record in stage.trials.records()]
        # None once a trial has not failed; an earlier driver's counts.
        self._first_failures: list[str] | None = None if any(map(_has_ended_well, records)) else []

    def __getstate__(self) -> dict[str, Any]:
        """Return nothing: Tune pickles its callbacks for a restore that is never used."""
        return {}

    def excuse(self, error: Exception, what: str) -> None:
        """Log what went wrong and show it to the person; a full disk ends the sweep, and so has a lost lease.

        Args:
            error: Why.
            what: What was not done.
        """
        if isinstance(error, LeaseLostError):  # the stopper knows already
            return
        if is_disk_full(error):
            self.stopper.request(DISK_FULL)
            return
        logger.error(what, exc_info=error)
        self.notify(f"{what} ({type(error).__name__}: {error}); see the sweep's log")

    # -- Tune's events ------------------------------------------------------------------------------------------------

    # Tune calls this once per turn of its loop.
    @_guarded
    def on_step_end(self, iteration: int, trials: list[Any], **info: Any) -> None:
        """Show which trials of a lost node go on elsewhere."""
        if self._moves and time.monotonic() - self._moves_since > GATHER_S:
            self._tell_moves()

    @_guarded
    def on_trial_start(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial begins or goes on."""
        self._place(trial.trial_id)
        stage, number = self._find(trial)
        self.stopper.live.add(trial_dir_of(stage.kind, number))
        place = self._places[stage.kind, number] = find_place(trial.temporary_state.ray_actor)
        stage.trials.start(number, **({"node": place.host} if place else {}))
        self._tracker.wake()

    @_guarded
    def on_trial_result(
        self, iteration: int, trials: list[Any], trial: Any, result: dict[str, Any], **info: Any
    ) -> None:
        """Record a report."""
        stage, number = self._find(trial)
        if self.stopper.reason == DISK_FULL:
            return  # a report was lost: one after it, should there be room again, would leave a hole in the curve
        for note in result.get("notes", ()):
            self.notify(f"{stage.trials.record(number).name} {note}")
        before = stage.trials.record(number)
        written = _read_checkpoints(result, before)
        if self._config.cluster.address is not None and not self._check_visible(written, str(result.get("node"))):
            return
        costs = self._charge(stage, number, result)
        if not is_report(result):
            stage.trials.change(number, **written, **costs)
            self._drop_replaced(stage, before)
            return
        report = make_report(result)
        is_new = stage.trials.add_report(report, written, **costs)
        self._drop_replaced(stage, before)
        if not is_new:
            return  # it trains again what it had trained before it failed
        self._tracker.wake(connect=True)

    @_guarded
    def on_trial_complete(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record the end of a trial that kept its process: whole, stopped, failed inside, or interrupted."""
        stage, number = self._find(trial)
        result, own = trial.last_result or {}, trial_dir_of(stage.kind, number)
        self.stopper.live.discard(own)
        decision = self._scheduler.decisions.pop(number, None) if stage.is_search else None
        if self.stopper.reason == DISK_FULL:
            self._interrupt(stage, number, {})  # it reports again what was not kept, from its recorded checkpoint
        elif result.get("blind"):
            self._avoid_node(stage, number, result)
        elif result.get("failed"):
            self._retry_or_fail(stage, number, result)
        elif isinstance(decision, Stop):
            self._end(stage, number, "PRUNED", decision.reason, result)
        elif any(path.startswith(f"{own}/") for path in self.stopper.lost):
            self._interrupt(stage, number, {})  # what it has reached is out of reach
        elif int(result.get("nominal_steps", 0)) < self._config.budget.env_steps:
            self._interrupt(stage, number, result)
        else:
            self._end_whole(stage, number, result)
        _drop_results(trial)

    @_guarded
    def on_trial_error(self, iteration: int, trials: list[Any], trial: Any, **info: Any) -> None:
        """Record that a trial lost its process. Tune itself retries nothing: it does not know whose fault it was."""
        stage, number = self._find(trial)
        own = trial_dir_of(stage.kind, number)
        self.stopper.live.discard(own)
        if joined := self._config.cluster.address is not None:
            wait_for_head()
        last, said, error = trial.last_result or {}, read_last_error(trial.error_file), read_error(trial)
        place = self._places.pop((stage.kind, number), None) or find_place(getattr(error, "actor_id", None))
        pid = last.get("worker_pid")
        if loss := explain_loss(place, error) if joined else None:
            self._go_on_elsewhere(stage, number, loss, last)
        elif self._may_retry(stage, number, describe_death(self._store, own, said)):
            stage.proposer.retry(stage.trials.record(number))
        else:
            self._fail(stage, number, describe_dead_process(self._store, own, said, pid), last)
        _drop_results(trial)

    @_guarded
    def on_experiment_end(self, trials: list[Any], **info: Any) -> None:
        """Show what was still to be gathered, and record what those have cost that did not hand back in time."""
        self._tell_moves()
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

    def _check_visible(self, written: Mapping[str, CheckpointRecord], node: str) -> bool:
        """Return whether the checkpoints are visible here; else request the end: a node lacks the shared storage."""
        gone = [record.path for record in written.values() if not self._store.can_see(record.path)]
        for path in gone:
            self.stopper.lost[path] = node
        if gone:
            self.stopper.request(f"{gone[0]} lies on node {node} alone")
        return not gone

    def _drop_replaced(self, stage: Stage, before: TrialRecord) -> None:
        """Drop the checkpoints that the ledger named before a report and names no longer."""
        now = stage.trials.record(before.number)
        self._retention.drop((before.checkpoint, before.latest), keep=(now.checkpoint, now.latest))

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
            if _has_ended_well(record):
                self._first_failures = None
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

    def _avoid_node(self, stage: Stage, number: int, result: Mapping[str, Any]) -> None:
        """Let a trial begin on another node than one that does not see the sweep's files; it has lost nothing."""
        node, why, record = str(result["node"]), str(result["blind"]), stage.trials.record(number)
        if self._is_storage_away():
            self.stopper.request(STORAGE_AWAY)
        self.stopper.blind[str(result["node_id"])] = node
        if not has_other_nodes(self.stopper.blind):
            self.stopper.lost[f"{record.name}'s work"] = node
            self.stopper.request(f"no node is left that sees {self._store.folder}")
        if self.stopper.is_requested():
            self._interrupt(stage, number, {})
            return
        self.notify(f"node {node} gets no trials: {why}; {record.name} goes to another one")
        stage.proposer.retry(record)

    def _is_storage_away(self) -> bool:
        """Return whether the sweep's storage does not answer here either."""
        try:
            self._store.read(STOP_FILE, is_quick=True)
        except StoreError:
            return True
        return False

    def _retry_or_fail(self, stage: Stage, number: int, result: Mapping[str, Any]) -> None:
        reason, trace = str(result["failed"]), str(result.get("traceback", ""))
        is_away, joined = StoreUnavailableError.__name__ in trace, self._config.cluster.address is not None
        is_its_own_fault = result.get("diverged") or result.get("outgrew")  # it would end like that once more
        outage = STORAGE_AWAY if is_away and self._is_storage_away() else ""
        if outage := DISK_FULL if names_full_disk(trace) else outage:
            self.stopper.request(outage)  # no fault of the trial's, which goes on when there is room again
            self._interrupt(stage, number, result)
            return
        if is_away and joined:
            self._go_on_elsewhere(stage, number, f"node {result.get('node')} does not reach the storage", result)
        elif loss := explain_env_runners_loss(reason, trace) if joined else None:
            self._go_on_elsewhere(stage, number, loss, result)
        elif result.get("outgrew") and (share := self._enlarge(stage.trials.record(number))):
            self._retry_enlarged(stage, number, reason, share)
        elif not is_its_own_fault and self._may_retry(stage, number, describe_reason(reason, trace)):
            stage.proposer.retry(stage.trials.record(number))
        else:
            failure = describe_error(self._store, trial_dir_of(stage.kind, number), reason, trace)
            self._fail(stage, number, failure, result)

    def _retry_enlarged(self, stage: Stage, number: int, reason: str, share: Share) -> None:
        """Let a trial that outgrew its share of a GPU go on with a larger one, and say so."""
        record = stage.trials.record(number)
        self.notify(f"{record.name}: {reason}; trying once more from its last checkpoint, with {share.gpus:g} of a GPU")
        stage.proposer.retry(record)

    def _may_retry(self, stage: Stage, number: int, reason: str) -> bool:
        """Return whether a trial whose fault it was is tried once more, and say so."""
        retries = self._num_retries[stage.kind, number]
        if retries >= self._config.failures.max_retries:
            return False
        self._num_retries[stage.kind, number] += 1
        name = stage.trials.record(number).name
        self.notify(f"{name}: {reason}; trying once more from its last checkpoint")
        return True

    def _go_on_elsewhere(self, stage: Stage, number: int, loss: str, result: Mapping[str, Any]) -> None:
        """Let a trial go on that lost its machine, which is not its fault; unless that happens again and again.

        Args:
            stage: Its kind.
            number: Which.
            loss: What became of the machine.
            result: Its last report.
        """
        if self.stopper.is_requested():
            self._interrupt(stage, number, result)
            return
        record = stage.trials.record(number)
        newest = choose_newest(filter(None, (record.latest, record.checkpoint)))
        reached = newest.env_steps if newest else 0
        before, losses = self._losses.get((stage.kind, number), (-1, 0))
        losses = losses + 1 if reached <= before else 1
        self._losses[stage.kind, number] = reached, losses
        if losses > MAX_LOSSES:
            reason = f"{loss}, as were the {MAX_LOSSES} before it that the trial was on; it may be what ends them"
            self._fail(stage, number, describe_error(self._store, trial_dir_of(stage.kind, number), reason, ""), result)
            return
        if not self._moves:
            self._moves_since = time.monotonic()
        where = f"from {reached:,} steps" if newest else "from its beginning"
        self._moves.setdefault(loss, []).append(f"{record.name} goes on {where}")
        stage.proposer.retry(record)

    def _tell_moves(self) -> None:
        """Say in one line for each machine that was lost which trials go on from where."""
        for loss, moves in self._moves.items():
            self.notify(f"{loss}: {', '.join(moves)}")
        self._moves.clear()

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


def explain_env_runners_loss(reason: str, trace: str) -> str | None:
    """Say what became of the machine of a remote env runner; None where its process is to blame itself."""
    actor, error = find_lost_actor(reason, trace)
    return explain_loss(find_place(actor), error) if actor else None


def _has_ended_well(record: TrialRecord) -> bool:
    return record.state in ("COMPLETE", "PRUNED") and not record.diverged


def _read_checkpoints(result: Mapping[str, Any], before: TrialRecord) -> dict[str, CheckpointRecord]:
    """Read the checkpoints that came with a report, and number them after those that the ledger has."""
    sequence = 1 + max((record.sequence for record in (before.checkpoint, before.latest) if record), default=0)
    saved = result.get("records") or {}
    return {CHECKPOINTS[name]: CheckpointRecord(**record | {"sequence": sequence}) for name, record in saved.items()}


def _drop_results(trial: Any) -> None:
    """Drop what Tune keeps of an ended trial: the ledger holds it all, and 0.1 MB each would add up."""
    trial.run_metadata.metric_analysis.clear()
    trial.run_metadata.metric_n_steps.clear()
    trial.config.clear()  # in place: Tune has it under two names (Ray 2.60)
    trial.evaluated_params, trial.run_metadata.last_result = {}, {}
