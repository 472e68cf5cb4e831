"""Prepare a sweep's data for figures: its search space, its rungs, and an Optuna study for Optuna's own figures."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rltune.algorithms.arguments import build_search_space, name_arguments
from rltune.errors import RltuneError
from rltune.records import Direction
from rltune.search.dimensions import Dimension
from rltune.search.samplers import quieten_optuna
from rltune.search.schedulers import build_stopping_rule
from rltune.search.space import Space
from rltune.views.sweep_view import SweepView, TrialSnapshot

if TYPE_CHECKING:
    import optuna

MAX_DRAWN = sys.float_info.max / 2  # A float can hold the range of scores up to this size; larger ones are drawn there.


def build_space(view: SweepView) -> Space:
    """Build the search space of a sweep from its saved settings."""
    return build_search_space(name_arguments(view.settings["algo"], view.settings["env"]), view.settings["space"])


def list_rungs(view: SweepView) -> list[int]:
    """List a scheduler's rungs in environment steps; empty for one without rungs, or if this version refuses it."""
    scheduler = view.settings["scheduler"]
    try:
        rule = build_stopping_rule(scheduler["kind"], scheduler.get("args") or {}, view.env_steps)
    except RltuneError:
        return []
    return list(rule.levels)


def axis_of(dimension: Dimension) -> str:
    """Return a parameter's axis label, such as ``1-gamma`` if that is drawn.

    A power of two keeps its own name, and so does a parameter of which the place in a range is drawn.
    """
    return dimension.name if _shows_values(dimension) else dimension.label


def _shows_values(dimension: Dimension) -> bool:
    is_plain = not dimension.before and not dimension.after
    return is_plain and (dimension.kind == "pow2" or bool(dimension.bounds))


def build_optuna_study(space: Space, trials: Sequence[TrialSnapshot], direction: Direction) -> optuna.Study:
    """Add trials to a temporary Optuna study, from which Optuna's figures are drawn.

    A parameter's value outside the space, which a resume may have changed since, is left out.

    Args:
        space: The search space.
        trials: The trials, in the study's order. Each has a score.
        direction: Which scores are better.
    """
    import optuna

    searched = space.distributions()
    ranges = {each.name: space.list_marks(each.name) for each in space.dimensions if _shows_values(each)}
    with quieten_optuna():
        study = optuna.create_study(direction="maximize" if direction is Direction.MAX else "minimize")
    for trial in trials:
        raw, params, distributions = space.encode(trial.params), {}, {}
        for dimension in space.dimensions:
            label = dimension.label
            if label in raw and _shows_values(dimension):
                params[dimension.name] = trial.params[dimension.name]
                ends, is_log = ranges[dimension.name], "log" in dimension.kind or dimension.kind == "pow2"
                make = (
                    optuna.distributions.IntDistribution
                    if dimension.is_whole
                    else optuna.distributions.FloatDistribution
                )
                distributions[dimension.name] = make(min(ends), max(ends), log=is_log)
            elif label in raw:
                params[label], distributions[label] = raw[label], searched[label]
        score = None if trial.score is None else max(-MAX_DRAWN, min(trial.score, MAX_DRAWN))
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=score))
    return study


def list_varied_axes(space: Space, study: optuna.Study) -> list[str]:
    """List the parameters that differ between the trials of an Optuna study."""
    params = [trial.params for trial in study.get_trials(deepcopy=False)]
    axes = map(axis_of, space.dimensions)
    return [axis for axis in axes if len({each[axis] for each in params if axis in each}) > 1]
