"""Open all that a driver needs while a sweep runs, and close it whatever happens. Runs in the driver."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from rltune.certification.retraining import Retraining
from rltune.certification.selection import FinalEvaluation
from rltune.cluster.resources import Share
from rltune.config.schema import RunConfig
from rltune.reporting.console import Console
from rltune.search.schedulers import StoppingRule, build_stopping_rule
from rltune.study.record import TrialRecord
from rltune.study.storage import open_ledger, save_copy
from rltune.study.study import Study
from rltune.sweep.context import SweepContext
from rltune.sweep.plan import Plan, tracking_uri_of
from rltune.sweep.stopper import SweepStopper
from rltune.sweep.tune.assignments import build_assignment
from rltune.tracking.tracker import MLflowTracker, NoTracker, Tracker, TrackingSettings


@dataclass(frozen=True)
class OpenSweep:
    """A sweep whose ledger, tracker and console are open.

    Attributes:
        context: What the driver works on.
        share: A trial's share of the machine.
        study: The ledger.
        stopper: Ends the sweep early.
        rule: Stops weak trials, with the reports of earlier drivers replayed; None runs every trial to its end.
        unfinished: Trials that an earlier driver left RUNNING.
        retraining: The certification's runs; None where nothing is certified.
        final_evaluation: What chooses the winner where nothing is certified.
        tracker: MLflow, or nothing.
        console: What a person watches.
    """

    context: SweepContext
    share: Share
    study: Study
    stopper: SweepStopper
    rule: StoppingRule | None
    unfinished: list[TrialRecord]
    retraining: Retraining | None
    final_evaluation: FinalEvaluation
    tracker: Tracker
    console: Console

    @property
    def plan(self) -> Plan:
        """What is run."""
        return self.context.plan

    @property
    def config(self) -> RunConfig:
        """The request."""
        return self.context.plan.config

    def is_searched(self) -> bool:
        """Whether the search's budget of trials is spent and none of them is unfinished."""
        return not self.unfinished and self.study.num_trials >= self.config.budget.trials

    def is_certified(self) -> bool:
        """Whether certification has nothing left to train."""
        return self.retraining is None or self.retraining.is_done(self.study.trials())


@contextlib.contextmanager
def open_sweep(context: SweepContext, share: Share) -> Iterator[OpenSweep]:
    """Open a sweep; leave no run RUNNING and no connection open, whatever happens.

    Args:
        context: What the driver works on; its folder is there and claimed.
        share: A trial's share of the machine.

    Raises:
        StudyError: The ledger is missing, damaged, or of another sweep.
    """
    sweep = _open(context, share)
    status = "KILLED"
    try:
        yield sweep
    except Exception:
        status = "FAILED"
        raise
    finally:
        sweep.console.stop()
        sweep.tracker.close(status, timeout_s=5.0)  # without effect after a sweep's proper end
        sweep.stopper.clear()
        sweep.final_evaluation.close()
        if sweep.retraining:
            sweep.retraining.close()
        sweep.study.close()
        save_copy(context.folder)


def _open(context: SweepContext, share: Share) -> OpenSweep:
    plan, config, folder = context.plan, context.plan.config, context.folder
    rule = build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    study = open_ledger(config.study.storage, folder, new=not context.resumed)
    if context.resumed:
        save_copy(folder)
    records = study.trials()
    stopper = SweepStopper(folder, config, config.replicates * sum(record.env_steps for record in records))
    if rule:
        rule.replay((record.number, record.reports) for record in records)
    console = Console(
        name=context.name,
        num_trials=config.budget.trials,
        env_steps=config.budget.env_steps,
        slots=share.slots,
        stream=context.stream,
    )
    certify = config.certify
    retraining = None
    if certify.seeds:
        assign = functools.partial(build_assignment, context, share, console.note)
        retraining = Retraining(folder, config, plan.certification_seeds(), plan.warm_starts, assign)
    return OpenSweep(
        context=context,
        share=share,
        study=study,
        stopper=stopper,
        rule=rule,
        unfinished=[record for record in records if record.state == "RUNNING"],
        retraining=retraining,
        final_evaluation=FinalEvaluation(
            folder, certify.top, certify.champion_episodes, share.slots, context.call_aside
        ),
        tracker=_open_tracker(context, functools.partial(_note_mlflow_run, study, retraining)),
        console=console,
    )


def _open_tracker(context: SweepContext, on_run: Callable[[int | str | None, str], None]) -> Tracker:
    config = context.plan.config
    if config.tracking.kind == "off":
        return NoTracker()
    settings = TrackingSettings(
        uri=tracking_uri_of(config),
        experiment=config.tracking.experiment or config.env.name,
        sweep=context.name,
        spool_dir=context.folder / ".spool",
    )
    return MLflowTracker(settings, on_run)


def _note_mlflow_run(study: Study, retraining: Retraining | None, key: int | str | None, run_id: str) -> None:
    """Keep the id of an MLflow run with what it shows; called from the tracker's thread.

    Args:
        study: The ledger.
        retraining: The certification's runs.
        key: A trial's number, the name of a certification's run, or None for the sweep itself.
        run_id: MLflow's.
    """
    if key is None:
        study.set_attribute("mlflow_run_id", run_id)
    elif isinstance(key, int):
        study.note_run(key, run_id)
    elif retraining:
        retraining.note_mlflow_run(key, run_id)
