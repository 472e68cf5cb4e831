"""Compute what a sweep's trials say together: the best so far over time, and the study that Optuna's figures read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltune.records import TrialRecord
from rltune.reporting.sweep_data import SweepData
from rltune.search.dimensions import Dimension
from rltune.search.samplers import quieten_optuna
from rltune.study.ranking import BestSoFar

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Moment:
    """The best of all trials, after one report.

    Attributes:
        env_steps: Of all trials and seeds together, up to here.
        seconds: Since the first trial was proposed.
        best: The highest score by then.
    """

    env_steps: int
    seconds: float
    best: float


def follow_best_so_far(data: SweepData) -> list[Moment]:
    """Follow the best so far, in the order in which the reports came."""
    replicates = int(data.settings.get("replicates", 1))
    began = min((trial.began_s for trial in data.trials if trial.began_s is not None), default=0.0)
    moments: list[Moment] = []
    before: Counter[int] = Counter()
    barred = {trial.number for trial in data.trials if trial.broken}
    total, following = 0, BestSoFar(data.criteria.scored)
    for report in data.reports:
        total += (report.env_steps - before[report.number]) * replicates
        before[report.number] = report.env_steps
        if report.number not in barred and (best := following.add(report.number, report.objective)) is not None:
            moments.append(Moment(total, report.time_s - began, best))
    return moments


def axis_of(one: Dimension) -> str:
    """Return a parameter's name in Optuna's figures: as it is searched (``1-gamma``), but a power of two as it is."""
    return one.name if one.kind == "pow2" else one.label


def build_optuna_study(
    data: SweepData, trials: Sequence[TrialRecord], values: Sequence[float], *, direction: str = "maximize"
) -> optuna.Study:
    """Put trials into a study in memory, for Optuna's figures, which read complete trials only.

    A parameter's value outside the space, which ``sweeps.resume`` may have changed since, is left out.

    Args:
        data: The sweep.
        trials: The trials, in the study's order.
        values: What each counts as having reached, finite.
        direction: ``maximize`` or ``minimize``: which values are the better ones.
    """
    import optuna

    space = data.space
    known = space.distributions()
    with quieten_optuna():
        study = optuna.create_study(direction=direction)
    for trial, value in zip(trials, values, strict=True):
        raw, params, distributions = space.encode(trial.params), {}, {}
        for one in space.dimensions:
            if one.label in raw and one.kind == "pow2":
                params[one.name] = trial.params[one.name]
                distributions[one.name] = optuna.distributions.IntDistribution(*one.args, log=True)
            elif one.label in raw:
                params[one.label], distributions[one.label] = raw[one.label], known[one.label]
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    return study


def list_varied_parameters(data: SweepData, study: optuna.Study) -> list[Dimension]:
    """List the searched parameters that differ between a study's trials."""
    params = [trial.params for trial in study.get_trials(deepcopy=False)]

    def varies(axis: str) -> bool:
        return len({each[axis] for each in params if axis in each}) > 1

    return [one for one in data.space.dimensions if varies(axis_of(one))]
