"""Run the search's trials and the certification runs with Ray Tune. Runs in the driver."""

from __future__ import annotations

import functools
import logging
import shutil
from typing import Any

from ray import tune
from ray.tune import CheckpointConfig, FailureConfig, RunConfig, TuneConfig, Tuner

from rltune.checkpoints.clients import STORAGE_AWAY, StoreUnavailableError
from rltune.cluster.head import wait_for_head
from rltune.cluster.resources import Share, request_resources
from rltune.compat.tune_controller import adapt_tune
from rltune.driver.plan import Plan
from rltune.driver.stopper import SweepStopper
from rltune.driver.sweep import Sweep
from rltune.driver.tune.assignments import Assignments
from rltune.driver.tune.attempts import Attempts
from rltune.driver.tune.proposals import SearchProposals, Stage
from rltune.driver.tune.recorder import Recorder
from rltune.driver.tune.scheduler import StoppingRuleScheduler
from rltune.driver.tune.searcher import StageSearcher
from rltune.errors import StudyUnavailableError
from rltune.ledger.disk_full import DISK_FULL, is_disk_full, make_disk_full_error
from rltune.ledger.sweep_folder import make_resume_command
from rltune.trial.shared_store import name_token
from rltune.trial.trainable import Trial

logger = logging.getLogger("rltune")


def run_trials(sweep: Sweep) -> None:
    """Run the remaining trials of the search, then the certification runs, until all have ended.

    Raises:
        LeaseLostError: Another driver has taken the sweep over.
        StudyUnavailableError: The disk is full, or the storage is away. The ledger holds what was reached.
    """
    plan, ledger, stopper, search = sweep.plan, sweep.ledger, sweep.stopper, sweep.search
    note, failures = sweep.console.note, plan.failures
    stages: list[Stage] = [SearchProposals(plan, ledger.trials, search.study, search.inbox, stopper, note)]
    if sweep.retraining:
        stages.append(sweep.retraining)
    attempts = Attempts(failures.max_retries, failures.stop_after, may_lose_nodes=plan.is_joined)
    token = name_token(ledger.lease.id) if plan.is_joined and ledger.lease else None
    assignments = Assignments(plan, search.share, sweep.store, note, token)
    scheduler = StoppingRuleScheduler(search.rule)
    recorder = Recorder(sweep, stages, scheduler, attempts, assignments)
    searcher = StageSearcher(stages, assignments, sweep.slots, search.inbox, stopper, note)
    request = functools.partial(request_resources, search.share)
    tuner = Tuner(
        tune.with_resources(sweep.invocation.trainable or Trial, request),
        tune_config=TuneConfig(
            search_alg=searcher,
            scheduler=scheduler,
            num_samples=-1,
            reuse_actors=False,
            trial_name_creator=_make_trial_name,
            trial_dirname_creator=_make_trial_name,
        ),
        run_config=RunConfig(
            name="tune",
            storage_path=str(plan.folder / ".tune"),
            callbacks=[recorder],
            stop=stopper,
            verbose=0,
            # The default reporter would clear a notebook's cell even with verbose=0; CLIReporter prints nothing.
            progress_reporter=tune.CLIReporter(),
            failure_config=FailureConfig(max_failures=0),  # Not Tune but the recorder retries trials.
            checkpoint_config=CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )
    _fit(tuner, plan, search.share, stopper)
    ledger.require_ownership()
    if stopper.reason == DISK_FULL:
        raise make_disk_full_error(plan.folder)
    if stopper.reason == STORAGE_AWAY:
        raise StudyUnavailableError(
            f": {STORAGE_AWAY}; everything recorded before is kept",
            "a storage that the driver and every node can reach",
            make_resume_command(plan.folder),
            key="storage",
            value=plan.settings["storage"],
        )


def _fit(tuner: Tuner, plan: Plan, share: Share, stopper: SweepStopper) -> None:
    """Run Tune until the searcher has no more trials or the stopper ends the sweep; delete Tune's files."""
    logging.getLogger(tune.run.__module__).setLevel(logging.CRITICAL)  # Otherwise Tune lists failed trials as it ends.
    # Tune's tracebacks go to the sweep's log, not to the terminal.
    logging.getLogger("ray.tune").propagate = False
    try:
        with adapt_tune(not plan.is_joined and len(share.bundles) == 1, stopper.is_urgent):
            tuner.fit()
    except KeyboardInterrupt:
        stopper.request("interrupted at once", 2)
    except Exception as error:
        if plan.is_joined:
            wait_for_head()
        if stopper.lease_lost:  # Any error may follow a lost lease, which `run_trials` reports.
            logger.debug("trials were given up", exc_info=error)
        elif is_disk_full(error):
            stopper.request(DISK_FULL)
        elif isinstance(error, StoreUnavailableError):
            stopper.request(STORAGE_AWAY)
        else:
            raise
    finally:
        shutil.rmtree(plan.folder / ".tune", ignore_errors=True)


def _make_trial_name(trial: Any) -> str:
    return f"trial-{trial.config['assignment']['number']:03d}-{trial.trial_id}"
