"""Open the study, trackers and console that a driver needs, and close them and the ledger whatever happens."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Iterator

from rltune.certification.retraining import Retraining
from rltune.checkpoints.clients import QUICK_S
from rltune.checkpoints.retention import Retention
from rltune.cluster.ray_cluster import bound_own_logs
from rltune.cluster.resources import Share
from rltune.cluster.slots import Slots, update_from_cluster
from rltune.config.budget import SpentBudget
from rltune.driver.background_imports import NEEDED_AT_END, ImportAhead
from rltune.driver.display import Display, Heartbeats
from rltune.driver.housekeeping import Housekeeping
from rltune.driver.plan import Invocation, Plan
from rltune.driver.requests.inbox import Inbox, reopen_failed
from rltune.driver.stopper import SweepStopper
from rltune.driver.trackers import open_trackers
from rltune.ledger.lease import RENEW_S
from rltune.ledger.ledger import Ledger
from rltune.ledger.optuna_study import OptunaStudy
from rltune.records import WHOLE_BUDGET
from rltune.search.sampler_view import choose_view
from rltune.search.schedulers import Stop, StoppingRule, replay_reports
from rltune.views.console import Console

FLUSH_S = 20.0  # How long the end of a sweep deletes checkpoints at most; the next driver deletes the rest.
TICK_S = 0.5  # Seconds between two runs of a fast chore.
INBOX_S = 1.0
HEARTBEATS_S = SLOTS_S = 2.0
WALL_TIME_S = 5.0


class OpenSweep:
    """A sweep in its driver, with open ledger, study, trackers and console.

    Args:
        plan: The sweep's plan; its folder exists.
        invocation: How the driver was called.
        ledger: The sweep's ledger, the source of truth; this driver holds its lease.
        share: A trial's share of the machine.
        slots: How many trials run at once.

    Attributes:
        name, folder: As those of ``plan``.
        store: Holds the checkpoints.
        rule: Stops weak trials; it has seen the reports of earlier drivers.
        retention: Drops the checkpoints that nobody needs any more.
        study: Optuna's study, derived from the ledger.
        stopper: Ends the sweep early.
        retraining: The certification's runs; None if nothing is certified.
        tracker: Delivers the sweep to its trackers.
        heartbeats: The progress of the running trials between two reports.
        console: Shows the sweep to the user.
        display: Draws the sweep on the console.
        inbox: The requests to the sweep.
        housekeeping: Runs the driver's chores.
        ending: Held from the beginning of the sweep's end on, see `rltune.driver.end`.
        ended: Set when the main thread has come to the end of it.

    Raises:
        StudyError: The ledger or Optuna's study cannot be read.
    """

    def __init__(self, plan: Plan, invocation: Invocation, ledger: Ledger, share: Share, slots: Slots) -> None:
        self.plan, self.invocation, self.ledger, self.share, self.slots = plan, invocation, ledger, share, slots
        self.name, self.folder = plan.name, plan.folder
        self.ending, self.ended = threading.Lock(), threading.Event()
        self.store, self.rule = plan.open_store(), plan.stopping_rule()
        self.retention = Retention(self.store, ledger.require_ownership)
        self._earlier_wall_s = ledger.sweep().wall_s
        ledger.judge_by(plan.criteria)
        if plan.resumed:
            self._recover()
        self.study = self._open_study()
        records, replicates = ledger.trials.records(), plan.build.replicates
        spent_steps = replicates * sum(record.env_steps for record in records)
        self.stopper = SweepStopper(self.store, plan.budget, spent_steps, ledger.lease, waits_for_nodes=plan.is_joined)
        self.retraining = None
        if plan.certify.seeds:
            seeds, env_steps = plan.certification_seeds(), plan.budget.env_steps
            self.retraining = Retraining(self.store, plan.certify, env_steps, replicates, seeds, plan.baseline, ledger)
        self.tracker = open_trackers(plan, ledger, self.store, self.stopper.is_urgent)
        self.heartbeats = Heartbeats(str(self.folder), self.stopper.active_trial_dirs)
        self.console = Console(invocation.stream)
        self.display = Display(ledger, self.console, slots, self.heartbeats)
        self.inbox = Inbox(ledger, self.stopper)
        self.housekeeping = Housekeeping()
        self._add_chores()

    def note_wall_time(self) -> float:
        """Write into the ledger how many seconds the sweep's drivers took so far, and return it."""
        wall_s = self._earlier_wall_s + time.monotonic() - self.invocation.began
        self.ledger.change_sweep(wall_s=wall_s)
        return wall_s

    def compute_spent(self, num_trials: int) -> SpentBudget:
        """Return how much of the budget the search has used, with its number of trials."""
        return SpentBudget(self.plan.budget, self.plan.build.replicates, num_trials, self.stopper.env_steps)

    def is_certified(self) -> bool:
        """Whether all certification runs have ended; also True without certification."""
        return self.retraining is None or self.retraining.is_done(self.ledger.trials.records())

    def _recover(self) -> None:
        """At a resume, update the trials in the ledger, and drop checkpoints that a killed driver did not record."""
        notes = recover_trials(self.ledger, self.rule, self.plan.budget.env_steps)
        self.plan = self.plan.with_notes(*notes)
        # A killed driver may have saved checkpoints without recording them in the ledger.
        self.retention.drop_unnamed([*self.ledger.trials.records(), *self.ledger.runs.records()])

    def _open_study(self) -> OptunaStudy:
        view = choose_view(self.plan.traits, has_constraints=bool(self.plan.criteria.constraints))
        return OptunaStudy(self.ledger.trials, view, self.plan.space.distributions(), self.plan.earlier)

    def _add_chores(self) -> None:
        """Add the periodic functions that run from the sweep's start to its end."""
        spent_steps = self.stopper.env_steps

        def is_time_to_import() -> bool:
            # Not while trackers open, which imports MLflow: imports in two threads of one process slow each other down.
            return self.stopper.env_steps > spent_steps and not self.tracker.opening

        imports = ImportAhead((*self.plan.traits.imports, *NEEDED_AT_END), is_time_to_import)
        self.housekeeping.add(RENEW_S, self.ledger.has_lost_ownership)
        self.housekeeping.add(INBOX_S, self.inbox.read)
        self.housekeeping.add(TICK_S, self.stopper.check_wall_time)
        self.housekeeping.add(WALL_TIME_S, self.note_wall_time)
        self.housekeeping.add(TICK_S, self.show_warnings)
        self.housekeeping.add(TICK_S, self.retention.drop_pending)
        self.housekeeping.add(TICK_S, bound_own_logs)
        self.housekeeping.add(TICK_S, imports.import_next)
        if not self.plan.is_joined:
            self.housekeeping.add(HEARTBEATS_S, self.heartbeats.update)

    def show_warnings(self) -> None:
        """Print new warnings of the trackers on the console."""
        for warning in self.tracker.warnings():
            self.console.note(warning)


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
                table.interrupt(record.number)  # The trial counts as interrupted until a worker continues it.
    return notes


@contextlib.contextmanager
def open_sweep(plan: Plan, invocation: Invocation, ledger: Ledger, share: Share, slots: Slots) -> Iterator[OpenSweep]:
    """Open a sweep, and at the end of the context leave no MLflow run in the state RUNNING and no connection open.

    If the lease is lost, another driver works on the sweep, and everything that both of them use is left as it is.

    Args:
        plan: As for `OpenSweep`.
        invocation: As for `OpenSweep`.
        ledger: As for `OpenSweep`.
        share: As for `OpenSweep`.
        slots: As for `OpenSweep`.
    """
    sweep = OpenSweep(plan, invocation, ledger, share, slots)
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
                if ledger.has_lost_ownership():
                    sweep.tracker.abandon()
                else:
                    # This has no effect after a proper end, which has already closed the trackers.
                    sweep.tracker.close(status, timeout_s=5.0)
    finally:
        sweep.retention.drop_pending(QUICK_S if sweep.stopper.is_urgent() else FLUSH_S)
        ledger.close()
        sweep.stopper.clear()


def _watch_cluster(sweep: OpenSweep) -> contextlib.AbstractContextManager[object]:
    """Poll a joined cluster for changes in a separate thread, because calls hang for a minute without its head."""
    if not sweep.plan.is_joined:
        return contextlib.nullcontext()
    update_slots = functools.partial(update_from_cluster, sweep.slots)
    return Housekeeping([(HEARTBEATS_S, sweep.heartbeats.update), (SLOTS_S, update_slots)], name="cluster")
