"""End a sweep: choose the winner, register it, publish the outcome, and mark the end in the ledger last.

A sweep has one end, which begins once: in the main thread after the trials, or in another thread if the head of a
joined cluster is lost. Every step can be repeated. So if a driver is killed in the middle, the next one goes through
all steps again, because the ledger does not say yet that the sweep has ended. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from rltune.certification.champion import Candidate, register_champion
from rltune.certification.finalists import Finalist, describe_winner, rank_finalists
from rltune.certification.result import Certification
from rltune.certification.selection import EVALUATION, FinalEvaluation, Player, measure_policies
from rltune.checkpoints.clients import StoreError
from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import Store
from rltune.cluster.head import make_lost_error
from rltune.cluster.slots import Slots
from rltune.config.budget import STEPS_SPENT
from rltune.config.schema import FailuresConfig
from rltune.config.settings_file import format_settings
from rltune.config.uris import resolve_uri
from rltune.driver.display import Display
from rltune.driver.folder import leave_folder, store_results
from rltune.driver.plan import Invocation, Plan
from rltune.driver.publish import publish_outcome
from rltune.driver.requests.inbox import describe_user
from rltune.driver.signals import end_process
from rltune.driver.stopper import SweepStopper
from rltune.driver.sweep import Sweep
from rltune.envs.changes import change_spec
from rltune.envs.child import CallGivenUpError, Child
from rltune.errors import EXIT_TRY_AGAIN, describe_exception
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import (
    EXIT_NONE,
    EXIT_WINNER,
    Outcome,
    compute_cost,
    count_states,
    describe_front,
    explain_no_winner,
)
from rltune.ledger.ranking import rank_records
from rltune.ledger.sweep_folder import make_resume_command
from rltune.ledger.trial_table import TrialTable
from rltune.policies.acting import save_acting
from rltune.records import STOP, RunKey, TrialRecord, trial_dir_of
from rltune.tracking.feed import Feeds
from rltune.tracking.model_registry import REGISTER_S, ModelRegistry, RegistryError
from rltune.views.sweep_view import SweepView

LEAVE_S = 12.0  # Seconds for the end of a sweep whose cluster has lost its head node.
logger = logging.getLogger(__name__)


class SweepEnd:
    """The one end of a sweep, which begins once.

    Args:
        sweep: The sweep.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep = sweep
        self._begun = threading.Lock()  # It is never released, because a sweep ends only once.
        self._ended = threading.Event()

    def run(self) -> Outcome:
        """End the sweep and return its outcome; takes only seconds after a signal or a lost cluster.

        If the cluster's head was lost meanwhile, another thread ends the sweep and then the process, and this waits for
        it.

        Raises:
            LeaseLostError: Another driver has taken the sweep over.
        """
        self._begun.acquire()
        try:
            return self._end()
        finally:
            self._ended.set()

    def _end(self) -> Outcome:
        """Choose the winner, register it, save and publish the outcome, and mark the end in the ledger."""
        sweep, ledger, stopper = self._sweep, self._sweep.ledger, self._sweep.stopper
        _require_ownership(ledger, stopper)
        records = ledger.trials.records()
        winner, certification = select_winner(sweep, records)
        _require_ownership(ledger, stopper)
        model, unregistered = register_winner(sweep, winner, certification)
        _require_ownership(ledger, stopper)
        outcome = save_outcome(sweep, records, winner, certification, model, unregistered)
        _require_ownership(ledger, stopper)
        publish_outcome(sweep, records, outcome, certification)
        if not stopper.is_urgent():  # The next driver deletes the training states that an urgent end leaves.
            _drop_training_states(sweep.plan, ledger, sweep.retention, outcome)
        # Ctrl-C is recorded as a request to stop, so that a service does not resume the sweep.
        if stopper.signal == signal.SIGINT:
            ledger.add_request(STOP, {}, describe_user(), is_taken=True)
        ledger.change_sweep(status=outcome.status)
        return outcome

    def leave_without_head(self) -> None:
        """End the sweep and this process after the loss of the head node, or of the own Ray, in at most `LEAVE_S`.

        Ray holds every thread that calls it without a head, for a minute, and then ends the process by itself. So
        another thread ends the sweep, and the process is not left to Ray. A main thread that has begun the end already
        needs no head; if it comes to the end of it in time, this returns.
        """
        sweep = self._sweep
        if self._begun.acquire(blocking=False):
            thread = threading.Thread(target=self._end_without_head, name="end", daemon=True)
            thread.start()
            thread.join(LEAVE_S)
        elif self._ended.wait(LEAVE_S):
            return
        end_process(make_lost_error(sweep.plan.cluster.address, make_resume_command(sweep.plan.folder)))

    def _end_without_head(self) -> None:
        """End the sweep without any call into Ray, store the results, and release the lease."""
        sweep, ledger, stream = self._sweep, self._sweep.ledger, self._sweep.invocation.stream
        how = make_resume_command(sweep.plan.folder)
        try:
            head = f"the head of the cluster at {sweep.plan.cluster.address} is gone; when it is back, or with "
            head += "cluster.address=... of another one"
            sweep.console.note(f"{head if sweep.plan.is_joined else 'Ray has ended on this machine'}: {how}")
            sweep.stopper.lose_head()
            for table in (ledger.trials, ledger.runs):
                for record in table.records():
                    if record.state == "RUNNING":
                        table.interrupt(record.number)
            self._end()
            ledger.close()
            store_results(sweep.plan, ledger, stream)
        except Exception as error:
            logger.exception("the end of the sweep without the cluster's head has failed")
            print(f"{describe_exception(error)}; to continue: {how}", file=stream, flush=True)
        finally:
            sweep.stopper.clear()
            leave_folder(sweep.plan.folder, ledger)


def _require_ownership(ledger: Ledger, stopper: SweepStopper) -> None:
    """Raise an error if another driver has taken the sweep over; an urgent end does not wait for a bucket that is away.

    Raises:
        LeaseLostError: Another driver publishes the sweep's results.
        StoreError: The bucket cannot be asked.
    """
    try:
        ledger.require_ownership()
    except StoreError:
        if not stopper.is_urgent():
            raise


def select_winner(sweep: Sweep, records: Sequence[TrialRecord]) -> tuple[Finalist | None, Certification | None]:
    """Select the winning policy: the best certified one, else the best finalist on fresh episodes.

    After a signal, or without the cluster's head, there is no time for evaluation, and the best of the search wins. A
    resume evaluates then.

    Args:
        sweep: The sweep, whose trials have ended.
        records: All trials of the sweep.

    Returns:
        The winner, or None without a trial that can win; and the certification, or None if it is not complete.
    """
    plan, store, retraining, note = sweep.plan, sweep.store, sweep.retraining, sweep.console.note
    direction, episodes = plan.criteria.direction, plan.certify.champion_episodes
    if not sweep.stopper.is_urgent():
        with contextlib.suppress(CallGivenUpError):
            is_retrained = False
            player = _make_player(plan.failures, sweep.invocation, sweep.slots, sweep.stopper, sweep.display, note)
            if retraining:
                sweep.tracker.wait_until_sent()  # The certification needs the ids of the MLflow runs.
                is_retrained, certification = retraining.judge(records)
                if certification:
                    env = plan.reported_env
                    certification, winner = measure_policies(certification, store, episodes, direction, player, env)
                    return winner, certification
            keep = partial(_keep_acting, sweep.ledger.trials, sweep.retention, sweep.tracker, store)
            evaluation = FinalEvaluation(
                store,
                plan.certify.top or 0,
                episodes,
                player,
                plan.objective,
                keep,
                plan.score.env,
                plan.reported_env,
                scores_are_played=bool(plan.score.episodes),
                early_end=plan.criteria.early_end,
            )
            best = evaluation.select(records, note)
            if retraining and best:
                note(_explain_uncertified(sweep.ledger, sweep.stopper, plan.folder, is_retrained))
            return best, None
    try:
        return next(rank_finalists(store, records, direction), None), None
    except StoreError:
        # The storage does not answer, and an urgent end cannot wait for it.
        return None, None


def _explain_uncertified(ledger: Ledger, stopper: SweepStopper, folder: Path, is_retrained: bool) -> str:
    """Explain why a sweep that was to be certified has a winner without certification."""
    if is_retrained:
        return "every certification run failed, so the winner below is not certified"
    view = SweepView.read(ledger)
    up_to = "" if view.is_searched else "up to "
    return (
        f"{stopper.reason or 'the sweep was stopped'}: {view.num_runs_ended} of {up_to}{view.num_runs} "
        "certification runs are done and kept. The winner below is not certified; "
        f"{make_resume_command(folder)} runs the other {view.num_runs_left}."
    )


def _make_player(
    failures: FailuresConfig,
    invocation: Invocation,
    slots: Slots,
    stopper: SweepStopper,
    display: Display,
    note: Callable[[str], None],
) -> Player:
    start_child = partial(Child, [EVALUATION], invocation.fork_child)
    return Player(
        slots.count, start_child, failures.stall_s, stopper.is_urgent, display.show_episodes, note, failures.max_retries
    )


def _keep_acting(
    trials: TrialTable,
    retention: Retention,
    tracker: Feeds,
    store: Store,
    finalist: Finalist,
    acting: Mapping[str, Any],
) -> Finalist:
    """Store in a finalist's checkpoint, in the ledger and with the trackers how its policy acts."""
    assert finalist.trial is not None
    record = trials.record(finalist.trial)
    assert record.checkpoint is not None
    tracker.wait_until_sent()  # A tracker may be uploading the files that are dropped below.
    checkpoint = save_acting(store, record.checkpoint, acting)
    trials.replace_checkpoint(finalist.trial, checkpoint)
    retention.drop([record.checkpoint], keep=[record.latest])
    tracker.wake()
    return replace(finalist, folder=store.open(checkpoint) or finalist.folder)


def register_winner(
    sweep: Sweep, winner: Finalist | None, certification: Certification | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Register the winner as a model in MLflow.

    Returns:
        The registered version and why it is not registered yet, as in the summary. Both are None without a winner, in
        an interrupted or failed sweep, or if nothing is to be registered.
    """
    plan, stopper, note = sweep.plan, sweep.stopper, sweep.console.note
    if winner is None or stopper.is_urgent() or stopper.interrupted or stopper.has_failed:
        return None, None
    if not (plan.tracking.register and sweep.tracker.has_registry):
        return None, None
    candidate = Candidate(
        winner,
        certification,
        sweep=plan.name,
        env_name=plan.env_name,
        algorithm=plan.algorithm,
        env=change_spec(plan.build.env, plan.reported_env),
        num_episodes=plan.certify.champion_episodes,
        settings=format_settings(plan.settings),
        copies=plan.build.copies,
    )
    registry = ModelRegistry(resolve_uri(plan.tracking.uri), stopper.is_urgent)
    player = _make_player(plan.failures, sweep.invocation, sweep.slots, stopper, sweep.display, note)
    find_run = partial(_find_mlflow_run, sweep.ledger, sweep.tracker)
    try:
        return register_champion(candidate, registry, find_run, note, player), None
    except CallGivenUpError:
        return None, None
    except RegistryError as error:
        if stopper.is_urgent():
            return None, None
        note(f"the winner is not registered yet ({error}); {make_resume_command(plan.folder)} registers it")
        return None, str(error)


def _find_mlflow_run(ledger: Ledger, tracker: Feeds, key: RunKey) -> str:
    """Return the id of a trial's MLflow run, after waiting until MLflow has it.

    Raises:
        RegistryError: MLflow does not have it yet.
    """
    tracker.wait_until_sent(REGISTER_S)
    table = ledger.trials if key.seed_index is None else ledger.runs
    for record in reversed(table.records()):
        if record.run_key == key and record.mlflow_run_id:
            return record.mlflow_run_id
    raise RegistryError(f"MLflow has not received {key.name}")


def save_outcome(
    sweep: Sweep,
    records: Sequence[TrialRecord],
    winner: Finalist | None,
    certification: Certification | None,
    model: dict[str, Any] | None,
    unregistered: str | None = None,
) -> Outcome:
    """Save the outcome in ``summary.json`` and in the ledger, where only the final status is still missing."""
    plan, ledger, stopper = sweep.plan, sweep.ledger, sweep.stopper
    trials = count_states(records)
    failed = winner is None and not trials["interrupted"]
    runs = sweep.retraining.runs() if sweep.retraining else []
    wall_s = time.monotonic() - sweep.invocation.began
    has_more = len(records) < plan.budget.trials
    outcome = Outcome(
        name=plan.name,
        status=_describe_status(stopper, failed),
        trials=trials,
        winner=describe_winner(winner, plan.folder, records),
        model=model,
        unregistered=unregistered,
        cost=compute_cost(records, plan.budget.env_steps, plan.build.replicates, sweep.slots.mean(), wall_s, runs),
        certified=certification.summary() if certification else None,
        reason=stopper.reason
        or (explain_no_winner(records) if failed else None)
        or (STEPS_SPENT if stopper.has_spent_steps() and not failed and has_more else None),
        front=describe_front(records, plan.criteria),
        exit_code=_exit_code(stopper, winner is not None),
        folder=plan.folder,
        algorithm=plan.algorithm,
        environment=plan.build.env.id,
        seed=plan.seed,
        began=ledger.sweep().began,
    )
    outcome.save()
    # If a certification is extended and not completed, then the earlier result stays: the next one builds on it.
    result = {"certification": certification.to_dict()} if certification else {}
    ledger.change_sweep(winner=outcome.winner, model=outcome.model, wall_s=wall_s, **result)
    return outcome


def _describe_status(stopper: SweepStopper, failed: bool) -> str:
    if stopper.is_urgent() or stopper.interrupted:
        return "interrupted"
    if failed or stopper.has_failed:
        return "failed"
    return "stopped" if stopper.reason else "complete"


def _exit_code(stopper: SweepStopper, has_winner: bool) -> int:
    if stopper.signal is not None:
        return 128 + stopper.signal
    if stopper.head_gone or stopper.interrupted:
        return EXIT_TRY_AGAIN
    return EXIT_WINNER if has_winner and not stopper.has_failed else EXIT_NONE


def _drop_training_states(plan: Plan, ledger: Ledger, retention: Retention, outcome: Outcome) -> None:
    """Delete the training states of complete trials whose best policy MLflow has, except for winner and finalists."""
    winner = str((outcome.winner or {}).get("checkpoint"))
    finalists = rank_records(ledger.trials.records(), plan.criteria.direction)[: plan.certify.top]
    keep = {trial_dir_of(record.kind, record.number) for record in finalists} | {"/".join(winner.split("/")[:2])}
    for table in (ledger.trials, ledger.runs):
        retention.drop(table.forget_training_states(keep), keep=())
