"""Compare the settings that a sweep was begun with and those that are asked for now. Nothing heavy is imported."""

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

# A sweep is found by the first two; the next two say how; the rest are addresses, and who is told what.
FREE = ("name", "output_dir", "resume", "take_over", "cluster.", "study.storage", "tracking.uri", "callbacks", "notify")
# What conf/resume.yaml has of a sweep's settings.
CHANGEABLE = ("budget", "callbacks", "certify", "cluster", "notify", "storage", "study", "tracking")
BUDGETS = ("budget.trials", "budget.total_env_steps", "budget.wall_time_s", "certify.top", "certify.seeds")
FROM_NOW = "budget.wall_time_s"  # counts anew in each command, so that less of it takes nothing back


def keep_measured(known: DictConfig, wanted: RunConfig) -> RunConfig:
    """Let a sweep that is to go on share GPUs as it began to, where that is to be measured: once is enough."""
    trials = OmegaConf.select(known, "resources.trials_per_gpu")
    if wanted.resources.trials_per_gpu != MEASURED or trials is None:
        return wanted
    return replace(wanted, resources=replace(wanted.resources, trials_per_gpu=trials))


def check_changes(name: str, known: DictConfig, wanted: RunConfig) -> bool:
    """Refuse settings with which it would be another sweep.

    Args:
        name: The sweep.
        known: Its settings, as its folder has them.
        wanted: What is asked for now.

    Returns:
        Whether a budget is larger than it was.

    Raises:
        StudyError: Something else than budgets and addresses differs, or a budget is smaller.
        ConfigError: Another version of rltune wrote the settings, with keys that this one does not know, or without
            some that it needs.
    """
    plain = cast(dict[str, Any], OmegaConf.to_container(known))
    plain.pop("format", None)
    # Typed: a key that is younger than the sweep has its default. And both through text, as the sweep's own went: what
    # is equal there is equal.
    before, now = (
        dict(flatten_settings(OmegaConf.to_container(OmegaConf.create(format_settings(one)))))
        for one in (to_typed(RunConfig, plain), wanted)
    )
    grows, others = False, []
    for key in sorted(before.keys() | now.keys()):
        old, new = before.get(key), now.get(key)
        if old == new or key.startswith(FREE):
            continue
        is_larger = key in BUDGETS and _limit(new) > _limit(old)
        grows |= is_larger
        if not is_larger and key != FROM_NOW:
            others.append((key, old, new))
    if others:
        key, old, new = others[0]
        more = f", and {len(others) - 1} more: {', '.join(one[0] for one in others[1:4])}" if len(others) > 1 else ""
        raise StudyError(
            f"{key}={_show(new)}: the sweep {name} has {key}={_show(old)}{more}",
            "its own settings; larger budgets, more of certify.top and certify.seeds, and other addresses",
            spell_command(f"resume sweep={name} goes on with its own; name=... begins another sweep"),
        )
    return grows


def check_budgets(name: str, known: DictConfig, wanted: RunConfig) -> None:
    """Refuse to go on with a sweep under a smaller budget: what it has taken cannot be given back.

    Args:
        name: The sweep.
        known: Its settings, as its folder has them.
        wanted: What is asked for now.

    Raises:
        StudyError: A budget is smaller.
    """
    asked = OmegaConf.create(format_settings(wanted))
    for key in BUDGETS:
        old, new = OmegaConf.select(known, key), OmegaConf.select(asked, key)
        if key != FROM_NOW and old is not None and _limit(new) < _limit(old):  # a first limit takes nothing back
            raise StudyError(
                f"{key}={_show(new)}: the sweep {name} has {key}={_show(old)}",
                "a larger one, which extends the sweep, or none, which goes on with its own",
                spell_command(f"resume sweep={name}"),
            )


def _limit(budget: Any) -> float:
    """Return a budget as a number; None is no limit."""
    return math.inf if budget is None else float(budget)


def _show(value: Any) -> str:
    return "null" if value is None else str(value)
