"""Bring a sweep's ledger up to date after a driver that ended in the middle of its work. Runs in the driver."""

from __future__ import annotations

from rltune.driver.requests.inbox import reopen_failed
from rltune.ledger.ledger import Ledger
from rltune.records import WHOLE_BUDGET
from rltune.search.schedulers import Stop, StoppingRule, replay_reports


def recover_trials(ledger: Ledger, rule: StoppingRule, env_steps: int) -> list[str]:
    """Reopen the failed trials that a user wants to be retried, and end or interrupt those that are left RUNNING.

    A report is committed before its consequences. A trial whose last report ended it must not go on: one that had to
    stop at a rung would be let through, and one with its whole budget would repeat the steps since its last checkpoint.

    Args:
        ledger: The sweep's ledger.
        rule: The sweep's stopping rule, a new one. All reports are replayed to it.
        env_steps: A trial's whole budget, in environment steps.

    Returns:
        Notes for the user.
    """
    notes: list[str] = []
    reopen_failed(ledger, notes.append)
    decisions = replay_reports(rule, ledger.trials.read_curves())
    for record in ledger.trials.records():
        decision = decisions.get(record.number)
        if record.state != "RUNNING" or decision is None:
            continue
        if isinstance(decision, Stop):
            ledger.trials.end(record.number, "PRUNED", decision.reason)
        elif max(record.reports) >= env_steps and record.score is not None:
            ledger.trials.end(record.number, "COMPLETE", WHOLE_BUDGET)
    for table in (ledger.trials, ledger.runs):
        for record in table.records():
            if record.state == "RUNNING" and not record.stop_reason:
                table.interrupt(record.number)  # Until a worker goes on with it.
    return notes
