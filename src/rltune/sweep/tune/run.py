"""Have Tune run a sweep's trials and its certification's runs. Runs in the driver."""

from __future__ import annotations

import functools
import os
import shutil
from collections.abc import Callable
from typing import Any

from ray import tune
from ray.tune import Callback, CheckpointConfig, FailureConfig, PlacementGroupFactory, RunConfig, TuneConfig
from ray.tune.schedulers import TrialScheduler
from ray.tune.search import Searcher

from rltune.cluster.shared_storage import not_shared
from rltune.compat.tune_controller import adapt_tune
from rltune.study.disk_full import DISK_FULL, is_disk_full, make_disk_full_error
from rltune.study.record import TrialRecord
from rltune.sweep.open_sweep import OpenSweep
from rltune.sweep.tune.assignments import build_assignment
from rltune.sweep.tune.certification_stage import EventRouter, RunRecorder, StagedSearcher
from rltune.sweep.tune.recorder import Recorder
from rltune.sweep.tune.scheduler import StoppingRuleScheduler
from rltune.sweep.tune.searcher import SearchPlan, StudySearcher
from rltune.trial.trainable import Trial


def run_trials(sweep: OpenSweep) -> None:
    """Run what is unfinished and what is still to be tried, then the certification's runs, until all have ended.

    Raises:
        StudyError: The disk is full, or a node does not see the sweep's folder. The ledger holds what was reached.
    """
    scheduler = StoppingRuleScheduler(sweep.rule)
    searcher = _build_searcher(sweep)
    recorder = Recorder(
        sweep.study, sweep.tracker, sweep.console, scheduler, sweep.stopper, sweep.config, retry=searcher.retry
    )
    if sweep.retraining:
        staged = StagedSearcher(searcher, sweep.retraining, sweep.share.slots, sweep.stopper.is_requested)
        # Made at the first run: it opens the certification study.
        make_runs = functools.partial(
            RunRecorder, sweep.retraining, sweep.tracker, sweep.console, sweep.stopper, sweep.config
        )
        _fit(sweep, staged, scheduler, EventRouter(recorder, make_runs))
    else:
        _fit(sweep, searcher, scheduler, recorder)
    if sweep.stopper.reason == DISK_FULL:
        raise make_disk_full_error(sweep.context.folder)
    for path, node in sweep.stopper.lost.items():
        raise not_shared(sweep.context.folder, node, path)


def _build_searcher(sweep: OpenSweep) -> StudySearcher:
    plan = SearchPlan(
        num_trials=sweep.config.budget.trials,
        slots=sweep.share.slots,
        warm_starts=sweep.plan.warm_starts,
        unfinished=sweep.unfinished,
        seeds=sweep.plan.seeds,
        sampler=sweep.plan.sampler,
    )

    def assign(record: TrialRecord) -> dict[str, Any]:
        return build_assignment(sweep.context, sweep.share, sweep.console.note, record).to_config()

    def begin_evaluation() -> None:
        sweep.final_evaluation.begin(sweep.study.trials())

    on_idle: Callable[[], None] | None = None if sweep.retraining else begin_evaluation
    return StudySearcher(sweep.study, sweep.plan.space, plan, assign, sweep.stopper.is_requested, on_idle)


def _fit(sweep: OpenSweep, searcher: Searcher, scheduler: TrialScheduler, callback: Callback) -> None:
    """Run Tune until the searcher has nothing left or the stopper ends it; leave nothing of Tune's on disk."""
    stopper, scratch = sweep.stopper, sweep.context.folder / ".tune"
    trainable = tune.with_resources(sweep.context.trainable or Trial, PlacementGroupFactory(sweep.share.bundles))
    # Tune would start a searcher's trials one after the other, each after the last one's process is up (Ray 2.60).
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(sweep.share.slots)
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
            failure_config=FailureConfig(max_failures=sweep.config.failures.max_retries),
            checkpoint_config=CheckpointConfig(checkpoint_frequency=0, checkpoint_at_end=False),
        ),
    )
    try:
        with adapt_tune(one_process=sweep.config.cluster.address is None and not sweep.share.env_runners):
            tuner.fit()
    except KeyboardInterrupt:
        stopper.request("interrupted at once", 2)
    except Exception as error:
        if not is_disk_full(error):
            raise
        stopper.request(DISK_FULL)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _make_trial_name(trial: Any) -> str:
    return f"trial-{trial.config['assignment']['number']:03d}-{trial.trial_id}"
