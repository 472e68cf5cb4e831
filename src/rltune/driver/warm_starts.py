"""Choose the configurations that a search tries first, and the trials of earlier sweeps from which it learns."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from omegaconf import OmegaConf

from rltune.algorithms.arguments import list_arguments, locate_argument, values_of
from rltune.config.criteria import read_criteria
from rltune.config.schema import RunConfig
from rltune.config.settings_file import read_settings
from rltune.config.validation import parse_config
from rltune.errors import ConfigError, StudyError
from rltune.formatting import spell_command
from rltune.ledger.sweep_ref import LATEST, SweepRef
from rltune.records import TrialRecord
from rltune.search.samplers import get_traits
from rltune.search.space import Space

FROM_SWEEPS = "searcher.from_sweeps"
SAME = (
    *("algo.class", "env.id", "env.kwargs", "env.wrappers", "env.policies"),
    *("objective.kind", "objective.key", "objective.direction"),
)
"""The settings that have to be equal so that the objectives of two sweeps can be compared."""


def widen_ranges(config: RunConfig) -> RunConfig:
    """Widen the ranges that a tuned file names, unless the user has changed them.

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
    """Return the algorithm file's values of the searched parameters: the tuned values if conf/tuned has the pair.

    Parameters whose condition does not hold are left out.

    Raises:
        ConfigError: The space names an argument that the algo file does not have.
    """
    values = values_of(config.algo, (*searched.names, *searched.idle))
    names = {dimension.name for dimension in searched.dimensions}
    return searched.active_values({name: value for name, value in values.items() if name in names})


def collect_warm_starts(
    config: RunConfig, searched: Space, first: Mapping[str, Any]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Collect the configurations to try first, and notes on the values of them that cannot be tried."""
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
        notes += [f"warm start {number}: {problem}" for problem in _describe_outside(searched, kept)]
        starts.append(kept)
    if first and first not in starts:
        starts.append(
            first
        )  # The user has not typed these values, so no note is made of those outside of their ranges.
    return tuple(starts), tuple(notes)


def _describe_outside(searched: Space, values: Mapping[str, Any]) -> list[str]:
    """Describe the values that lie outside of their ranges, so that a trial has to draw others."""
    inside = searched.encode(values)
    return [
        f"{dimension.name}={values[dimension.name]} lies outside {dimension}, so it is drawn instead"
        for dimension in searched.dimensions
        if dimension.name in values and dimension.label not in inside
    ]


def collect_earlier_trials(
    config: RunConfig, searched: Space, resumed: bool = False
) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
    """Collect the trials of ``searcher.from_sweeps`` that fit into this sweep's space, and notes on their numbers.

    Args:
        config: The settings.
        searched: The search space.
        resumed: Whether this sweep exists already. Then an earlier sweep that is gone is left out with a note.

    Raises:
        ConfigError: The searcher does not learn, or an earlier sweep trained something else.
        StudyError: There is no such sweep, or it cannot be read.
    """
    earlier: list[TrialRecord] = []
    notes: list[str] = []
    for name in _list_earlier_sweeps(config):
        try:
            settings, records = _read_earlier_sweep(name, config)
        except StudyError as error:
            if not resumed:
                raise
            notes.append(f"the searcher is not shown {name} any more: {error.what}")
            continue
        placed = [_place_earlier(record, settings, config, searched) for record in records]
        inside = [record for record in placed if record]
        earlier += inside
        others = "; the others lie outside of the space, failed or have not ended" if len(inside) < len(placed) else ""
        notes.append(f"the searcher is shown {len(inside)} of the {len(placed)} trials of {name}{others}")
        if differing := _list_differences(settings, config, searched):
            notes.append(f"{name} had other settings, which nobody searches: {', '.join(differing)}")
    return tuple(earlier), tuple(notes)


def _list_earlier_sweeps(config: RunConfig) -> list[str]:
    """List the names of ``searcher.from_sweeps``, each once.

    Raises:
        ConfigError: The searcher does not learn, or a name is ``latest``.
    """
    names, traits = list(dict.fromkeys(config.searcher.from_sweeps or ())), get_traits(config.searcher.kind)
    if names and not traits.learns_from_others:
        raise ConfigError(
            f"{FROM_SWEEPS}=[{','.join(names)}]: searcher={traits.name} does not learn from other sweeps' trials",
            "a searcher that does: rf, tpe, gp",
            f"searcher=rf, or {FROM_SWEEPS}=null",
        )
    if LATEST in names:
        raise ConfigError(
            f"{FROM_SWEEPS}=[latest]: a resumed sweep would find itself", "names of sweeps", spell_command("list")
        )
    return names


def _read_earlier_sweep(name: str, config: RunConfig) -> tuple[RunConfig, list[TrialRecord]]:
    """Read an earlier sweep's settings and trials.

    Raises:
        ConfigError: It trained something else.
        StudyError: There is none of this name, or it cannot be read.
    """
    folder = SweepRef(name, config.output_dir, config.storage).folder(FROM_SWEEPS)
    try:
        settings = parse_config(read_settings(folder))
    except ConfigError as error:  # Another version of rltune wrote the settings.
        raise StudyError(
            f"{FROM_SWEEPS}=[{name}]: its settings cannot be read: {error.what}",
            "sweeps that this version of rltune shows",
            f"leave {name} out of {FROM_SWEEPS}",
        ) from None
    before, now = (OmegaConf.structured(each) for each in (settings, config))
    for key in SAME:
        old, new = OmegaConf.select(before, key), OmegaConf.select(now, key)
        if old != new:
            raise ConfigError(
                f"{FROM_SWEEPS}: {name} has {key}={old}, this sweep {key}={new}",
                "sweeps whose algorithm, environment and objective are this one's",
                f"leave {name} out of {FROM_SWEEPS}",
            )
    from rltune.ledger.storage import open_ledger  # It imports SQLAlchemy, which takes a moment.

    with contextlib.closing(open_ledger(folder, config.study.storage)) as ledger:
        return settings, ledger.trials.records()


def _place_earlier(record: TrialRecord, earlier: RunConfig, config: RunConfig, searched: Space) -> TrialRecord | None:
    """Return an earlier sweep's trial as a trial of this sweep and under its budget; None if it does not fit."""
    searched_names = {dimension.name for dimension in searched.dimensions}
    names = {*searched.names, *record.params} - searched.idle.keys()
    values = _read_values(earlier.algo, names) | dict(record.params)
    ours = _read_values(config.algo, names - searched_names) | dict(searched.fixed)
    if record.state in ("RUNNING", "FAIL") or any(values.get(name) != value for name, value in ours.items()):
        return None
    active = searched.active_values({name: value for name, value in values.items() if name in searched_names})
    drawn = searched.encode(active)
    if not searched.is_whole(drawn):
        return None
    budget = config.budget.env_steps
    is_whole, is_cut = (max(record.reports, default=0) >= budget, max(record.reports, default=0) > budget)
    ended = replace(
        record,
        state="COMPLETE" if is_whole else "PRUNED",
        diverged=record.diverged and not is_whole,
        params=searched.decode(drawn),
        drawn=drawn,
        reports={mark: objective for mark, objective in record.reports.items() if mark <= budget},
        numbers={} if is_cut else record.numbers,
        env_steps=min(budget, record.env_steps),
        train_s=record.train_s * min(1.0, budget / max(1, record.env_steps)),
    )
    if ended.score is None and not ended.diverged:  # Its first report is from beyond this budget.
        return None
    return read_criteria(asdict(config)).judge(ended)


def _list_differences(earlier: RunConfig, config: RunConfig, searched: Space) -> list[str]:
    """List the arguments of the algorithm that differ between two sweeps and that neither of them searches."""
    unsearched = list_arguments(config.algo).keys() - {*searched.names, *earlier.space}
    before, now = (_read_values(settings.algo, unsearched) for settings in (earlier, config))
    return [f"{name}={before.get(name)}, here {now[name]}" for name in sorted(now) if before.get(name) != now[name]]


def _read_values(algo: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """Return the algo file's own values of those arguments that it has."""
    values: dict[str, Any] = {}
    for name in names:
        with contextlib.suppress(ConfigError):
            values |= values_of(algo, (name,))
    return values
