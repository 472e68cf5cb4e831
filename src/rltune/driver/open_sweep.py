"""Open the study, trackers and console that a driver needs, and close them and the ledger whatever happens."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from rltune.certification.retraining import Retraining
from rltune.checkpoints.clients import QUICK_S
from rltune.checkpoints.retention import Retention
from rltune.cluster.head import INTERVAL_S, HeadWatch, OwnRayWatch
from rltune.cluster.ray_cluster import bound_own_logs
from rltune.cluster.resources import Share
from rltune.cluster.slots import Slots, update_from_cluster
from rltune.driver.background_imports import NEEDED_AT_END, ImportAhead
from rltune.driver.display import Display, Heartbeats
from rltune.driver.housekeeping import Chore, Housekeeping
from rltune.driver.plan import Invocation, Plan
from rltune.driver.provenance import record_changed_space
from rltune.driver.publish import notify_users_of_crash, show_warnings
from rltune.driver.requests.inbox import Inbox, reopen_failed
from rltune.driver.stopper import SweepStopper
from rltune.driver.sweep import Search, Sweep
from rltune.driver.trackers import open_trackers
from rltune.formatting import format_number
from rltune.ledger.lease import RENEW_S, LeaseLostError
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import OptunaStudy
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import WHOLE_BUDGET
from rltune.search.sampler_view import choose_view
from rltune.search.schedulers import Stop, StoppingRule, replay_reports
from rltune.views.console import Console

FLUSH_S = 20.0  # How long the end of a sweep deletes checkpoints at most; the next driver deletes the rest.
TICK_S = 0.5  # Seconds between two runs of a fast chore.
INBOX_S = 1.0
HEARTBEATS_S = SLOTS_S = 2.0
WALL_TIME_S = 5.0


@contextlib.contextmanager
def open_sweep(plan: Plan, invocation: Invocation, ledger: Ledger, share: Share, slots: Slots) -> Iterator[Sweep]:
    """Open a sweep, and at the end of the context leave no MLflow run in the state RUNNING and no connection open.

    If the lease is lost, another driver works on the sweep, and everything that both of them use is left as it is.

    Args:
        plan: The sweep's plan; its folder exists.
        invocation: How the driver was called.
        ledger: The sweep's ledger; this driver holds its lease.
        share: A trial's share of the machine.
        slots: How many trials run at once.

    Raises:
        StudyError: The ledger or Optuna's study cannot be read.
    """
    sweep = make_sweep(plan, invocation, ledger, share, slots)
    status = "KILLED"
    try:
        try:
            yield sweep
        except LeaseLostError:  # Another driver has taken the sweep over and publishes its outcome.
            raise
        except Exception as error:
            status = "FAILED"
            notify_users_of_crash(plan.folder, ledger, sweep.tracker, sweep.console, error)
            raise
        finally:
            sweep.console.close()
            if ledger.has_lost_ownership():
                sweep.tracker.abandon()
            else:
                # This has no effect after a proper end, which has already closed the trackers.
                sweep.tracker.close(status, timeout_s=5.0)
    finally:
        sweep.retention.drop_pending(QUICK_S if sweep.stopper.is_urgent() else FLUSH_S)
        ledger.close()
        sweep.stopper.clear()


def make_sweep(plan: Plan, invocation: Invocation, ledger: Ledger, share: Share, slots: Slots) -> Sweep:
    """Make the objects of a sweep from its plan and its ledger; see `open_sweep`, which closes them."""
    store, rule = plan.open_store(), plan.stopping_rule()
    retention = Retention(store, ledger.require_ownership)
    ledger.judge_by(plan.criteria)
    if plan.resumed:
        plan = plan.with_notes(*record_changed_space(ledger, plan.settings))
        plan = plan.with_notes(*recover_trials(ledger, rule, plan.budget.env_steps))
        plan = plan.with_notes(*name_failed(ledger, plan.folder, plan.budget.env_steps))
        # A killed driver may have saved checkpoints without recording them in the ledger.
        retention.drop_unnamed([*ledger.trials.records(), *ledger.runs.records()])
    view = choose_view(plan.traits, has_constraints=bool(plan.criteria.constraints))
    study = OptunaStudy(ledger.trials, view, plan.read_drawn, plan.earlier)
    records, replicates = ledger.trials.records(), plan.build.replicates
    spent_steps = replicates * sum(record.env_steps for record in records)
    stopper = SweepStopper(store, plan.budget, spent_steps, ledger.lease, waits_for_nodes=plan.is_joined)
    retraining = None
    if plan.certify.seeds:
        seeds, env_steps = plan.certification_seeds(), plan.budget.env_steps
        retraining = Retraining(store, plan.certify, env_steps, replicates, seeds, plan.baseline, ledger)
    console, heartbeats = (
        Console(invocation.stream, has_tables=invocation.has_tables),
        Heartbeats(str(plan.folder), stopper.active_trial_dirs),
    )
    return Sweep(
        plan=plan,
        # The sweep's wall time goes on from that of its earlier drivers.
        invocation=replace(invocation, began=invocation.began - ledger.sweep().wall_s),
        ledger=ledger,
        store=store,
        retention=retention,
        slots=slots,
        search=Search(share, rule, study, Inbox(ledger, stopper), heartbeats),
        retraining=retraining,
        stopper=stopper,
        tracker=open_trackers(plan, ledger, store, stopper.is_urgent),
        console=console,
        display=Display(ledger, console, slots, heartbeats),
    )


def recover_trials(ledger: Ledger, rule: StoppingRule, env_steps: int) -> list[str]:
    """Reopen failed trials that users want to retry, and end or interrupt those that a dead driver left RUNNING.

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
    reports = ledger.trials.read_curves()
    decisions = replay_reports(rule, reports)
    curves: dict[int, list[tuple[int, float]]] = {}
    for report in reports:
        curves.setdefault(report.number, []).append((report.env_steps, report.score))
    for record in ledger.trials.records():
        decision = decisions.get(record.number)
        if record.state != "RUNNING" or decision is None:
            continue
        if ended := ledger.criteria.early_end.explain(curves[record.number]):
            ledger.trials.end(record.number, "COMPLETE", ended)
        elif isinstance(decision, Stop):
            ledger.trials.end(record.number, "PRUNED", decision.reason)
        elif max(record.reports) >= env_steps and record.score is not None:
            ledger.trials.end(record.number, "COMPLETE", WHOLE_BUDGET)
    for table in (ledger.trials, ledger.runs):
        for record in table.records():
            if record.state == "RUNNING" and not record.stop_reason:
                table.interrupt(record.number)  # The trial counts as interrupted until a worker continues it.
    return notes


def name_failed(ledger: Ledger, folder: Path, env_steps: int) -> list[str]:
    """Return a note on failed trials and certification runs, which a resume leaves alone; empty without any."""
    num_trials = sum(record.can_be_retried(env_steps) for record in ledger.trials.records())
    num_runs = sum(record.state == "FAIL" for record in ledger.runs.records())
    counts = [(num_trials, "failed trial"), (num_runs, "failed certification run")]
    named = " and ".join(format_number(number, what) for number, what in counts if number)
    return [f"not tried again: {named}; {make_resume_command(folder, command='retry')} does that"] if named else []


@contextlib.contextmanager
def keep_house(sweep: Sweep, leave_without_head: Callable[[], None]) -> Iterator[ImportAhead]:
    """Run a sweep's periodic functions in another thread; one of them imports modules for the end, which is yielded.

    A joined cluster is polled for changes in a separate thread, because calls hang for a minute without its head.

    Args:
        sweep: The sweep.
        leave_without_head: Called once the head of a joined cluster, or this machine's own Ray, is lost.
    """
    ledger, stopper, tracker = sweep.ledger, sweep.stopper, sweep.tracker
    spent_steps, began = stopper.env_steps, sweep.invocation.began

    def is_time_to_import() -> bool:
        # Not while trackers open, which imports MLflow: imports in two threads of one process slow each other down.
        return stopper.env_steps > spent_steps and not tracker.opening

    def leave_without_own_ray() -> None:
        if not stopper.signal:  # A signal may have ended Ray, too, as at a job's end: then the driver leaves anyway.
            leave_without_head()

    imports = ImportAhead((*sweep.plan.traits.imports, *NEEDED_AT_END), is_time_to_import)
    chores: list[tuple[float, Chore]] = [
        (RENEW_S, ledger.has_lost_ownership),
        (INBOX_S, sweep.search.inbox.read),
        (TICK_S, stopper.check_wall_time),
        (WALL_TIME_S, lambda: ledger.change_sweep(wall_s=time.monotonic() - began)),
        (TICK_S, functools.partial(show_warnings, tracker, sweep.console)),
        (TICK_S, sweep.retention.drop_pending),
        (TICK_S, bound_own_logs),
        (TICK_S, imports.import_next),
        (sweep.console.draw_every_s, sweep.display.draw),
    ]
    polls: list[tuple[float, Chore]] = [(HEARTBEATS_S, sweep.search.heartbeats.update)]
    with contextlib.ExitStack() as stack:
        if sweep.plan.is_joined:
            polls.append((SLOTS_S, functools.partial(update_from_cluster, sweep.slots)))
            stack.enter_context(Housekeeping(polls, name="cluster"))
            polls = [(INTERVAL_S, HeadWatch(leave_without_head).check)]
        else:  # Before the calls into Ray, which would hang without it.
            polls.insert(0, (INTERVAL_S, OwnRayWatch(leave_without_own_ray).check))
        stack.enter_context(Housekeeping([*chores, *polls]))
        yield imports
