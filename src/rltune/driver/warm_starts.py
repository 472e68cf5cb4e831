"""Choose the configurations that a search tries first, and the earlier sweeps' trials that its sampler learns from."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from rltune.algorithms.arguments import list_arguments, locate_argument, name_arguments, values_of
from rltune.algorithms.normalising import remove_from_values
from rltune.config.budget import size_score
from rltune.config.criteria import read_criteria
from rltune.config.schema import RunConfig
from rltune.config.settings_file import read_settings
from rltune.config.validation import parse_config
from rltune.envs.spec import specify_env
from rltune.errors import ConfigError, StudyError, spell
from rltune.formatting import flatten_settings, format_number, format_value, spell_command
from rltune.ledger.sweep_ref import LATEST, SweepRef
from rltune.records import PLATEAU, TARGET_HELD, TrialRecord
from rltune.search.samplers import SamplerTraits
from rltune.search.space import Space, name_values

FROM_SWEEPS = "searcher.from_sweeps"
SAME = (
    *("algo.class", "env.id", "env.kwargs", "env.wrappers", "env.policies"),
    *("objective.kind", "objective.key", "objective.direction", "objective.missing"),
    *("score.env", "score.episodes"),
)
"""The settings that have to be equal so that the objectives of two sweeps can be compared."""


def collect_warm_starts(
    arguments: Mapping[str, Any], wanted: Sequence[Any], space: Space, baseline: Mapping[str, Any]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Collect the configurations to try first, and notes on values in them that the search space excludes.

    The configurations of ``warm_start`` come first. The certification's baseline (`find_baseline`) comes last, if it is
    not among them. Values that the space fixes belong to each of them.

    Args:
        arguments: All that a space may name (`rltune.algorithms.arguments.name_arguments`).
        wanted: The configurations of ``warm_start``.
        space: The search space.
        baseline: The values of the baseline by name.

    Raises:
        ConfigError: A warm start names an argument that the settings do not have.
    """
    dimensions = {dimension.name: dimension for dimension in space.dimensions}
    notes = [f"{name} is not searched, because {why}" for name, why in space.idle.items()]
    starts: list[Mapping[str, Any]] = []
    for number, given in enumerate(wanted):
        _check_mapping(f"warm_start[{number}]", given)
        values = dict(name_values(given, dimensions))
        for name in values:
            locate_argument(arguments, name, f"warm_start[{number}].{name}")
        start = space.active_values({name: value for name, value in values.items() if name in dimensions})
        inside = space.encode(start)
        for name, value in values.items():
            if name not in dimensions:
                problem = "is not searched here, so it is left as set"
            elif name not in start:
                problem = "is left out, because its condition fails"
            elif dimensions[name].label not in inside:
                problem = f"lies outside {dimensions[name]}, so another value is drawn"
            else:
                continue
            notes.append(f"warm start {number}: {name}={value} {problem}")
        starts.append({**start, **space.fixed})
    if baseline.keys() - space.fixed.keys() and baseline not in starts:
        starts.append(baseline)
    return tuple(starts), tuple(notes)


def find_baseline(arguments: Mapping[str, Any], space: Space) -> dict[str, Any]:
    """Return the baseline's values by name: those of the algorithm's and the environment's settings, or of the space.

    The values of conf/tuned are in the algorithm file if there are any for the pair, and so are those that the command
    line sets.

    Args:
        arguments: All that a space may name (`rltune.algorithms.arguments.name_arguments`).
        space: The search space.

    Raises:
        ConfigError: The space names an argument that the settings do not have.
    """
    in_file = values_of(arguments, (*space.names, *space.idle))
    searched = {dimension.name for dimension in space.dimensions}
    return {**space.active_values({name: in_file[name] for name in in_file if name in searched}), **space.fixed}


def note_values_outside(space: Space, baseline: Mapping[str, Any]) -> tuple[str, ...]:
    """Note the values of the baseline that the space excludes, so that no trial of the search has them."""
    inside = space.encode(baseline)
    return tuple(
        f"the baseline has {dimension.name}={baseline[dimension.name]}, outside of {dimension}: the search draws "
        f"another value; space.{dimension.name}={format_value(baseline[dimension.name])} fixes it"
        for dimension in space.dimensions
        if dimension.name in baseline and dimension.label not in inside
    )


def collect_portfolio(
    arguments: Mapping[str, Any], wanted: Sequence[Any], space: Space, tried: Sequence[Mapping[str, Any]]
) -> tuple[tuple[Mapping[str, Any], ...], tuple[str, ...]]:
    """Collect the configurations of ``portfolio`` that lie in the search space, and a note on the others.

    Parameters that are not searched stay as they are set. Searched ones that a configuration lacks have the value of
    the settings.

    Args:
        arguments: All that a space may name (`rltune.algorithms.arguments.name_arguments`).
        wanted: The configurations of ``portfolio``.
        space: The search space.
        tried: The searched quantities by label of configurations that are tried anyway, or were in an earlier sweep.

    Raises:
        ConfigError: A configuration is no mapping.
    """
    dimensions = {dimension.name: dimension for dimension in space.dimensions}
    in_file, of_algo = values_of(arguments, tuple(dimensions)), list_arguments(arguments)
    starts: list[Mapping[str, Any]] = []
    seen, reasons, num_outside = list(tried), dict[str, str](), 0
    for number, values in enumerate(wanted):
        _check_mapping(f"portfolio[{number}]", values)
        searched = {name: value for name, value in values.items() if name in dimensions}
        start = space.active_values(in_file | searched)
        drawn = space.encode(start)
        unknown = {
            name: f"there is no {name}"
            for name in values
            if name not in dimensions and name.rpartition(".")[2] not in of_algo
        }
        outside = [name for name in searched if name in start and dimensions[name].label not in drawn]
        reasons |= unknown | {name: f"{name} outside {dimensions[name]}" for name in outside}
        if outside or unknown:
            num_outside += 1
            continue
        if drawn not in seen:
            seen.append(drawn)
            starts.append(start)
    left_out = f"{num_outside} of the portfolio's {format_number(len(wanted), 'configuration')} left out: "
    return tuple(starts), (left_out + "; ".join(reasons.values()),) if reasons else ()


def _check_mapping(key: str, values: Any) -> None:
    if not isinstance(values, Mapping):
        raise ConfigError(key, values, "is no mapping", "values by name", "'warm_start=[{lr: 1e-3}]'")


def collect_earlier_trials(
    config: RunConfig,
    space: Space,
    traits: SamplerTraits,
    *,
    resumed: bool = False,
    not_normalised: Collection[str] = (),
) -> tuple[tuple[TrialRecord, ...], tuple[str, ...]]:
    """Collect the trials of ``searcher.from_sweeps`` that fit into the search space, and notes on how many do.

    Args:
        config: The settings.
        space: The search space.
        traits: What the searcher's sampler can do.
        resumed: Whether this sweep exists already. Then an earlier sweep that is gone is left out with a note.
        not_normalised: What cannot be normalised in the environment, which the settings here leave out already.

    Raises:
        ConfigError: The searcher does not learn, or an earlier sweep trained something else.
        StudyError: There is no such sweep, or it cannot be read.
    """
    names = list(dict.fromkeys(config.searcher.from_sweeps or ()))
    if names and not traits.learns_from_others:
        raise ConfigError(
            FROM_SWEEPS,
            names,
            f": searcher={traits.name or traits.target} learns from no other sweep",
            "a searcher that does: rf, tpe, gp",
            f"searcher=rf, or {FROM_SWEEPS}=null",
        )
    if LATEST in names:
        raise ConfigError(
            FROM_SWEEPS, [LATEST], ": a resumed sweep would find itself", "names of sweeps", spell_command("list")
        )
    earlier: list[TrialRecord] = []
    notes: list[str] = []
    for name in names:
        try:
            settings, records = _read_sweep(name, config)
            settings = replace(settings, algo=remove_from_values(settings.algo, not_normalised))
        except StudyError as error:
            if not resumed:
                raise
            notes.append(f"the searcher no longer learns from {name}: {error.what}")
            continue
        placed = [trial for record in records if (trial := _place_trial(record, settings, config, space))]
        earlier += placed
        others = "; the others lie outside of the space, failed or have not ended" if len(placed) < len(records) else ""
        notes.append(f"the searcher learns from {len(placed)} of the {len(records)} trials of {name}{others}")
        if differences := _list_differences(settings, config, space):
            notes.append(f"{name} had other settings that are not searched: {', '.join(differences)}")
    return tuple(earlier), tuple(notes)


def _read_sweep(name: str, config: RunConfig) -> tuple[RunConfig, list[TrialRecord]]:
    """Read the settings and trials of an earlier sweep, and check that it trained the same task.

    Raises:
        ConfigError: It trained something else.
        StudyError: There is none of this name, or it cannot be read.
    """
    folder = SweepRef(name, config.output_dir, config.storage).folder(FROM_SWEEPS)
    try:
        settings = parse_config(read_settings(folder))
    except ConfigError as error:
        # Another version of rltune has written these settings.
        raise StudyError(
            f": its settings cannot be read: {error.what}",
            "sweeps that this version of rltune shows",
            f"leave {name} out of {FROM_SWEEPS}",
            key=FROM_SWEEPS,
            value=[name],
        ) from None
    theirs, ours = asdict(settings), asdict(config)
    for key in SAME:
        section, _, setting = key.partition(".")
        before, now = theirs[section].get(setting), ours[section].get(setting)
        if key == "objective.key" and before == now is not None:  # A metric of the same name may be another number.
            before, now = (specify_env(each.env, each.objective, each.metrics).objective for each in (settings, config))
        if key == "score.episodes":  # Played episodes act greedily, those of the training do not.
            before, now = (size_score(each.score) for each in (settings, config))
            now = before if bool(before) == bool(now) else now
        if before != now:
            raise ConfigError(
                FROM_SWEEPS,
                [name],
                f"has {key}={spell(before)}, this sweep {key}={spell(now)}",
                "sweeps whose algorithm, environment and objective are this one's",
                f"leave {name} out of {FROM_SWEEPS}",
            )
    from rltune.ledger.storage import open_ledger  # Imported here, because SQLAlchemy loads slowly.

    with contextlib.closing(open_ledger(folder, config.study.storage)) as ledger:
        return settings, ledger.trials.records()


def _place_trial(record: TrialRecord, earlier: RunConfig, config: RunConfig, space: Space) -> TrialRecord | None:
    """Convert a trial of an earlier sweep to this sweep's space and budget; None if it does not fit."""
    if record.state in ("RUNNING", "FAIL"):
        return None
    searched = {dimension.name for dimension in space.dimensions}
    names = {*space.names, *record.params} - space.idle.keys()
    values = _read_values(earlier, names) | dict(record.params)
    fixed = _read_values(config, names - searched) | dict(space.fixed)
    drawn = space.encode(space.active_values({name: values[name] for name in searched & values.keys()}))
    if any(values.get(name) != value for name, value in fixed.items()) or not space.is_fully_specified(drawn):
        return None
    budget, last_mark = config.budget.env_steps, max(record.reports, default=0)
    has_ended = record.state == "COMPLETE" and record.stop_reason in (TARGET_HELD, PLATEAU)
    is_complete = last_mark >= budget or has_ended
    placed = replace(
        record,
        state="COMPLETE" if is_complete else "PRUNED",
        diverged=record.diverged and not is_complete,
        params=space.decode(drawn),
        drawn=drawn,
        reports={mark: objective for mark, objective in record.reports.items() if mark <= budget},
        numbers=record.numbers if last_mark <= budget else {},
        env_steps=min(budget, record.env_steps),
        train_s=record.train_s * min(1.0, budget / max(1, record.env_steps)),
    )
    if placed.score is None and not placed.diverged:  # The earlier trial has no report within this sweep's budget.
        return None
    return read_criteria(asdict(config)).judge(placed)


def _list_differences(earlier: RunConfig, config: RunConfig, space: Space) -> list[str]:
    """List the arguments of the algorithm that differ between two sweeps and are searched by neither."""
    searched = {*space.names, *dict(flatten_settings(earlier.space))}
    names = list_arguments(config.algo).keys() - searched
    before, now = (_read_values(each, names) for each in (earlier, config))
    return [f"{name}={before.get(name)}, here {now[name]}" for name in sorted(now) if before.get(name) != now[name]]


def _read_values(config: RunConfig, names: Iterable[str]) -> dict[str, Any]:
    """Return the values of arguments in a sweep's settings; names that are missing or ambiguous are skipped."""
    values: dict[str, Any] = {}
    arguments = name_arguments(config.algo, config.env)
    for name in names:
        with contextlib.suppress(ConfigError):
            values |= values_of(arguments, (name,))
    return values
