"""Open the trackers, such as MLflow, that a sweep is logged to. Runs in the driver."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rltune.config.settings_file import format_settings
from rltune.driver.provenance import list_versions, read_git_commit
from rltune.search.conditions import format_yaml_value
from rltune.tracking.feed import Feeds
from rltune.tracking.kinds import import_trackers, naming_tracker
from rltune.tracking.mlflow_tracker import NOTE_TAG
from rltune.tracking.notification import NotificationTracker
from rltune.tracking.tracker import SweepDescription, Tracker

if TYPE_CHECKING:
    from rltune.checkpoints.store import Store
    from rltune.driver.plan import Plan
    from rltune.ledger.ledger import Ledger


def open_trackers(plan: Plan, ledger: Ledger, store: Store, is_urgent: Callable[[], bool]) -> Feeds:
    """Open a sweep's trackers, each with a feed that delivers the ledger's reports to it.

    Args:
        plan: The sweep's plan.
        ledger: The sweep's ledger.
        store: The sweep's checkpoint store.
        is_urgent: Says whether the sweep has to end within seconds.
    """
    description = _describe(plan, ledger)
    trackers: list[Tracker] = []
    for tracker in import_trackers(plan.tracking.kinds):
        with naming_tracker(tracker):
            trackers.append(tracker(description))
    if plan.notify:
        trackers.append(NotificationTracker(description, plan.notify))
    return Feeds(ledger, store, trackers, is_urgent)


def _describe(plan: Plan, ledger: Ledger) -> SweepDescription:
    """Make the description of the sweep that trackers get: its settings, versions and folder."""
    algorithm, env_id = plan.algorithm, plan.build.env.id
    return SweepDescription(
        name=plan.name,
        key=ledger.sweep().key,
        folder=plan.folder,
        ledger=ledger,
        experiment=plan.tracking.experiment or plan.env_name,
        uri=plan.tracking.uri,
        params={  # The parameters by which MLflow's table tells sweeps apart.
            "algo": algorithm,
            "env": env_id,
            "searcher": plan.searcher.kind,
            "scheduler": plan.scheduler.kind,
            "budget.trials": plan.budget.trials,
            "budget.env_steps": plan.budget.env_steps,
            "replicates": plan.build.replicates,
            "seed": plan.seed,
            **{f"constraints.{each.name}": each.bound for each in plan.criteria.constraints},
            **{f"space.{name}": format_yaml_value(range_) for name, range_ in plan.settings["space"].items()},
        },
        tags={
            "rltune.folder": str(plan.folder),
            NOTE_TAG: f"{algorithm} on {env_id} is being swept, in `{plan.folder}`.",
        }
        | ({"rltune.git_commit": commit} if (commit := read_git_commit()) else {}),
        texts={
            "config.yaml": format_settings(plan.settings),
            "packages.txt": "".join(f"{name}=={version}\n" for name, version in list_versions().items()),
        },
    )
