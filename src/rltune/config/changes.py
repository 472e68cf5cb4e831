"""Compare the settings with which a sweep was started and the settings of the command that continues it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf

from rltune.config.schema import MEASURED, RunConfig
from rltune.config.settings_file import flatten_settings, format_settings
from rltune.config.validation import to_typed
from rltune.errors import StudyError
from rltune.formatting import spell_command

# These settings may differ: they find the sweep, say how to continue it, or are addresses.
FREE = ("name", "output_dir", "resume", "take_over", "cluster.", "study.storage", "tracking.uri", "callbacks", "notify")
# The settings of a sweep that conf/resume.yaml has, too.
CHANGEABLE = ("budget", "callbacks", "certify", "cluster", "notify", "storage", "study", "tracking")
GROWING = ("budget.trials", "budget.total_env_steps", "certify.top", "certify.seeds")  # These may become larger.
WALL_TIME = "budget.wall_time_s"  # Each command counts it anew, so that it may become smaller, too.


def keep_measured(before: DictConfig, wanted: RunConfig) -> RunConfig:
    """Keep the number of trials per GPU that was measured when the sweep started.

    Args:
        before: The settings in the sweep's folder.
        wanted: The settings of the command that continues it.
    """
    trials = OmegaConf.select(before, "resources.trials_per_gpu")
    if wanted.resources.trials_per_gpu != MEASURED or trials is None:
        return wanted
    return replace(wanted, resources=replace(wanted.resources, trials_per_gpu=trials))


def check_changes(name: str, before: DictConfig, wanted: RunConfig) -> bool:
    """Refuse settings that would make it another sweep.

    Args:
        name: The sweep's name.
        before: The settings in the sweep's folder.
        wanted: The settings of the command that continues it.

    Returns:
        Whether a budget is larger than before.

    Raises:
        StudyError: A setting other than budgets and addresses differs, or a budget is smaller.
        ConfigError: Another version of rltune wrote the settings, with unknown keys or without required ones.
    """
    plain = cast(dict[str, Any], OmegaConf.to_container(before))
    plain.pop("format", None)
    old_values, new_values = _flatten_as_written(to_typed(RunConfig, plain)), _flatten_as_written(wanted)
    grows, others = False, []
    for key in sorted(old_values.keys() | new_values.keys()):
        old, new = old_values.get(key), new_values.get(key)
        if old == new or key.startswith(FREE):
            continue
        is_larger = key in (*GROWING, WALL_TIME) and _read_limit(new) > _read_limit(old)
        grows |= is_larger
        if not is_larger and key != WALL_TIME:
            others.append((key, old, new))
    if others:
        key, old, new = others[0]
        more = f", and {len(others) - 1} more: {', '.join(key for key, *_ in others[1:4])}" if len(others) > 1 else ""
        raise StudyError(
            f"{key}={_spell(new)}: the sweep {name} has {key}={_spell(old)}{more}",
            "its own settings; larger budgets, more of certify.top and certify.seeds, and other addresses",
            spell_command(f"resume sweep={name} goes on with its own; name=... begins another sweep"),
        )
    return grows


def check_budgets(name: str, before: DictConfig, wanted: RunConfig) -> None:
    """Refuse to continue a sweep with a smaller budget: what was spent cannot be given back.

    Args:
        name: The sweep's name.
        before: The settings in the sweep's folder.
        wanted: The settings of the command that continues it.

    Raises:
        StudyError: A budget is smaller than before.
    """
    new_values = _flatten_as_written(wanted)
    for key in GROWING:
        old, new = OmegaConf.select(before, key), new_values[key]
        if old is not None and _read_limit(new) < _read_limit(old):  # Without a limit nothing can be given back.
            raise StudyError(
                f"{key}={_spell(new)}: the sweep {name} has {key}={_spell(old)}",
                "a larger one, which extends the sweep, or none, which goes on with its own",
                spell_command(f"resume sweep={name}"),
            )


def _flatten_as_written(config: RunConfig) -> dict[str, Any]:
    """Return all values by key, as reading the written settings gives them, so that equal settings compare equal."""
    return dict(flatten_settings(OmegaConf.to_container(OmegaConf.create(format_settings(config)))))


def _read_limit(budget: Any) -> float:
    """Return a budget as a number; None is no limit."""
    return math.inf if budget is None else float(budget)


def _spell(value: Any) -> str:
    return "null" if value is None else str(value)
