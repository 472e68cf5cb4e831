"""Select a sweep's winner, register its model and save the outcome. Runs in the driver."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from rltune.certification.champion import Candidate, register_champion
from rltune.certification.finalists import Finalist, describe_winner, rank_finalists
from rltune.certification.result import Certification
from rltune.certification.selection import measure_policies
from rltune.checkpoints.clients import StoreError
from rltune.config.budget import STEPS_SPENT
from rltune.driver.open_sweep import OpenSweep
from rltune.errors import EXIT_TRY_AGAIN
from rltune.ledger.outcome import (
    EXIT_NONE,
    EXIT_WINNER,
    Outcome,
    compute_cost,
    count_states,
    describe_front,
    explain_no_winner,
)
from rltune.ledger.ranking import find_nearest
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import TrialRecord
from rltune.views.sweep_view import SweepView


def select_winner(sweep: OpenSweep, records: Sequence[TrialRecord]) -> tuple[Finalist | None, Certification | None]:
    """Select the best policy: the certified one, else the best of the finalists on fresh episodes.

    After a signal, or without the cluster's head, there is no time for evaluation, and the best of the search wins.

    Args:
        sweep: The sweep, whose trials have ended.
        records: All trials of the sweep.

    Returns:
        The winner, or None without a trial that can win; and the certification, or None if it is not complete.
    """
    folder, certify, stopper = sweep.folder, sweep.config.certify, sweep.stopper
    direction = sweep.plan.criteria.direction
    if stopper.is_urgent():
        try:
            return next(rank_finalists(folder, records, direction), None), None
        except StoreError:  # The storage does not answer, and there is no time to wait.
            return None, None
    is_retrained = False
    if sweep.retraining:
        sweep.tracker.wait_until_sent()  # The certification names the runs of MLflow.
        is_retrained, certification = sweep.retraining.judge(records)
        if certification:
            certification, winner = measure_policies(
                certification, folder, certify.champion_episodes, direction, sweep.display.show_episodes
            )
            return winner, certification
    best = sweep.final_evaluation.select(records, sweep.console.note, sweep.display.show_episodes)
    if sweep.retraining and best:
        if is_retrained:
            sweep.console.note("every certification run failed, so the winner below is not certified")
        else:
            view = SweepView.read(sweep.ledger)
            up_to = "" if view.is_searched else "up to "
            sweep.console.note(
                f"{stopper.reason or 'the sweep was stopped'}: {view.num_runs_ended} of {up_to}{view.num_runs} runs of "
                f"certification are done and kept. The winner below is not certified; {make_resume_command(folder)} "
                f"does the other {view.num_runs_left}."
            )
    return best, None


def register_winner(
    sweep: OpenSweep, winner: Finalist | None, certification: Certification | None
) -> dict[str, Any] | None:
    """Register the winner in MLflow.

    Returns:
        The registered version, as in the summary; None without a winner, in an interrupted sweep, or if nothing is
        registered.
    """
    stopper = sweep.stopper
    if winner is None or stopper.is_urgent() or stopper.interrupted or not sweep.config.tracking.register:
        return None
    candidate = Candidate(winner, certification, sweep.config, sweep.name)
    return register_champion(candidate, sweep.tracker, sweep.console.note, sweep.display.show_episodes)


def save_outcome(
    sweep: OpenSweep,
    records: Sequence[TrialRecord],
    winner: Finalist | None,
    certification: Certification | None,
    model: dict[str, Any] | None,
) -> Outcome:
    """Save the outcome in ``summary.json``, and everything except the status in the ledger."""
    ledger, stopper, folder = sweep.ledger, sweep.stopper, sweep.folder
    wall_s = ledger.sweep().wall_s + time.monotonic() - sweep.context.began
    trials = count_states(records)
    failed = winner is None and not trials["interrupted"]
    runs = sweep.retraining.runs() if sweep.retraining else []
    has_more = len(records) < sweep.config.budget.trials
    outcome = Outcome(
        name=sweep.name,
        status=_describe_status(sweep, failed),
        trials=trials,
        winner=describe_winner(winner, folder),
        model=model,
        cost=compute_cost(records, sweep.config, sweep.slots.mean(), wall_s, runs),
        certified=certification.summary() if certification else None,
        reason=stopper.reason
        or (explain_no_winner(records) if failed and find_nearest(records) else None)
        or (STEPS_SPENT if stopper.has_spent_steps() and not failed and has_more else None),
        front=describe_front(records, sweep.plan.criteria),
        exit_code=_exit_code(sweep, failed),
        folder=folder,
    )
    outcome.save()
    ledger.change_sweep(
        wall_s=wall_s,
        winner=outcome.winner,
        model=outcome.model,
        certification=certification.to_dict() if certification else None,
    )
    return outcome


def _describe_status(sweep: OpenSweep, failed: bool) -> str:
    if sweep.stopper.is_urgent() or sweep.stopper.interrupted:
        return "interrupted"
    if failed:
        return "failed"
    return "stopped" if sweep.stopper.reason else "complete"


def _exit_code(sweep: OpenSweep, failed: bool) -> int:
    if sweep.stopper.signal is not None:
        return 128 + sweep.stopper.signal
    if sweep.stopper.head_gone or sweep.stopper.interrupted:
        return EXIT_TRY_AGAIN
    return EXIT_NONE if failed else EXIT_WINNER
