"""Open all that a driver needs while a sweep runs, and close it whatever happens. Runs in the driver."""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from rltune.certification.retraining import Retraining
from rltune.certification.selection import FinalEvaluation
from rltune.checkpoints.clients import QUICK_S
from rltune.checkpoints.handover import is_taken_over
from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import Store
from rltune.cluster.background_imports import NEEDED_AT_END, NEEDED_BY_FOREST, ImportAhead
from rltune.cluster.resources import Share
from rltune.cluster.slots import Slots, update_from_cluster
from rltune.config.schema import MLFLOW, RunConfig
from rltune.driver.context import SweepContext
from rltune.driver.display import Display
from rltune.driver.housekeeping import Housekeeping
from rltune.driver.plan import Plan
from rltune.driver.requests.inbox import Inbox, reopen_failed
from rltune.driver.stopper import SweepStopper
from rltune.driver.tune.heartbeats import Heartbeats
from rltune.envs.objective import Objective
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import OptunaStudy, open_optuna_study
from rltune.ledger.storage import STUDY, make_storage_url, save_copy
from rltune.ledger.sweep_folder import make_distant_ledger_error
from rltune.records import WHOLE_BUDGET
from rltune.search.samplers import name_sampler
from rltune.search.schedulers import ByAllReports, Stop, StoppingRule, build_stopping_rule, replay_reports
from rltune.search.views import choose_view, heeds_constraints, tell_broken_as_diverged
from rltune.tracking.callbacks import CallbackTracker
from rltune.tracking.feed import Feeds
from rltune.tracking.mlflow_tracker import MLflowTracker
from rltune.tracking.tensorboard import TensorBoardTracker
from rltune.tracking.tracker import Tracker, TrackingSettings, import_tracker
from rltune.tracking.wandb_runs import WandbTracker
from rltune.views.console import Console

FLUSH_S = 20.0  # How long the end of a sweep drops checkpoints at most; the next driver drops the rest.
TICK_S = 0.5  # The pause between two runs of a chore that takes no time.
INBOX_S = 1.0
HEARTBEATS_S = SLOTS_S = 2.0


@dataclass(frozen=True)
class OpenSweep:
    """A sweep whose ledger, study, tracker and console are open.

    Attributes:
        context: What the driver works on.
        share: A trial's share of the machine.
        slots: How many trials run at once.
        ledger: The sweep's ledger, the source of truth.
        store: Holds the checkpoints.
        housekeeping: Runs the driver's chores.
        retention: Drops the checkpoints that nobody needs any more.
        study: Optuna's study, derived from the ledger.
        stopper: Ends the sweep early.
        rule: Stops weak trials; it has seen the reports of earlier drivers.
        retraining: The certification's runs; None if nothing is certified.
        final_evaluation: Chooses the winner if nothing is certified.
        tracker: Delivers the sweep to its trackers.
        console: Shows the sweep to the user.
        display: Draws the sweep on the console.
        inbox: The requests to the sweep.
        heartbeats: How far the running trials are between two reports.
        ending: Held from the beginning of the sweep's end on, see `rltune.driver.end`.
        ended: Set when the main thread has come to the end of it.
    """

    context: SweepContext
    share: Share
    slots: Slots
    ledger: Ledger
    store: Store
    housekeeping: Housekeeping
    retention: Retention
    study: OptunaStudy
    stopper: SweepStopper
    rule: StoppingRule
    retraining: Retraining | None
    final_evaluation: FinalEvaluation
    tracker: Feeds
    console: Console
    display: Display
    inbox: Inbox
    heartbeats: Heartbeats
    ending: threading.Lock = field(default_factory=threading.Lock)
    ended: threading.Event = field(default_factory=threading.Event)

    @property
    def plan(self) -> Plan:
        """What is run."""
        return self.context.plan

    @property
    def name(self) -> str:
        """The sweep's name."""
        return self.context.name

    @property
    def folder(self) -> Path:
        """The sweep's folder."""
        return self.context.folder

    @property
    def config(self) -> RunConfig:
        """The request."""
        return self.context.plan.config

    @property
    def objective(self) -> Objective:
        """What its scores measure."""
        return self.plan.objective

    def is_certified(self) -> bool:
        """Whether certification has nothing left to train."""
        return self.retraining is None or self.retraining.is_done(self.ledger.trials.records())

    def close_ledger(self) -> None:
        """Close ledger and study, and keep the ledger's copy."""
        self.study.close()
        self.ledger.close()
        if self.ledger.lease is None or not self.ledger.lease.is_lost:
            save_copy(self.context.folder)


@contextlib.contextmanager
def open_sweep(context: SweepContext, ledger: Ledger, share: Share, slots: Slots) -> Iterator[OpenSweep]:
    """Open a sweep; leave no run RUNNING and no connection open, whatever happens.

    If the lease is lost, another driver works on the sweep, and everything that both of them use is left as it is.

    Args:
        context: What the driver works on; its folder exists.
        ledger: The sweep's ledger, whose lease this driver holds.
        share: A trial's share of the machine.
        slots: How many trials run at once.

    Raises:
        StudyError: The ledger or Optuna's study cannot be read.
    """
    sweep = _open(context, ledger, share, slots)
    status = "KILLED"
    try:
        with sweep.housekeeping, _watch_cluster(sweep):
            try:
                yield sweep
            except Exception:
                status = "FAILED"
                raise
            finally:
                sweep.console.close()
                if ledger.has_lost_lease():
                    sweep.tracker.abandon()
                else:
                    sweep.tracker.close(status, timeout_s=5.0)  # This has no effect after a sweep's proper end.
    finally:
        sweep.retention.drop_pending(QUICK_S if sweep.stopper.is_urgent() else FLUSH_S)
        sweep.close_ledger()
        sweep.stopper.clear()


def _open(context: SweepContext, ledger: Ledger, share: Share, slots: Slots) -> OpenSweep:
    plan, config, folder = context.plan, context.plan.config, context.folder
    direction = plan.criteria.direction
    rule = build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps, direction)
    if plan.criteria.scored is None:
        rule = ByAllReports(rule)
    store = context.open_store()
    ledger.judge_by(plan.criteria)
    retention = Retention(store, functools.partial(_check_ownership, store, ledger))
    if context.resumed:
        save_copy(folder)
        notes = list(plan.notes)
        reopen_failed(ledger, notes.append)
        context = replace(context, plan=replace(plan, notes=tuple(notes)))
        _end_unfinished(rule, ledger, config.budget.env_steps)
        _interrupt_unfinished(ledger)
        # A driver that was killed may have left checkpoints that it had not dropped yet.
        retention.drop_unnamed([*ledger.trials.records(), *ledger.runs.records()])
    records = ledger.trials.records()
    searcher = config.searcher
    view = choose_view(searcher.kind, searcher.view)
    if plan.criteria.constraints and not heeds_constraints(searcher.kind):
        view = tell_broken_as_diverged(view)
    study = open_optuna_study(
        make_storage_url(config.study.storage, folder, STUDY),
        ledger.name,
        view,
        plan.space.distributions(),
        records,
        own_file=None if config.study.storage else folder / STUDY,
        shared=context.is_folder_shared(),
        earlier=plan.earlier,
        direction=direction,
    )
    console = Console(context.stream)
    certify = config.certify
    # Where all of a training counts, episodes at its end choose none: the search's best is measured alone.
    top = certify.top if plan.criteria.scored else min(1, certify.top)
    retraining = None
    if certify.seeds:
        retraining = Retraining(folder, config, plan.certification_seeds(), plan.warm_starts, ledger)
    stopper = SweepStopper(store, config, config.replicates * sum(record.env_steps for record in records))
    if ledger.lease:
        ledger.lease.on_lost, stopper.is_lease_held = stopper.lose_lease, ledger.lease.is_held
        if ledger.lease.is_lost:
            stopper.lose_lease()
    tracker = _open_trackers(context, ledger, stopper)
    heartbeats = Heartbeats(str(folder), stopper.live)
    sweep = OpenSweep(
        context=context,
        share=share,
        slots=slots,
        ledger=ledger,
        store=store,
        housekeeping=Housekeeping(),
        retention=retention,
        study=study,
        stopper=stopper,
        rule=rule,
        retraining=retraining,
        final_evaluation=FinalEvaluation(
            folder, top, certify.champion_episodes, slots.count, context.call_aside, plan.objective
        ),
        tracker=tracker,
        console=console,
        display=Display(ledger, console, slots, heartbeats.read),
        inbox=Inbox(ledger, stopper),
        heartbeats=heartbeats,
    )
    _add_chores(sweep)
    return sweep


def _add_chores(sweep: OpenSweep) -> None:
    """Add the chores of every phase of a sweep."""
    spent_steps, is_forest = sweep.stopper.env_steps, name_sampler(sweep.config.searcher.kind) == "rf"

    def is_time_to_import() -> bool:
        # One import after the other: the threads of one process share its time.
        return sweep.stopper.env_steps > spent_steps and not sweep.tracker.opening

    def show_warnings() -> None:
        for warning in sweep.tracker.warnings():
            sweep.console.note(warning)

    imports = ImportAhead((*(NEEDED_BY_FOREST if is_forest else ()), *NEEDED_AT_END), is_time_to_import)
    sweep.housekeeping.add(INBOX_S, sweep.inbox.read)
    sweep.housekeeping.add(TICK_S, sweep.stopper.check_wall_time)
    sweep.housekeeping.add(TICK_S, show_warnings)
    sweep.housekeeping.add(TICK_S, sweep.retention.drop_pending)
    sweep.housekeeping.add(TICK_S, imports.import_next)
    if sweep.config.cluster.address is None:
        sweep.housekeeping.add(HEARTBEATS_S, sweep.heartbeats.update)


def _watch_cluster(sweep: OpenSweep) -> contextlib.AbstractContextManager[object]:
    """Ask a joined Ray what has changed, in a thread of its own: without its head, each question takes a minute."""
    if sweep.config.cluster.address is None:
        return contextlib.nullcontext()
    update_slots = functools.partial(update_from_cluster, sweep.slots)
    return Housekeeping([(HEARTBEATS_S, sweep.heartbeats.update), (SLOTS_S, update_slots)], name="cluster")


def _check_ownership(store: Store, ledger: Ledger) -> None:
    """Refuse to go on where another driver has the sweep, even one that goes on with a copy of the ledger.

    Raises:
        StudyError: Another driver has taken the sweep over. Or the storage cannot be used.
    """
    ledger.check_lease()
    if ledger.lease and is_taken_over(store, ledger.lease.id):
        raise make_distant_ledger_error(store.folder)


def _end_unfinished(rule: StoppingRule, ledger: Ledger, env_steps: int) -> None:
    """End the trials whose last report ended them when their driver was killed, and replay all reports to the rule.

    A report is committed before its consequences. If such a trial went on, then one that had to stop at a rung would be
    let through, and one with its whole budget would train the steps since its last checkpoint again.

    Args:
        rule: The sweep's stopping rule, a new one.
        ledger: The sweep's ledger.
        env_steps: A trial's whole budget, in environment steps.
    """
    decisions = replay_reports(rule, ledger.trials.read_curves())
    for record in ledger.trials.records():
        decision = decisions.get(record.number)
        if record.state != "RUNNING" or decision is None:
            continue
        if isinstance(decision, Stop):
            ledger.trials.end(record.number, "PRUNED", decision.reason)
        elif max(record.reports) >= env_steps and record.score is not None:
            ledger.trials.end(record.number, "COMPLETE", WHOLE_BUDGET)


def _interrupt_unfinished(ledger: Ledger) -> None:
    """Mark what a killed driver has left unfinished as interrupted, until a worker goes on with it."""
    for table in (ledger.trials, ledger.runs):
        for record in table.records():
            if record.state == "RUNNING" and not record.stop_reason:
                table.interrupt(record.number)


def _open_trackers(context: SweepContext, ledger: Ledger, stopper: SweepStopper) -> Feeds:
    config, folder = context.plan.config, context.folder
    kind = config.tracking.kind
    experiment = config.tracking.experiment or config.env.name
    settings = TrackingSettings(config.tracking.uri, experiment, context.name, folder)
    mlflow = MLflowTracker(settings, ledger) if kind in MLFLOW else None
    trackers: list[Tracker] = [mlflow] if mlflow else []
    if kind == "wandb":
        trackers.append(WandbTracker(settings))
    elif ":" in kind:
        trackers.append(import_tracker(kind)(settings))
    if config.tracking.tensorboard:
        trackers.append(TensorBoardTracker(settings))
    if config.callbacks:
        trackers.append(CallbackTracker(settings, config.callbacks))
    return Feeds(ledger, folder, trackers, mlflow, stopper.is_urgent)
