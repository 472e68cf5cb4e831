"""Name the MLflow runs of trials and of certified runs."""

from __future__ import annotations

Key = int | str  # a trial's number, or the name of a certified run, see `find_parent_key`


def make_child_name(number: Key) -> str:
    """Return the name of a trial's run, ``trial-007``; a certified run's key is its name."""
    return f"trial-{number:03d}" if isinstance(number, int) else number


def find_parent_key(number: Key) -> Key | None:
    """Return the run above another: ``trial-007-seed-2`` stands below trial 7, ``control-seed-2`` below ``control``.

    Returns:
        None where the sweep's run is above.
    """
    owner, mark, _ = str(number).rpartition("-seed-")
    if not mark:
        return None
    return int(owner.removeprefix("trial-")) if owner.startswith("trial-") else owner
