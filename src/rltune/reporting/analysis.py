"""What a sweep's trials say together: the best so far over time, and which parameters matter. Draws nothing.

Runs anywhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rltune.reporting.sweep_data import Findings
from rltune.search.dimensions import Dimension
from rltune.study.record import TrialRecord

if TYPE_CHECKING:
    import optuna


MIN_TRIALS = 10  # with fewer, importance says more about chance than about the parameters


@dataclass(frozen=True)
class Moment:
    """The best so far, after one report.

    Attributes:
        env_steps: Of all trials and seeds together, up to here.
        seconds: Since the first trial was asked for.
        best: The highest objective reported so far.
    """

    env_steps: int
    seconds: float
    best: float


def progress(found: Findings) -> list[Moment]:
    """Follow the best so far, in the order in which the reports came.

    The ledger has the time of a trial's beginning and end but not of each report: between the two they are placed as
    if the trial had trained at an even speed.
    """
    replicates = int(found.settings.get("replicates", 1))
    began = min((e.began_s for e in found.entries if e.began_s is not None), default=0.0)
    reports = []
    for entry in found.entries:
        if entry.began_s is None or not entry.reports:
            continue
        last = max(entry.reports)
        ended = entry.ended_s or entry.began_s + float(entry.attributes.get("train_s", 0.0))
        before = 0
        for env_steps, objective in entry.reports.items():
            at = entry.began_s - began + (ended - entry.began_s) * env_steps / max(last, 1)
            reports.append((at, (env_steps - before) * replicates, objective))
            before = env_steps
    moments, total, best = [], 0, -math.inf
    for at, env_steps, objective in sorted(reports):
        total += env_steps
        best = max(best, objective) if math.isfinite(objective) else best
        if math.isfinite(best):
            moments.append(Moment(total, at, best))
    return moments


def axis_of(one: Dimension) -> str:
    """Name a parameter in Optuna's figures: as it is searched (``1-gamma``), but a power of two as it is."""
    return one.name if one.kind == "pow2" else one.label


def build_optuna_study(
    found: Findings, entries: Sequence[TrialRecord], values: Sequence[float], *, as_searched: bool = False
) -> optuna.Study:
    """Put trials into a study in memory, for Optuna's importance and figures, which read complete trials only.

    A parameter's value outside the space, which ``sweeps.resume`` may have changed since, is left out.

    Args:
        found: The sweep.
        entries: The trials, in the study's order.
        values: What each counts as having reached, finite.
        as_searched: Whether parameters are named as in the ledger, not by `axis_of`, and powers of two are exponents.
    """
    import optuna

    searched = found.searched
    known = searched.distributions()
    study = optuna.create_study(direction="maximize")
    for entry, value in zip(entries, values, strict=True):
        raw, params, distributions = searched.encode(entry.params), {}, {}
        for one in searched.dimensions:
            if one.label in raw and one.kind == "pow2" and not as_searched:
                params[one.name] = entry.params[one.name]
                distributions[one.name] = optuna.distributions.IntDistribution(*one.args, log=True)
            elif one.label in raw:
                params[one.label], distributions[one.label] = raw[one.label], known[one.label]
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=value))
    return study


def varied_parameters(found: Findings, study: optuna.Study) -> list[Dimension]:
    """Keep the searched parameters that differ between a study's trials."""
    params = [trial.params for trial in study.get_trials(deepcopy=False)]

    def varies(axis: str) -> bool:
        return len({each[axis] for each in params if axis in each}) > 1

    return [one for one in found.searched.dimensions if varies(axis_of(one))]


def importance(found: Findings) -> tuple[dict[str, float], str]:
    """How much each parameter matters for being among the best, and what was asked, in words.

    PED-ANOVA (Watanabe et al. 2023), on the objective at the number of steps that all trials have reached, since the
    final returns of stopped trials and of whole ones cannot be compared.

    Returns:
        Shares by name that add up to 1, the largest first; empty with the reason in words.
    """
    usable = [e for e in found.entries if e.state in ("COMPLETE", "PRUNED") and e.best is not None]
    if len(usable) < MIN_TRIALS:
        return {}, f"Importance needs at least {MIN_TRIALS} trials with returns; this sweep has {len(usable)}."
    import optuna

    common = min(max(entry.reports) for entry in usable)
    study = build_optuna_study(found, usable, [_value_at(entry, common) for entry in usable], as_searched=True)
    try:
        shares = optuna.importance.get_param_importances(
            study, evaluator=optuna.importance.PedAnovaImportanceEvaluator()
        )
    except (ValueError, RuntimeError) as error:  # all returns equal, or no parameter that every trial has
        return {}, f"Importance cannot be told: {error}"
    if not shares or not sum(shares.values()):
        return {}, "Importance cannot be told: no parameter makes a difference between these trials."
    said = (
        f"Share of each parameter in what sets the better trials apart (PED-ANOVA), from the returns of {len(usable)} "
        f"trials at {common:,} environment steps, which all of them reached."
    )
    names = {one.label: one.name for one in found.searched.dimensions}
    return {names[label]: float(share) for label, share in shares.items()}, said


def _value_at(entry: TrialRecord, env_steps: int) -> float:
    """The last finite report at or before so many steps, else the first one after; there is one."""
    finite = {step: value for step, value in entry.reports.items() if math.isfinite(value)}
    before = [value for step, value in finite.items() if step <= env_steps]
    return before[-1] if before else next(iter(finite.values()))
