"""Say what a searcher is told of a trial that has ended: its view of those that were stopped, or that diverged.

Samplers differ in which of Optuna's states they read. A bad trial that a sampler does not see is one whose neighbours
it proposes again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rltune.records import ToldTrial, TrialRecord
from rltune.search.samplers import inherit_traits

View = Callable[[TrialRecord, float | None], ToldTrial]


def choose_view(kind: str, view: str = "auto", *, has_constraints: bool = False) -> View:
    """Choose what a sampler is told.

    Args:
        kind: A name in SAMPLERS, or ``package.module:Class``.
        view: ``pruned``, ``complete``, or ``auto``: by the sampler's class.
        has_constraints: Whether the sweep has constraints, about which some samplers must be told differently.

    Returns:
        Turns a trial that has ended, and the worst value told so far, into what is told of it.

    Raises:
        ConfigError: There is no sampler of this kind.
    """
    traits = inherit_traits(kind)
    if view == "auto":
        view = "pruned" if traits.reads_curves else "complete"
    tell = {"pruned": tell_as_pruned, "complete": tell_as_complete}[view]
    return tell_broken_as_diverged(tell) if has_constraints and not traits.heeds_constraints else tell


def tell_broken_as_diverged(view: View) -> View:
    """Return a view for a sampler that knows no constraints: a trial that breaks one is as bad as one that diverged."""
    return lambda record, worst: view(replace(record, diverged=record.diverged or bool(record.broken)), worst)


def tell_as_pruned(record: TrialRecord, worst: float | None) -> ToldTrial:
    """Tell a sampler that reads the curves of PRUNED trials, or none at all.

    A trial that diverged, or that no GPU has the memory for, is told as PRUNED without a curve: it is the worst.

    The random forest learns from each of their points. Optuna's TPE ranks them below all COMPLETE trials (5.0;
    `_split_trials` and `_get_pruned_trial_score` in optuna/samplers/_tpe/sampler.py): the later a trial was stopped,
    the better, then by its last value; one without a curve comes last of all. So a trial that diverged is told without
    its curve, however well it did before.

    Args:
        record: A trial that has ended.
        worst: The worst value told so far; this view needs none.
    """
    if record.is_infeasible:
        return ToldTrial("PRUNED")
    if record.state == "FAIL":
        return ToldTrial("FAIL", reports=record.scores)
    if record.score is None:
        return ToldTrial("PRUNED")
    if record.state == "PRUNED":
        return ToldTrial("PRUNED", reports=record.scores)
    return ToldTrial("COMPLETE", record.score, record.scores)


def tell_as_complete(record: TrialRecord, worst: float | None) -> ToldTrial:
    """Tell a sampler that fits COMPLETE trials alone, such as Optuna's GP, CMA-ES and NSGA-II: each gets a value.

    A stopped trial has the score that it had reached. One that diverged, that no GPU has the memory for, or that never
    finished an episode, has the worst value told so far, which is bad and of the others' size: a made-up one, far
    worse, would flatten all differences between the others.

    Args:
        record: A trial that has ended.
        worst: The worst value told so far; None before the first: such a trial is then told as FAIL.
    """
    if record.state == "FAIL" and not record.is_infeasible:
        return ToldTrial("FAIL", reports=record.scores)
    if record.is_infeasible or record.score is None:
        return ToldTrial("FAIL" if worst is None else "COMPLETE", worst, record.scores)
    return ToldTrial("COMPLETE", record.score, record.scores)
