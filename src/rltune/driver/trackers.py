"""Import, check and open the trackers, such as MLflow, that a sweep is logged to. Runs in the driver."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rltune.config.entry_points import import_entry_point, is_subclass
from rltune.config.schema import TRACKERS, TrackingConfig
from rltune.config.settings_file import format_settings
from rltune.driver.provenance import list_versions, read_git_commit
from rltune.errors import ConfigError, RltuneError, choices, describe_exception, nearest
from rltune.search.conditions import format_yaml_value
from rltune.tracking.feed import Feeds
from rltune.tracking.mlflow_tracker import NOTE_TAG
from rltune.tracking.notification import NotificationTracker, check_target
from rltune.tracking.tracker import SweepDescription, Tracker

if TYPE_CHECKING:
    from rltune.checkpoints.store import Store
    from rltune.driver.plan import Plan
    from rltune.ledger.ledger import Ledger


def check_trackers(tracking: TrackingConfig, notify: str | None) -> None:
    """Import the trackers of ``tracking.kinds``, and check that they work with the sweep's settings.

    Raises:
        RltuneError: A tracker cannot be imported or does not work with the settings, or two have the same name.
    """
    trackers: list[type[Tracker]] = [*_import_trackers(tracking.kinds), NotificationTracker]
    names = [tracker.name for tracker in trackers]
    if repeated := next((name for name in names if names.count(name) > 1), None):
        raise ConfigError(
            "tracking.kinds",
            tracking.kinds,
            f": two trackers are named {repeated}, so the ledger could not tell them apart",
            "each tracker once, and classes with a name of their own",
            "tracking.kinds=[mlflow]",
        )
    for tracker in trackers:
        with _naming(tracker):
            tracker.check(tracking)
    check_target(notify)


@contextmanager
def _naming(tracker: type[Tracker]) -> Iterator[None]:
    """Turn an exception of a user's tracker class into an error that names the class, unless it is an RltuneError."""
    try:
        yield
    except RltuneError:
        raise
    except Exception as error:
        raise ConfigError(
            "tracking.kinds",
            [tracker.__name__],
            f": the class raised {describe_exception(error)}",
            "a tracker whose check and constructor raise no error",
            "tracking.kinds=[mlflow], or tracking.kinds=[] for none",
        ) from error


def _import_trackers(kinds: Sequence[str]) -> list[type[Tracker]]:
    """Import the tracker classes that the setting ``tracking.kinds`` names."""
    return [_import_tracker(kind) for kind in kinds]


def _import_tracker(kind: str) -> type[Tracker]:
    usage = f"{', '.join(TRACKERS)}, or package.module:Class, a subclass of rltune.tracking.tracker.Tracker"
    if ":" not in kind and kind not in TRACKERS:
        fix = f"tracking.kinds=[{nearest(kind, TRACKERS) or 'mlflow'}]"
        raise ConfigError("tracking.kinds", kind, "is unknown", choices(kind, (*TRACKERS, "package.module:Class")), fix)
    target, fix = TRACKERS.get(kind, kind), "tracking.kinds=[mlflow], or tracking.kinds=[] for none"
    tracker: type[Tracker] = import_entry_point("tracking.kinds", target, "tracker", is_subclass(Tracker), usage, fix)
    return tracker


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
    for tracker in _import_trackers(plan.tracking.kinds):
        with _naming(tracker):
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
