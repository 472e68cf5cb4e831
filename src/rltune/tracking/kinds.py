"""Import and check the trackers, such as MLflow, that a sweep's settings name."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

from rltune.config.entry_points import import_entry_point, is_subclass, naming_setting
from rltune.config.schema import TRACKERS, TrackingConfig
from rltune.errors import ConfigError, choices, nearest
from rltune.tracking.notification import NotificationTracker, check_target
from rltune.tracking.tracker import Tracker


def check_trackers(tracking: TrackingConfig, notify: str | None) -> None:
    """Import the trackers of ``tracking.kinds``, and check that they work with the sweep's settings.

    Raises:
        RltuneError: A tracker cannot be imported or does not work with the settings, or two have the same name.
    """
    trackers: list[type[Tracker]] = [*import_trackers(tracking.kinds), NotificationTracker]
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
        with naming_tracker(tracker):
            tracker.check(tracking)
    check_target(notify)


def naming_tracker(tracker: type[Tracker]) -> AbstractContextManager[None]:
    """Turn an exception of a user's tracker class into an error that names the class, see `naming_setting`."""
    return naming_setting(
        "tracking.kinds",
        [tracker.__name__],
        "a tracker whose check and constructor raise no error",
        "tracking.kinds=[mlflow], or tracking.kinds=[] for none",
    )


def import_trackers(kinds: Sequence[str]) -> list[type[Tracker]]:
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
