"""End a sweep: choose the winner, register it, publish the outcome, and mark the end in the ledger last.

A sweep has one end, which begins once: in the main thread after the trials, or in another thread if the head of a
joined cluster is lost. Every step can be repeated. So if a driver is killed in the middle, the next one goes through
all steps again, because the ledger does not say yet that the sweep has ended. Runs in the driver.
"""

from __future__ import annotations

import logging
import os
import signal
import threading

from rltune.cluster.head import INTERVAL_S, HeadWatch
from rltune.driver.folder import leave_folder, store_results
from rltune.driver.open_sweep import OpenSweep
from rltune.driver.publish import notify_users, publish_outcome
from rltune.driver.requests.inbox import describe_user
from rltune.driver.winner import register_winner, save_outcome, select_winner
from rltune.errors import EXIT_TRY_AGAIN, describe_exception
from rltune.ledger.outcome import Outcome
from rltune.ledger.ranking import rank_records
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import STOP, trial_dir_of

LEAVE_S = 12.0  # How long an end without the cluster's head takes at most.
logger = logging.getLogger(__name__)


def end_sweep(sweep: OpenSweep) -> Outcome:
    """End a sweep, within seconds if the end is urgent.

    If the cluster's head was lost meanwhile, another thread ends the sweep and then the process, and this waits for it.

    Raises:
        LeaseLostError: Another driver has taken the sweep over.
    """
    sweep.ending.acquire()  # This is never released: a sweep ends once.
    try:
        return _end(sweep)
    finally:
        sweep.ended.set()


def _end(sweep: OpenSweep, *, ray_lost: bool = False) -> Outcome:
    """Go through the steps of the end.

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
    ledger.check_lease()
    records = ledger.trials.records()
    winner, certification = select_winner(sweep, records)
    ledger.check_lease()
    model = register_winner(sweep, winner, certification)
    ledger.check_lease()
    outcome = save_outcome(sweep, records, winner, certification, model)
    ledger.check_lease()
    publish_outcome(sweep, records, outcome, certification)
    _drop_training_states(sweep, outcome)
    notify_users(sweep, outcome)
    if sweep.stopper.signal == signal.SIGINT:  # A service that starts later must not run what a person has ended.
        ledger.ask(STOP, {}, describe_user(), is_taken=True)
    ledger.change_sweep(status=outcome.status)
    return outcome


def _drop_training_states(sweep: OpenSweep, outcome: Outcome) -> None:
    """Drop the latest states of whole trials whose best policy MLflow has, but not of the winner and the finalists."""
    if sweep.stopper.is_urgent():  # A later driver does it.
        return
    winner = str((outcome.winner or {}).get("checkpoint"))
    direction = sweep.plan.criteria.direction
    finalists = rank_records(sweep.ledger.trials.records(), direction)[: sweep.config.certify.top]
    keep = {trial_dir_of(record.kind, record.number) for record in finalists} | {"/".join(winner.split("/")[:2])}
    for table in (sweep.ledger.trials, sweep.ledger.runs):
        sweep.retention.drop(table.forget_training_states(keep), keep=())


def watch_head(sweep: OpenSweep) -> None:
    """End the sweep and its process if the head of the cluster that it has joined is lost."""
    if sweep.config.cluster.address is not None:
        sweep.housekeeping.add(INTERVAL_S, HeadWatch(lambda: leave_without_head(sweep)).check)


def leave_without_head(sweep: OpenSweep) -> None:
    """End the sweep, and the process within `LEAVE_S`.

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
    os._exit(EXIT_TRY_AGAIN)


def _end_without_head(sweep: OpenSweep) -> None:
    """End the sweep and leave its folder as every other end of a driver does."""
    folder = sweep.folder
    how = make_resume_command(folder)
    try:
        head = f"the head of the cluster at {sweep.config.cluster.address}"
        sweep.console.note(f"{head} is gone; when it is back, or with cluster.address=... of another one: {how}")
        _end(sweep, ray_lost=True)
        sweep.close_ledger()
        store_results(sweep.context, sweep.ledger)
    except Exception as error:
        logger.exception("the end of the sweep without the cluster's head has failed")
        print(f"{describe_exception(error)}; to go on: {how}", file=sweep.context.stream, flush=True)
    finally:
        sweep.stopper.clear()
        leave_folder(folder, sweep.ledger)
