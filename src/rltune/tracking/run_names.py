"""Name the MLflow runs of trials and of certified runs."""

from __future__ import annotations

Key = int | str  # a trial's number, or the name of another run below the sweep's, see `above`


def make_child_name(number: Key) -> str:
    """The run name of a trial."""
    return f"trial-{number:03d}" if isinstance(number, int) else number


def find_parent_key(number: Key) -> Key | None:
    """What a run stands below: ``trial-007-seed-2`` below trial 7, ``control-seed-2`` below control, else the sweep."""
    owner, mark, _ = str(number).rpartition("-seed-")
    if not mark:
        return None
    return int(owner.removeprefix("trial-")) if owner.startswith("trial-") else owner
