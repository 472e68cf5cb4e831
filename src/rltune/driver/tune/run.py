"""Have Tune run a sweep's trials and its certification's runs. Runs in the driver."""

from __future__ import annotations

import functools
import logging
import shutil
from collections.abc import Mapping
from typing import Any

from ray import tune
from ray.tune import Callback, CheckpointConfig, FailureConfig, PlacementGroupFactory, RunConfig, TuneConfig
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from rltune.checkpoints.clients import STORAGE_AWAY, StoreUnavailableError
from rltune.cluster.head import wait_for_head
from rltune.cluster.slots import find_nodes_to_avoid
from rltune.compat.tune_controller import adapt_tune
from rltune.config.budget import STEPS_SPENT
from rltune.driver.open_sweep import OpenSweep
from rltune.driver.tune.assignments import build_assignment
from rltune.driver.tune.proposals import SearchProposals
from rltune.driver.tune.recorder import Recorder
from rltune.driver.tune.scheduler import StoppingRuleScheduler
from rltune.driver.tune.searcher import BUNDLES, StageSearcher
from rltune.driver.tune.shares import Shares
from rltune.driver.tune.stages import Stage
from rltune.errors import StudyUnavailableError
from rltune.ledger.disk_full import DISK_FULL, is_disk_full, make_disk_full_error
from rltune.ledger.sweep_folder import make_resume_command
from rltune.records import TRIALS, TrialRecord
from rltune.trial.trainable import Trial

logger = logging.getLogger("rltune")
AVOIDED = "avoided_nodes"  # Beside a trial's assignment in Tune's config: ids of the nodes that it must not run on.


def run_trials(sweep: OpenSweep) -> None:
    """Run what is unfinished and what is still to be tried, then the certification's runs, until all have ended.

    Raises:
        LeaseLostError: Another driver has taken the sweep over.
        StudyUnavailableError: The disk is full, or the storage is away. The ledger holds what was reached.
    """
    stages, stopper, console, slots = _build_stages(sweep), sweep.stopper, sweep.console, sweep.slots
    scheduler = StoppingRuleScheduler(sweep.rule)
    shares = Shares(sweep.share, sweep.ledger)
    recorder = Recorder(
        stages,
        sweep.study,
        scheduler,
        sweep.tracker,
        stopper,
        sweep.config,
        sweep.store,
        sweep.retention,
        console.note,
        sweep.heartbeats.read,
        shares.enlarge,
        slots.place,
    )

    def assign(record: TrialRecord) -> dict[str, Any]:
        share = shares.of(record)
        if record.node:  # An earlier attempt may have left checkpoints that no report has named.
            sweep.retention.drop_unnamed([record])
        task = build_assignment(sweep.context, sweep.store, share, console.note, record).to_config()
        if share != sweep.share:
            task[BUNDLES] = share.bundles
        if hosts := recorder.attempts.find_hosts((record.kind, record.number)):
            task[AVOIDED] = find_nodes_to_avoid(hosts, share.bundles)
        return task

    def reopen_failed() -> None:
        again = sweep.inbox.reopen_failed(console.note)
        if any(record.kind == TRIALS for record in again):
            try:
                sweep.study.reconcile(sweep.ledger.trials.records())
            except Exception as error:
                recorder.excuse(error, "Optuna was not told what is tried again")
        for record in reversed(again):
            next(stage for stage in stages if stage.kind == record.kind).proposer.retry(record)

    searcher = StageSearcher(stages, slots, assign, stopper.is_requested, reopen_failed)
    _fit(sweep, searcher, scheduler, recorder)
    sweep.ledger.check_lease()
    if stopper.reason == DISK_FULL:
        raise make_disk_full_error(sweep.context.folder)
    if stopper.reason == STORAGE_AWAY:
        raise StudyUnavailableError(
            f"storage={sweep.config.storage}: {STORAGE_AWAY}; what was recorded before is whole",
            "a storage that the driver and every node can reach",
            make_resume_command(sweep.context.folder),
        )


def _build_stages(sweep: OpenSweep) -> list[Stage]:
    """Build the search's stage, and the certification's where something is certified."""
    trials = sweep.ledger.trials
    tell_spent = functools.cache(lambda: sweep.console.note(f"{STEPS_SPENT}: no further trial begins"))

    def is_spent() -> bool:
        if spent := sweep.stopper.has_spent_steps():
            tell_spent()
        return spent

    unfinished = [record for record in trials.records() if record.state == "RUNNING"]
    proposals = SearchProposals(sweep.plan, trials, sweep.study, unfinished, sweep.inbox, is_spent)
    stages = [Stage(trials, proposals)]
    if sweep.retraining:
        stages.append(Stage(sweep.ledger.runs, sweep.retraining))
    return stages


def _fit(sweep: OpenSweep, searcher: Searcher, scheduler: TrialScheduler, callback: Callback) -> None:
    """Run Tune until the searcher has nothing left or the stopper ends it; leave nothing of Tune's on disk."""
    stopper, scratch = sweep.stopper, sweep.context.folder / ".tune"
    joined = sweep.config.cluster.address is not None
    logging.getLogger(tune.run.__module__).setLevel(logging.CRITICAL)  # names, at its end, its own trials that failed
    logging.getLogger("ray.tune").propagate = False  # Its tracebacks belong into the sweep's log, not on the terminal.
    request = functools.partial(request_resources, sweep.share.bundles)
    trainable = tune.with_resources(sweep.context.trainable or Trial, request)
    tuner = tune.Tuner(
        trainable,
        tune_config=TuneConfig(
            search_alg=searcher,
            scheduler=scheduler,
            num_samples=-1,
            reuse_actors=True,
            trial_name_creator=_make_trial_name,
            trial_dirname_creator=_make_trial_name,
        ),
        run_config=RunConfig(
            name="tune",
            storage_path=str(scratch),
            callbacks=[callback],
            stop=stopper,
            verbose=0,
            progress_reporter=tune.CLIReporter(),  # silent, too; Tune's own choice in a notebook clears the cell
            failure_config=FailureConfig(max_failures=0),  # The recorder tries trials again.
            checkpoint_config=CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )
    try:
        with adapt_tune(one_process=not joined and len(sweep.share.bundles) == 1):
            tuner.fit()
    except KeyboardInterrupt:
        stopper.request("interrupted at once", 2)
    except Exception as error:
        if joined:
            wait_for_head()
        if stopper.lease_lost:  # whatever failed of it; `run_trials` says why
            logger.debug("trials were given up", exc_info=error)
        elif is_disk_full(error):
            stopper.request(DISK_FULL)
        elif isinstance(error, StoreUnavailableError):
            stopper.request(STORAGE_AWAY)
        else:
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def request_resources(common: list[dict[str, float]], config: Mapping[str, Any]) -> PlacementGroupFactory:
    """Request a trial's share of the machine, on none of the nodes that its config names.

    Tune asks for each trial, and gives it a process of another trial only where both request the same.
    """
    bundles = config.get(BUNDLES, common)
    if not (avoided := config.get(AVOIDED)):
        return PlacementGroupFactory(bundles)
    labels = {"ray.io/node-id": f"!in({','.join(avoided)})"}
    return PlacementGroupFactory(bundles, bundle_label_selector=[labels for _ in bundles])


def _make_trial_name(trial: Any) -> str:
    return f"trial-{trial.config['assignment']['number']:03d}-{trial.trial_id}"
