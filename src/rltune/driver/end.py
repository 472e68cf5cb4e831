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
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rltune.certification.champion import Candidate, register_champion
from rltune.certification.finalists import Finalist, describe_winner, rank_finalists
from rltune.certification.result import Certification
from rltune.certification.selection import EVALUATION, FinalEvaluation, Player, measure_policies
from rltune.checkpoints.clients import StoreError
from rltune.cluster.head import INTERVAL_S, HeadWatch, OwnRayWatch, make_lost_error
from rltune.config.budget import STEPS_SPENT
from rltune.config.settings_file import format_settings
from rltune.config.uris import resolve_uri
from rltune.driver.folder import leave_folder, store_results
from rltune.driver.open_sweep import OpenSweep
from rltune.driver.publish import publish_outcome
from rltune.driver.requests.inbox import describe_user
from rltune.driver.signals import end_process
from rltune.envs.child import CallGivenUpError, Child
from rltune.errors import EXIT_TRY_AGAIN, describe_exception
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
from rltune.policies.acting import save_acting
from rltune.records import STOP, RunKey, TrialRecord, trial_dir_of
from rltune.tracking.model_registry import REGISTER_S, ModelRegistry, RegistryError
from rltune.views.sweep_view import SweepView

LEAVE_S = 12.0  # Seconds for the end of a sweep whose cluster has lost its head node.
logger = logging.getLogger(__name__)


def end_sweep(sweep: OpenSweep) -> Outcome:
    """End a sweep and return its outcome; takes only seconds after a signal or a lost cluster.

    If the cluster's head was lost meanwhile, another thread ends the sweep and then the process, and this waits for it.

    Raises:
        LeaseLostError: Another driver has taken the sweep over.
    """
    sweep.ending.acquire()  # This lock is never released, because a sweep ends only once.
    try:
        return _end(sweep)
    finally:
        sweep.ended.set()


def _end(sweep: OpenSweep, *, ray_lost: bool = False) -> Outcome:
    """Choose the winner, register it, save and publish the outcome, and mark the end in the ledger.

    Args:
        sweep: The sweep.
        ray_lost: Whether the cluster's head is lost, so that Ray answers no call any more.
    """
    ledger = sweep.ledger
    if ray_lost:
        sweep.stopper.lose_head()
        for table in (ledger.trials, ledger.runs):
            for record in table.records():
                if record.state == "RUNNING":
                    table.interrupt(record.number)
    _require_ownership(sweep)
    records = ledger.trials.records()
    winner, certification = select_winner(sweep, records)
    _require_ownership(sweep)
    model, unregistered = register_winner(sweep, winner, certification)
    _require_ownership(sweep)
    outcome = save_outcome(sweep, records, winner, certification, model, unregistered)
    _require_ownership(sweep)
    publish_outcome(sweep, records, outcome, certification)
    _drop_training_states(sweep, outcome)
    # Ctrl-C is recorded as a request to stop, so that a service does not resume the sweep.
    if sweep.stopper.signal == signal.SIGINT:
        ledger.add_request(STOP, {}, describe_user(), is_taken=True)
    ledger.change_sweep(status=outcome.status)
    return outcome


def _require_ownership(sweep: OpenSweep) -> None:
    """Raise an error if another driver has taken the sweep over; an urgent end does not wait for a bucket that is away.

    Raises:
        LeaseLostError: Another driver publishes the sweep's results.
        StoreError: The bucket cannot be asked.
    """
    try:
        sweep.ledger.require_ownership()
    except StoreError:
        if not sweep.stopper.is_urgent():
            raise


def select_winner(sweep: OpenSweep, records: Sequence[TrialRecord]) -> tuple[Finalist | None, Certification | None]:
    """Select the winning policy: the best certified one, else the best finalist on fresh episodes.

    After a signal, or without the cluster's head, there is no time for evaluation, and the best of the search wins. A
    resume evaluates then.

    Args:
        sweep: The sweep, whose trials have ended.
        records: All trials of the sweep.

    Returns:
        The winner, or None without a trial that can win; and the certification, or None if it is not complete.
    """
    if not sweep.stopper.is_urgent():
        with contextlib.suppress(CallGivenUpError):
            return _evaluate_winner(sweep, records)
    try:
        return next(rank_finalists(sweep.store, records, sweep.plan.criteria.direction), None), None
    except StoreError:
        # The storage does not answer, and an urgent end cannot wait for it.
        return None, None


def _evaluate_winner(sweep: OpenSweep, records: Sequence[TrialRecord]) -> tuple[Finalist | None, Certification | None]:
    """Measure the certified policy; without a complete certification, select the winner among the finalists."""
    folder, certify, note = sweep.folder, sweep.plan.certify, sweep.console.note
    is_retrained, player = False, _make_player(sweep)
    if sweep.retraining:
        sweep.tracker.wait_until_sent()  # The certification needs the ids of the MLflow runs.
        is_retrained, certification = sweep.retraining.judge(records)
        if certification:
            direction = sweep.plan.criteria.direction
            certification, winner = measure_policies(
                certification, sweep.store, certify.champion_episodes, direction, player
            )
            return winner, certification
    evaluation = FinalEvaluation(
        store=sweep.store,
        top=certify.top or 0,
        episodes=certify.champion_episodes,
        player=player,
        objective=sweep.plan.objective,
        keep=partial(_keep_acting, sweep),
    )
    best = evaluation.select(records, note)
    if sweep.retraining and best:
        if is_retrained:
            note("every certification run failed, so the winner below is not certified")
        else:
            view = SweepView.read(sweep.ledger)
            up_to = "" if view.is_searched else "up to "
            note(
                f"{sweep.stopper.reason or 'the sweep was stopped'}: {view.num_runs_ended} of {up_to}{view.num_runs} "
                "certification runs are done and kept. The winner below is not certified; "
                f"{make_resume_command(folder)} runs the other {view.num_runs_left}."
            )
    return best, None


def _make_player(sweep: OpenSweep) -> Player:
    return Player(
        sweep.slots.count,
        partial(Child, [EVALUATION], sweep.invocation.fork_child),
        sweep.plan.failures.stall_s,
        sweep.stopper.is_urgent,
        sweep.display.show_episodes,
        sweep.console.note,
        sweep.plan.failures.max_retries,
    )


def _keep_acting(sweep: OpenSweep, finalist: Finalist, acting: Mapping[str, Any]) -> Finalist:
    """Store in a finalist's checkpoint, in the ledger and with the trackers how its policy acts."""
    assert finalist.trial is not None
    record = sweep.ledger.trials.record(finalist.trial)
    assert record.checkpoint is not None
    sweep.tracker.wait_until_sent()  # A tracker may be uploading the files that are dropped below.
    checkpoint = save_acting(sweep.store, record.checkpoint, acting)
    sweep.ledger.trials.replace_checkpoint(finalist.trial, checkpoint)
    sweep.retention.drop([record.checkpoint], keep=[record.latest])
    sweep.tracker.wake()
    return replace(finalist, folder=sweep.store.open(checkpoint) or finalist.folder)


def register_winner(
    sweep: OpenSweep, winner: Finalist | None, certification: Certification | None
) -> tuple[dict[str, Any] | None, str | None]:
    """Register the winner as a model in MLflow.

    Returns:
        The registered version and why it is not registered yet, as in the summary. Both are None without a winner, in
        an interrupted or failed sweep, or if nothing is to be registered.
    """
    stopper = sweep.stopper
    if winner is None or stopper.is_urgent() or stopper.interrupted or stopper.has_failed:
        return None, None
    if not (sweep.plan.tracking.register and sweep.tracker.has_registry):
        return None, None
    candidate = Candidate(
        winner,
        certification,
        sweep=sweep.name,
        env_name=sweep.plan.env_name,
        algorithm=sweep.plan.algorithm,
        env=sweep.plan.build.env,
        num_episodes=sweep.plan.certify.champion_episodes,
        settings=format_settings(sweep.plan.settings),
        copies=sweep.plan.build.copies,
    )
    registry = ModelRegistry(resolve_uri(sweep.plan.tracking.uri), stopper.is_urgent)
    note, player = sweep.console.note, _make_player(sweep)
    try:
        return register_champion(candidate, registry, partial(_find_mlflow_run, sweep), note, player), None
    except CallGivenUpError:
        return None, None
    except RegistryError as error:
        if stopper.is_urgent():
            return None, None
        note(f"the winner is not registered yet ({error}); {make_resume_command(sweep.folder)} registers it")
        return None, str(error)


def _find_mlflow_run(sweep: OpenSweep, key: RunKey) -> str:
    """Return the id of a trial's MLflow run, after waiting until MLflow has it.

    Raises:
        RegistryError: MLflow does not have it yet.
    """
    sweep.tracker.wait_until_sent(REGISTER_S)
    table = sweep.ledger.trials if key.seed_index is None else sweep.ledger.runs
    for record in reversed(table.records()):
        if record.run_key == key and record.mlflow_run_id:
            return record.mlflow_run_id
    raise RegistryError(f"MLflow has not received {key.name}")


def save_outcome(
    sweep: OpenSweep,
    records: Sequence[TrialRecord],
    winner: Finalist | None,
    certification: Certification | None,
    model: dict[str, Any] | None,
    unregistered: str | None = None,
) -> Outcome:
    """Save the outcome in ``summary.json`` and in the ledger, where only the final status is still missing."""
    ledger, stopper, folder = sweep.ledger, sweep.stopper, sweep.folder
    trials = count_states(records)
    failed = winner is None and not trials["interrupted"]
    runs = sweep.retraining.runs() if sweep.retraining else []
    budget = sweep.plan.budget
    has_more = len(records) < budget.trials
    outcome = Outcome(
        name=sweep.name,
        status=_describe_status(sweep, failed),
        trials=trials,
        winner=describe_winner(winner, folder, records),
        model=model,
        unregistered=unregistered,
        cost=compute_cost(
            records, budget.env_steps, sweep.plan.build.replicates, sweep.slots.mean(), sweep.note_wall_time(), runs
        ),
        certified=certification.summary() if certification else None,
        reason=stopper.reason
        or (explain_no_winner(records) if failed else None)
        or (STEPS_SPENT if stopper.has_spent_steps() and not failed and has_more else None),
        front=describe_front(records, sweep.plan.criteria),
        exit_code=_exit_code(sweep, winner is not None),
        folder=folder,
        algorithm=sweep.plan.algorithm,
        environment=sweep.plan.build.env.id,
        seed=sweep.plan.seed,
        began=ledger.sweep().began,
    )
    outcome.save()
    # If a certification is extended and not completed, then the earlier result stays: the next one builds on it.
    result = {"certification": certification.to_dict()} if certification else {}
    ledger.change_sweep(winner=outcome.winner, model=outcome.model, **result)
    return outcome


def _describe_status(sweep: OpenSweep, failed: bool) -> str:
    if sweep.stopper.is_urgent() or sweep.stopper.interrupted:
        return "interrupted"
    if failed or sweep.stopper.has_failed:
        return "failed"
    return "stopped" if sweep.stopper.reason else "complete"


def _exit_code(sweep: OpenSweep, has_winner: bool) -> int:
    if sweep.stopper.signal is not None:
        return 128 + sweep.stopper.signal
    if sweep.stopper.head_gone or sweep.stopper.interrupted:
        return EXIT_TRY_AGAIN
    return EXIT_WINNER if has_winner and not sweep.stopper.has_failed else EXIT_NONE


def _drop_training_states(sweep: OpenSweep, outcome: Outcome) -> None:
    """Delete the training states of complete trials whose best policy MLflow has, except for winner and finalists."""
    if sweep.stopper.is_urgent():
        # The next driver deletes the training states that an urgent end leaves.
        return
    winner = str((outcome.winner or {}).get("checkpoint"))
    direction = sweep.plan.criteria.direction
    finalists = rank_records(sweep.ledger.trials.records(), direction)[: sweep.plan.certify.top]
    keep = {trial_dir_of(record.kind, record.number) for record in finalists} | {"/".join(winner.split("/")[:2])}
    for table in (sweep.ledger.trials, sweep.ledger.runs):
        sweep.retention.drop(table.forget_training_states(keep), keep=())


def watch_head(sweep: OpenSweep) -> None:
    """Watch the head node of a joined cluster, or this machine's own Ray; without it the sweep and this process end."""

    def leave() -> None:
        if sweep.plan.is_joined or not sweep.stopper.signal:  # A signal may have ended Ray, too, as at a job's end.
            leave_without_head(sweep)

    watch = HeadWatch if sweep.plan.is_joined else OwnRayWatch
    sweep.housekeeping.add(INTERVAL_S, watch(leave).check)


def leave_without_head(sweep: OpenSweep) -> None:
    """End the sweep and this process after the loss of the head node, in at most `LEAVE_S`.

    Ray holds every thread that calls it without a head, for a minute, and then ends the process by itself. So another
    thread ends the sweep, and the process is not left to Ray. A main thread that has begun the end already needs no
    head; if it comes to the end of it in time, this returns.
    """
    if sweep.ending.acquire(blocking=False):
        thread = threading.Thread(target=_end_without_head, args=(sweep,), name="end", daemon=True)
        thread.start()
        thread.join(LEAVE_S)
    elif sweep.ended.wait(LEAVE_S):
        return
    end_process(make_lost_error(sweep.plan.cluster.address, make_resume_command(sweep.folder)))


def _end_without_head(sweep: OpenSweep) -> None:
    """End the sweep without any call into Ray, store the results, and release the lease."""
    folder = sweep.folder
    how = make_resume_command(folder)
    try:
        head = f"the head of the cluster at {sweep.plan.cluster.address} is gone; when it is back, or with "
        head += "cluster.address=... of another one"
        sweep.console.note(f"{head if sweep.plan.is_joined else 'Ray on this machine has ended'}: {how}")
        _end(sweep, ray_lost=True)
        sweep.ledger.close()
        store_results(sweep.plan, sweep.ledger, sweep.invocation.stream)
    except Exception as error:
        logger.exception("the end of the sweep without the cluster's head has failed")
        print(f"{describe_exception(error)}; to continue: {how}", file=sweep.invocation.stream, flush=True)
    finally:
        sweep.stopper.clear()
        leave_folder(folder, sweep.ledger)
