"""Open all that a driver needs while a sweep runs, and close it whatever happens. Runs in the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from rltune.certification.retraining import Retraining
from rltune.certification.selection import FinalEvaluation
from rltune.cluster.resources import Share
from rltune.config.schema import RunConfig
from rltune.reporting.console import Console
from rltune.search.schedulers import StoppingRule, build_stopping_rule
from rltune.search.views import choose_view
from rltune.study.ledger import Ledger
from rltune.study.optuna_study import OptunaStudy, open_optuna_study
from rltune.study.storage import STUDY, make_storage_url, save_copy, start_ledger
from rltune.sweep.context import SweepContext
from rltune.sweep.plan import Plan, tracking_uri_of
from rltune.sweep.stopper import SweepStopper
from rltune.tracking.tracker import MLflowTracker, NoTracker, Tracker, TrackingSettings


@dataclass(frozen=True)
class OpenSweep:
    """A sweep whose ledger, study, tracker and console are open.

    Attributes:
        context: What the driver works on.
        share: A trial's share of the machine.
        ledger: The one truth.
        study: Optuna's, which agrees with it.
        stopper: Ends the sweep early.
        rule: Stops weak trials, with the reports of earlier drivers replayed.
        retraining: The certification's runs; None where nothing is certified.
        final_evaluation: What chooses the winner where nothing is certified.
        tracker: MLflow, or nothing.
        console: What a person watches.
    """

    context: SweepContext
    share: Share
    ledger: Ledger
    study: OptunaStudy
    stopper: SweepStopper
    rule: StoppingRule
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
        ended = sum(record.state != "RUNNING" for record in self.ledger.trials.records())
        return ended == self.ledger.trials.num_trials >= self.config.budget.trials

    def is_certified(self) -> bool:
        """Whether certification has nothing left to train."""
        return self.retraining is None or self.retraining.is_done(self.ledger.trials.records())


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
        sweep.study.close()
        sweep.ledger.close()
        save_copy(context.folder)


def _open(context: SweepContext, share: Share) -> OpenSweep:
    plan, config, folder = context.plan, context.plan.config, context.folder
    rule = build_stopping_rule(config.scheduler.kind, config.scheduler.args, config.budget.env_steps)
    ledger = start_ledger(config.study.storage, folder, new=not context.resumed)
    if context.resumed:
        save_copy(folder)
    records = ledger.trials.records()
    rule.replay(records)
    searcher = config.searcher
    study = open_optuna_study(
        make_storage_url(config.study.storage, folder, STUDY),
        ledger.name,
        choose_view(searcher.kind, searcher.view),
        plan.space.distributions(),
        records,
        own_file=None if config.study.storage else folder / STUDY,
    )
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
        retraining = Retraining(folder, config, plan.certification_seeds(), plan.warm_starts, ledger)
    return OpenSweep(
        context=context,
        share=share,
        ledger=ledger,
        study=study,
        stopper=SweepStopper(folder, config, config.replicates * sum(record.env_steps for record in records)),
        rule=rule,
        retraining=retraining,
        final_evaluation=FinalEvaluation(
            folder, certify.top, certify.champion_episodes, share.slots, context.call_aside
        ),
        tracker=_open_tracker(context, ledger),
        console=console,
    )


def _open_tracker(context: SweepContext, ledger: Ledger) -> Tracker:
    config = context.plan.config
    if config.tracking.kind == "off":
        return NoTracker()
    settings = TrackingSettings(
        uri=tracking_uri_of(config),
        experiment=config.tracking.experiment or config.env.name,
        sweep=context.name,
        folder=context.folder,
    )
    return MLflowTracker(settings, ledger)
