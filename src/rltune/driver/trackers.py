"""Open a sweep's trackers, and describe the sweep to them. Runs in the driver."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rltune.config.schema import MLFLOW
from rltune.config.settings_file import format_settings
from rltune.driver.provenance import list_versions, read_git_commit
from rltune.search.conditions import format_yaml_value
from rltune.tracking.callbacks import CallbackTracker
from rltune.tracking.dashboard import DashboardTracker
from rltune.tracking.feed import Feeds
from rltune.tracking.mlflow_tracker import NOTE_TAG, MLflowTracker
from rltune.tracking.tensorboard import TensorBoardTracker
from rltune.tracking.tracker import Tracker, TrackingSettings, import_tracker
from rltune.tracking.wandb_runs import WandbTracker

if TYPE_CHECKING:
    from rltune.driver.open_sweep import OpenSweep


def open_trackers(sweep: OpenSweep) -> Feeds:
    """Open a sweep's trackers; each gets a feed that delivers the ledger to it."""
    config = sweep.config
    kind, experiment = config.tracking.kind, config.tracking.experiment or config.env.name
    settings = TrackingSettings(config.tracking.uri, experiment, sweep.name, sweep.folder)
    mlflow = MLflowTracker(settings, sweep.ledger) if kind in MLFLOW else None
    trackers: list[Tracker] = [mlflow] if mlflow else []
    if kind == "wandb":
        trackers.append(WandbTracker(settings))
    elif ":" in kind:
        trackers.append(import_tracker(kind)(settings))
    if config.tracking.tensorboard:
        trackers.append(TensorBoardTracker(settings))
    if config.callbacks:
        trackers.append(CallbackTracker(settings, config.callbacks))
    distributions, shared = sweep.plan.space.distributions(), sweep.context.is_folder_shared()
    trackers.append(DashboardTracker(settings, sweep.ledger, config.study.storage, distributions, shared))
    return Feeds(sweep.ledger, sweep.store, trackers, mlflow, sweep.stopper.is_urgent)


def start_tracking(sweep: OpenSweep) -> None:
    """Show the sweep in its trackers from now on: its settings, versions and folder."""
    config = sweep.config
    sweep.tracker.start(
        params={  # These distinguish sweeps in MLflow's table.
            "algo": config.algo["name"],
            "env": config.env.id,
            "searcher": config.searcher.kind,
            "scheduler": config.scheduler.kind,
            "budget.trials": config.budget.trials,
            "budget.env_steps": config.budget.env_steps,
            "replicates": config.replicates,
            "seed": config.seed,
            **{f"constraints.{each.name}": each.bound for each in sweep.plan.criteria.constraints},
            **{f"space.{name}": format_yaml_value(range_) for name, range_ in config.space.items()},
        },
        tags={
            "rltune.folder": str(sweep.folder),
            NOTE_TAG: f"{config.algo['name']} on {config.env.id} is being swept, in `{sweep.folder}`.",
        }
        | ({"rltune.git_commit": commit} if (commit := read_git_commit()) else {}),
        texts={
            "config.yaml": format_settings(config),
            "packages.txt": "".join(f"{name}=={version}\n" for name, version in list_versions().items()),
        },
    )
