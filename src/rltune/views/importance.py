"""Estimate which parameters a sweep's scores depend on, by how much worse they are predicted without one of them.

Kernel ridge regression predicts each trial's score from the values of the other trials, once with all parameters and
once without each of them (leave-one-covariate-out, Lei et al. 2018). The kernel is a product over the parameters, so
that parameters that act only together count (Durrande et al. 2013, "ANOVA kernels and RKHS of zero mean functions for
model-based sensitivity analysis"). A regression also finds patterns in luck, so the same is measured on copies of the
sweep whose scores are shuffled between the trials (Altmann et al. 2010). Only a parameter that beats nearly all of them
is named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from optuna.distributions import CategoricalDistribution
from optuna.trial import FrozenTrial, TrialState, create_trial

from rltune.records import Direction, TrialRecord
from rltune.search.searchers.random_forest import rank_normally
from rltune.search.searchers.unit_cube import Array, UnitCube
from rltune.search.space import Space

MIN_TRIALS = 10  # Below this number of trials, the test would not find even an important parameter.
MAX_TRIALS = 300  # Of more trials so many are drawn, because the time grows with the cube of their number.
# Trials are compared at the steps that nearly as many of them have reached as any step: at all steps without early
# stopping, and at those up to the first rung with halving.
SHARE_OF_TRIALS = 0.9
NUM_NULL_SWEEPS = 499  # Copies of the sweep with shuffled scores.
# A parameter must beat all but nine of these copies. If none matters, one does so by chance in 10 of 500 sweeps.
NUM_ABOVE = 10
LENGTH = 0.5  # The kernel's length scale, as a fraction of a parameter's range on its own scale.
POWER = {12: 0.0, 24: 0.04, 48: 0.85}
"""How many of the simulated PPO sweeps name the learning rate where it alone decides, by the number of trials. From
``benchmarks/results/importance.json``."""
INTERACTIONS = (0.2, 2.0)  # Kernels of which the first is nearly additive, and the second has parameters act together.


@dataclass(frozen=True)
class Importance:
    """The importance of each parameter of a sweep, and how large it may be by chance.

    Attributes:
        num_trials: Trials that were used: all with a score where trials are compared, and those that diverged.
        increases: How much the squared error of the predictions grows without one parameter, as a fraction of the
            error, the largest first. Empty with too few trials, or where these do not differ.
        chance: The increase that a parameter exceeds by chance in 1 of 50 sweeps in which none matters.
    """

    num_trials: int
    increases: Mapping[str, float]
    chance: float

    @property
    def outstanding(self) -> list[str]:
        """The parameters whose importance is greater than chance, the most important first."""
        return [name for name, increase in self.increases.items() if increase > self.chance]


def measure_importance(space: Space, trials: Sequence[TrialRecord], direction: Direction, seed: int = 0) -> Importance:
    """Estimate the importance of all parameters of a sweep, which takes less than a second.

    Args:
        space: The search space.
        trials: The trials of the search.
        direction: Which scores are better.
        seed: The seed of all shuffles.
    """
    rng = np.random.default_rng(seed)
    usable = [trial for trial in trials if trial.state != "FAIL" and (trial.score is not None or trial.diverged)]
    if len(usable) < MIN_TRIALS:
        return Importance(len(usable), {}, 0.0)
    ranks = _rank_curves(usable, direction)
    known = np.flatnonzero(np.isfinite(ranks))
    if len(known) > MAX_TRIALS:
        known = np.sort(rng.choice(known, MAX_TRIALS, replace=False))
    frozen, targets = [_freeze(space, usable[index]) for index in known], rank_normally(ranks[known])
    names = {
        dimension.label: dimension.name
        for dimension in space.dimensions
        if len({str(trial.params[dimension.label]) for trial in frozen if dimension.label in trial.params}) > 1
    }
    if len(frozen) < MIN_TRIALS or not names or not np.ptp(targets):
        return Importance(len(frozen), {}, 0.0)
    shuffled = [rng.permutation(targets) for _ in range(NUM_NULL_SWEEPS)]
    increases = _leave_out_parameters(_make_kernels(space, frozen, list(names)), np.column_stack([targets, *shuffled]))
    chance = float(np.sort(increases[:, 1:].max(axis=0))[-NUM_ABOVE])
    order = np.argsort(-increases[:, 0])
    return Importance(len(frozen), {list(names.values())[axis]: float(increases[axis, 0]) for axis in order}, chance)


def explain_silence(num_trials: int) -> str:
    """Return a sentence on what it means if no parameter of so many trials stands out."""
    size = max((size for size in POWER if size <= num_trials), default=min(POWER))
    return (
        "No parameter stands out from chance. That does not mean that none matters: of simulated PPO sweeps of "
        f"{size} trials in which the learning rate alone decided, {POWER[size]:.0%} named it."
    )


def _rank_curves(trials: Sequence[TrialRecord], direction: Direction) -> Array:
    """Return each trial's mean rank at the steps that nearly all have reached, shape (trials,); NaN without a score.

    A trial that diverged is the worst at each step.
    """
    curves = [trial.scores for trial in trials]
    marks = sorted({mark for curve in curves for mark in curve})
    scores = np.array([[curve.get(mark, np.nan) for mark in marks] for curve in curves])
    scores[[trial.diverged for trial in trials]] = -np.inf * direction.sign
    num_known = (~np.isnan(scores)).sum(axis=0)
    ranks = np.full(scores.shape, np.nan)
    for mark in np.flatnonzero(num_known >= SHARE_OF_TRIALS * num_known.max(initial=0)):
        has_score = ~np.isnan(scores[:, mark])
        ranks[has_score, mark] = rank_normally(direction.sign * scores[has_score, mark])
    num_ranks = np.isfinite(ranks).sum(axis=1)
    return np.where(num_ranks, np.nansum(ranks, axis=1) / np.maximum(1, num_ranks), np.nan)


def _make_kernels(space: Space, trials: Sequence[FrozenTrial], labels: Sequence[str]) -> Array:
    """Return each parameter's similarity of all pairs of trials, shape (parameters, trials, trials).

    Each kernel is centered and has a mean of 1 on its diagonal. A trial without the parameter, because its condition
    is not met, is similar to none.
    """
    distributions = space.distributions()
    places = UnitCube({label: distributions[label] for label in labels}).place(trials)
    kernels = []
    for label, place in zip(labels, places.T, strict=True):
        apart, has_value = place[:, None] - place, np.isfinite(place)
        is_choice = isinstance(distributions[label], CategoricalDistribution)
        kernel = np.abs(apart) < 1e-9 if is_choice else np.exp(-0.5 * (apart / LENGTH) ** 2)
        kernel = np.where(np.outer(has_value, has_value), kernel, 0.0)
        mean = kernel.sum(axis=0) / has_value.sum()
        centered = np.outer(has_value, has_value) * (kernel - mean[:, None] - mean + mean.sum() / has_value.sum())
        kernels.append(centered * len(trials) / max(centered.trace(), 1e-12))
    return np.array(kernels)


def _leave_out_parameters(kernels: Array, targets: Array) -> Array:
    """Return the relative increase of the prediction error without each parameter, shape (parameters, sweeps).

    Args:
        kernels: Shape (parameters, trials, trials).
        targets: The trials' ranks in each sweep, shape (trials, sweeps).
    """
    numbers = np.arange(len(kernels))
    error = _measure_error(kernels, len(kernels), targets)
    return np.array([_measure_error(kernels[numbers != left], len(kernels), targets) / error - 1 for left in numbers])


def _measure_error(kernels: Array, num_parameters: int, targets: Array) -> Array:
    """Return the squared error of predicting each trial from the others (Allen 1974), for each sweep.

    Of the kernels with few and with many interactions, the one with the smaller error counts.
    """
    errors = []
    for interactions in INTERACTIONS:
        share = interactions / num_parameters
        ridge = (1 + share) ** num_parameters - 1  # This is the kernel's own variance, with all parameters.
        covariance = np.prod(1 + share * kernels, axis=0) - 1 + ridge * np.eye(len(targets))
        inverse = np.linalg.inv(covariance)
        errors.append(np.mean((inverse @ targets / inverse.diagonal()[:, None]) ** 2, axis=0))
    return np.asarray(np.min(errors, axis=0))


def _freeze(space: Space, record: TrialRecord) -> FrozenTrial:
    """Make an Optuna trial with the values that lie in the space."""
    drawn, distributions = space.encode(record.params), space.distributions()
    return create_trial(
        state=TrialState.PRUNED,
        params={label: drawn[label] for label in drawn if label in distributions},
        distributions={label: distributions[label] for label in drawn if label in distributions},
    )
