"""Choose which configurations a search tries first: tuned settings, then the algorithm file's own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rltune.algorithms.arguments import locate_argument, values_of
from rltune.config.schema import RunConfig
from rltune.errors import ConfigError
from rltune.search.space import Space


def widen_ranges(config: RunConfig) -> RunConfig:
    """Widen the ranges that a tuned file names, where the space still has them as the file names them.

    Raises:
        ConfigError: An entry is no pair of a range and a wider one.
    """
    space = dict(config.space)
    for name, pair in config.wider.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(
                f"wider.{name}={pair} is no pair", "[the space's range, a wider one]", "see conf/tuned/ppo_acrobot.yaml"
            )
        if space.get(name) == pair[0]:
            space[name] = pair[1]
    return replace(config, space=space, wider={})


def choose_first_trial(config: RunConfig, searched: Space) -> dict[str, Any]:
    """Return the algo file's own values of what is searched, which are the tuned ones where conf/tuned has the pair.

    Those of parameters whose condition does not hold among them are left out.

    Raises:
        ConfigError: The space names an argument that the algo file does not have.
    """
    values = values_of(config.algo, (*searched.names, *searched.idle))
    names = {dimension.name for dimension in searched.dimensions}
    return searched.active_values({name: value for name, value in values.items() if name in names})


def collect_warm_starts(
    config: RunConfig, searched: Space, first: Mapping[str, Any]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Collect the configurations to try first, and notes on what of them is left out."""
    names = {dimension.name for dimension in searched.dimensions}
    starts: list[Mapping[str, Any]] = []
    notes = [f"{name} is not searched, because {why}" for name, why in searched.idle.items()]
    for number, values in enumerate(config.warm_start):
        if not isinstance(values, Mapping):
            raise ConfigError(
                f"warm_start[{number}]={values} is no mapping", "values by name", "warm_start=[{lr: 1e-3}]"
            )
        for name in values:
            locate_argument(config.algo, str(name), f"warm_start[{number}].{name}")
        dropped = sorted(set(values) - names)
        if dropped:
            notes.append(f"warm start {number}: {', '.join(dropped)} not searched here, so left as set")
        wanted = {name: value for name, value in values.items() if name in names}
        kept = searched.active_values(wanted)
        notes += [f"warm start {number}: {name} left out: its condition fails" for name in wanted if name not in kept]
        notes += [f"warm start {number}: {what}" for what in _describe_outside(searched, kept)]
        starts.append(kept)
    if first and first not in starts:
        starts.append(first)
        notes += [
            f"the algorithm's own values, which are tried early: {what}" for what in _describe_outside(searched, first)
        ]
    return tuple(starts), tuple(notes)


def _describe_outside(searched: Space, values: Mapping[str, Any]) -> list[str]:
    """Say what a trial that begins with these values has to draw all the same."""
    inside = searched.encode(values)
    return [
        f"{dimension.name}={values[dimension.name]} lies outside {dimension}, so it is drawn instead"
        for dimension in searched.dimensions
        if dimension.name in values and dimension.label not in inside
    ]
