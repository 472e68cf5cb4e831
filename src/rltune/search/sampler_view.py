"""Choose how a trial that was stopped, diverged or failed is shown to an Optuna sampler.

Samplers differ in which of Optuna's trial states they read. If a sampler does not see a bad trial, it proposes the
neighbors of that trial again.
"""

from __future__ import annotations

from dataclasses import replace

from rltune.records import SamplerView, TrialForSampler, TrialRecord
from rltune.search.samplers import SamplerTraits


def choose_view(traits: SamplerTraits, *, has_constraints: bool = False) -> SamplerView:
    """Choose by the sampler's traits how ended trials are shown to it.

    Args:
        traits: What the sampler can do.
        has_constraints: Whether the sweep has constraints. A sampler that does not heed them is told that a trial which
            breaks one has diverged.
    """
    view = tell_as_pruned if traits.reads_curves else tell_as_complete
    if not has_constraints or traits.heeds_constraints:
        return view
    return lambda record, worst: view(replace(record, diverged=record.diverged or bool(record.broken)), worst)


def tell_as_pruned(record: TrialRecord, worst: float | None) -> TrialForSampler:
    """Show a trial to a sampler that reads the learning curves of pruned trials, such as TPE, or that reads no trials.

    The random forest learns from each report of a curve. Optuna's TPE ranks PRUNED trials below all COMPLETE ones (5.0;
    `_split_trials` and `_get_pruned_trial_score` in optuna/samplers/_tpe/sampler.py): the later a trial was stopped,
    the better, then by its last value; one without a curve comes last of all. So an infeasible trial is told without
    its curve, however well it did before.

    Args:
        record: A trial that has ended.
        worst: This view does not need it.
    """
    if record.is_infeasible or (record.score is None and record.state != "FAIL"):
        return TrialForSampler("PRUNED")
    return TrialForSampler(record.state, record.score if record.state == "COMPLETE" else None, record.scores)


def tell_as_complete(record: TrialRecord, worst: float | None) -> TrialForSampler:
    """Show a trial with a value to a sampler that only reads COMPLETE trials, such as Optuna's GP, CMA-ES and NSGA-II.

    A stopped trial has the score that it had reached. An infeasible one, and one that never finished an episode, has
    the worst value told so far, which is bad but of the others' size: a value far below would flatten all differences
    between the others.

    Args:
        record: A trial that has ended.
        worst: The worst value told so far. Before the first, None, such a trial is told as FAIL.
    """
    if record.state == "FAIL" and not record.is_infeasible:
        return TrialForSampler("FAIL", reports=record.scores)
    value = worst if record.is_infeasible or record.score is None else record.score
    return TrialForSampler("FAIL" if value is None else "COMPLETE", value, record.scores)
