"""Compute what a sweep's trials say together: the best so far over time, and the study that Optuna's figures read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltune.algorithms.arguments import build_search_space
from rltune.errors import RltuneError
from rltune.ledger.ranking import BestSoFar
from rltune.records import Direction
from rltune.search.dimensions import Dimension
from rltune.search.samplers import quieten_optuna
from rltune.search.schedulers import build_stopping_rule
from rltune.search.space import Space
from rltune.views.sweep_view import SweepView, TrialSnapshot

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Moment:
    """The best of all trials, after one report.

    Attributes:
        env_steps: Of all trials and seeds together, up to here.
        seconds: Since the first trial was proposed.
        best: The best score by then.
    """

    env_steps: int
    seconds: float
    best: float


def build_space(view: SweepView) -> Space:
    """Build a sweep's search space from its settings."""
    return build_search_space(view.settings["algo"], view.settings["space"])


def list_rungs(view: SweepView) -> list[int]:
    """List the rungs in environment steps; empty for a scheduler without rungs, or one that is refused by now."""
    scheduler = view.settings["scheduler"]
    try:
        rule = build_stopping_rule(scheduler["kind"], scheduler.get("args") or {}, view.env_steps)
    except RltuneError:
        return []
    return list(rule.levels)


def follow_best_so_far(view: SweepView) -> list[Moment]:
    """Follow the best score in the order in which the reports came."""
    began = min((trial.record.began_s for trial in view.trials if trial.record.began_s is not None), default=0.0)
    moments: list[Moment] = []
    before: Counter[int] = Counter()
    barred = {trial.number for trial in view.trials if trial.broken}
    total, following = 0, BestSoFar(view.criteria.direction)
    for report in view.reports:
        total += (report.env_steps - before[report.number]) * view.replicates
        before[report.number] = report.env_steps
        if report.number not in barred and (best := following.add(report.number, report.objective)) is not None:
            moments.append(Moment(total, report.time_s - began, best))
    return moments


def axis_of(dimension: Dimension) -> str:
    """Return a parameter's name in Optuna's figures: as it is searched (``1-gamma``), but a power of two as it is."""
    return dimension.name if dimension.kind == "pow2" else dimension.label


def build_optuna_study(space: Space, trials: Sequence[TrialSnapshot], direction: Direction) -> optuna.Study:
    """Put trials into a study in memory, for Optuna's figures, which read complete trials only.

    A parameter's value outside the space, which a resume may have changed since, is left out.

    Args:
        space: The search space.
        trials: The trials, in the study's order. Each has a score.
        direction: Which scores are better.
    """
    import optuna

    searched = space.distributions()
    with quieten_optuna():
        study = optuna.create_study(direction="maximize" if direction is Direction.MAX else "minimize")
    for trial in trials:
        raw, params, distributions = space.encode(trial.params), {}, {}
        for dimension in space.dimensions:
            label = dimension.label
            if label in raw and dimension.kind == "pow2":
                params[dimension.name] = trial.params[dimension.name]
                distributions[dimension.name] = optuna.distributions.IntDistribution(*dimension.args, log=True)
            elif label in raw:
                params[label], distributions[label] = raw[label], searched[label]
        created = optuna.trial.create_trial(params=params, distributions=distributions, value=trial.score)
        study.add_trial(created)
    return study


def list_varied_parameters(space: Space, study: optuna.Study) -> list[Dimension]:
    """List the searched parameters that differ between a study's trials."""
    params = [trial.params for trial in study.get_trials(deepcopy=False)]

    def varies(axis: str) -> bool:
        return len({each[axis] for each in params if axis in each}) > 1

    return [dimension for dimension in space.dimensions if varies(axis_of(dimension))]
