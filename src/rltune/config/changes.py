"""Compare a sweep's original settings with the settings of a resume. Imports nothing heavy."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from rltune.config.schema import MEASURED, RunConfig
from rltune.config.settings_file import redact_config
from rltune.errors import StudyError, spell
from rltune.formatting import flatten_settings, spell_command

LOCAL = "local"  # cluster.address=local stands for a local Ray in a resume, where null means no change.
ENDURANCE = ("env.restarts", "env.max_copies", "failures.max_retries", "failures.stall_s")
"""Settings of what a sweep endures. They may change at any time, because no score depends on them."""
# Settings that a resume may change: the first two find the sweep, the next one says how it is resumed, and the others
# are addresses, displays and `ENDURANCE`, which do not affect results.
FREELY_CHANGEABLE = (
    "name",
    "output_dir",
    "resume",
    "take_over",
    "cluster.",
    "study.storage",
    "tracking.kinds",
    "tracking.uri",
    "notify",
    *ENDURANCE,
)
# The groups and settings of a sweep that conf/resume.yaml has, too.
RESUME_KEYS = ("budget", "certify", "cluster", "env", "failures", "notify", "space", "storage", "study", "tracking")
WALL_TIME = "budget.wall_time_s"  # Each command starts its wall time anew, so it may be smaller than before.
INCREASE_ONLY = ("budget.trials", "budget.total_env_steps", "certify.top", "certify.seeds")


def keep_measured(begun: Mapping[str, Any], wanted: RunConfig) -> RunConfig:
    """Keep the measured ``resources.trials_per_gpu`` of the sweep's first start, instead of measuring it again."""
    trials = (begun.get("resources") or {}).get("trials_per_gpu")
    if wanted.resources.trials_per_gpu != MEASURED or trials is None:
        return wanted
    return replace(wanted, resources=replace(wanted.resources, trials_per_gpu=trials))


def drop_cluster_limits(settings: Mapping[str, Any], changed: Collection[str]) -> dict[str, Any]:
    """Return a sweep's settings without the limits on CPUs and GPUs that were meant for another Ray cluster.

    Args:
        settings: The sweep's settings.
        changed: The dotted keys that a resume changes.
    """
    cluster = settings.get("cluster") or {}
    if cluster.get("address") is None and "cluster.address" not in changed:
        return dict(settings)
    return {**settings, "cluster": {**cluster, "num_cpus": None, "num_gpus": None}}


def check_changes(name: str, begun: RunConfig, wanted: RunConfig) -> bool:
    """Refuse changed settings with which a resumed sweep's results would not be comparable.

    Args:
        name: The sweep.
        begun: Its settings, with the sizes that follow from others.
        wanted: The settings that are requested now, likewise.

    Returns:
        Whether a budget is larger than it was.

    Raises:
        StudyError: Something else than budgets and addresses differs, or a budget is smaller.
    """
    before, now = (dict(flatten_settings(redact_config(each))) for each in (begun, wanted))
    differing = [
        key
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and not key.startswith(FREELY_CHANGEABLE)
    ]
    larger = [key for key in differing if key in (*INCREASE_ONLY, WALL_TIME) and _limit(now[key]) > _limit(before[key])]
    if refused := [key for key in differing if key not in larger and key != WALL_TIME]:
        more = f", and {len(refused) - 1} more: {', '.join(refused[1:4])}" if len(refused) > 1 else ""
        continued = f"resume sweep={name} continues with its own settings; name=... starts another sweep"
        if all(key.startswith("space.") and key in before and key in now for key in refused):
            continued = f"resume sweep={name} " + " ".join(f"'{key}={spell(now[key])}'" for key in refused)
        raise StudyError(
            _describe_change(name, refused[0], before) + more,
            "the sweep's own settings; larger budgets, a larger certify.top or certify.seeds, other addresses, and "
            f"{', '.join(ENDURANCE)}",
            spell_command(continued),
            key=refused[0],
            value=now.get(refused[0]),
        )
    return bool(larger)


def check_budgets(name: str, begun: RunConfig, wanted: RunConfig) -> None:
    """Refuse to resume a sweep with a smaller budget than before, some of which may already be used.

    Args:
        name: The sweep.
        begun: Its settings, with the sizes that follow from others.
        wanted: The settings that are requested now, likewise.

    Raises:
        StudyError: A budget is smaller.
    """
    before, now = (dict(flatten_settings(redact_config(each))) for each in (begun, wanted))
    for key in sorted(now):
        is_fixed = key.startswith(("budget.", "certify.")) and key not in (*INCREASE_ONLY, WALL_TIME)
        # A sweep without a limit may get any limit.
        is_less = key in INCREASE_ONLY and before.get(key) is not None and _limit(now[key]) < _limit(before[key])
        if is_less or (is_fixed and key in before and now[key] != before[key]):
            raise StudyError(
                _describe_change(name, key, before),
                "a larger value, which extends the sweep, or none, which keeps the sweep's own",
                spell_command(f"resume sweep={name}"),
                key=key,
                value=now[key],
            )


def _describe_change(name: str, key: str, before: Mapping[str, Any]) -> str:
    return f": the sweep {name} has {key}={spell(before.get(key))}"


def _limit(budget: float | None) -> float:
    """Return a budget as a number; None, which is no limit, becomes infinity."""
    return math.inf if budget is None else float(budget)
