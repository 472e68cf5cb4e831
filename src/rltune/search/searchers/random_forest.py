"""Propose by a random forest over parameters and training steps, so that stopped trials teach too.

As in SMAC (Hutter et al. 2011) a forest predicts objectives, and random configurations come in between. Here each
report of a trial is an example, with its environment steps as one more input, and what is predicted is the end of a
whole training. The highest prediction among random candidates is tried, not the largest expected improvement: the
random half of the trials explores. No candidate is made by a small step away from the best trial, as SMAC does: a
forest has steps, not slopes, so such a candidate would be that trial once more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from rltune.records import Direction
from rltune.search.searchers.unit_cube import Array, UnitCube

if TYPE_CHECKING:
    from optuna.study import Study

MAX_EXAMPLES = 1000  # of fewer trials: 500 give two each, and a proposal takes less than a tenth of a second
LEAF = 3  # examples at least; a trial without a number gives so many, so that others do not outvote it
NUM_CANDIDATES = 1000


class RandomForestSampler(BaseSampler):
    """Sampler for a study of one objective, of trials that report scores by environment steps.

    A trial without a number, such as one that diverged, counts as the worst report of all at the end of a whole
    training. A parameter that a trial lacks, because its condition is not met, has a random value in each of the
    trial's examples: the forest learns that it does not matter there. Where a constraint is broken, the trial counts as
    worse than the worst report, by how much it is broken.

    Args:
        n_startup_trials: So many trials are drawn at random before the first model.
        random_fraction: Of the later ones so many, whatever the model thinks.
        n_estimators: Trees.
        seed: Of all that is drawn.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        n_startup_trials: int = 8,
        random_fraction: float = 0.5,
        n_estimators: int = 10,
        seed: int | None = None,
    ) -> None:
        if not (n_startup_trials >= 0 and 0 <= random_fraction <= 1 and n_estimators >= 1):
            raise ValueError("n_startup_trials is at least 0, random_fraction from 0 to 1, n_estimators at least 1")
        self._n_startup_trials, self._random_fraction = n_startup_trials, random_fraction
        self._n_estimators = n_estimators
        self._rng = np.random.default_rng(seed)
        self._independent = RandomSampler(seed)

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return whatever some trial has, parameters with conditions among it."""
        distributions = {
            name: distribution for ended in _list_ended(study) for name, distribution in ended.distributions.items()
        }
        return {name: distribution for name, distribution in distributions.items() if not distribution.single()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw at random: before the first model, what no trial has had, and of the later trials a part."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose the candidate that is predicted the best at the end of a whole training."""
        ended = _list_ended(study)
        is_early = len(ended) < self._n_startup_trials or not search_space
        if is_early or self._rng.random() < self._random_fraction:
            return {}
        direction = Direction.MIN if study.direction == StudyDirection.MINIMIZE else Direction.MAX
        cube = UnitCube(search_space)
        tried = cube.place(ended)
        owners, fractions, objectives = list_examples(ended, direction)
        examples = np.column_stack([cube.expand(fill_missing(tried[owners], self._rng)), fractions])
        trees, _ = grow_trees(examples, rank_normally(objectives), owners, self._n_estimators, self._rng)
        candidates = cube.snap(self._rng.random((NUM_CANDIDATES, tried.shape[1])))
        predicted = _predict(trees, cube.expand(candidates))
        running = cube.place(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
        is_tried = _is_among(candidates, np.concatenate([tried, running]))  # In a space of choices alone, many are.
        predicted[is_tried & ~is_tried.all()] = -np.inf
        return cube.read(candidates[predicted.argmax()])


def fill_missing(places: Array, rng: np.random.Generator) -> Array:
    """Put random places where a trial lacks a parameter."""
    return np.where(np.isnan(places), rng.random(places.shape), places)


def grow_trees(
    examples: Array, targets: Array, owners: NDArray[np.intp], num_trees: int, rng: np.random.Generator
) -> tuple[list[Any], NDArray[np.intp]]:
    """Fit extremely randomized trees (Geurts et al. 2006), each to trials drawn with replacement.

    Drawn by the example, as scikit-learn's forests do, nearly every trial would be in every tree.

    Args:
        examples: Shape (examples, inputs).
        targets: What is predicted, shape (examples,).
        owners: Each example's trial, from 0; shape (examples,).
        num_trees: How many.
        rng: Draws trials, and the trees' seeds.

    Returns:
        The trees; and how often each of them has drawn each trial, shape (trees, trials).
    """
    from sklearn.tree import ExtraTreeRegressor  # seconds, for which a check of the settings need not wait

    trees, trials = [], owners.max() + 1
    times_drawn = np.zeros((num_trees, trials), dtype=np.intp)
    for drawn in times_drawn:
        drawn[:] = np.bincount(rng.integers(trials, size=trials), minlength=trials)
        seed = int(rng.integers(2**31))
        tree = ExtraTreeRegressor(min_samples_leaf=LEAF, max_features=0.8, random_state=seed)
        trees.append(tree.fit(examples, targets, drawn[owners]))
    return trees, times_drawn


def _list_ended(study: Study) -> list[FrozenTrial]:
    """List the trials that say something of their parameters: not those that failed."""
    ended: list[FrozenTrial] = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return ended


def list_examples(trials: Sequence[FrozenTrial], direction: Direction) -> tuple[NDArray[np.intp], Array, Array]:
    """Return for each example the trial, the fraction of a whole training, and the objective.

    A whole training is the longest that was seen. Of each trial there are as many reports as `MAX_EXAMPLES` allows,
    evenly spread, the last among them. What breaks a constraint is below the worst by what it breaks it by. Objectives
    that are to be minimized are negated: of those returned, the higher one is always better.
    """
    whole = max((step for trial in trials for step in trial.intermediate_values), default=1)
    most = max(1, MAX_EXAMPLES // len(trials))
    rows: list[tuple[int, float, float]] = []
    below = np.zeros(len(trials))
    for owner, trial in enumerate(trials):
        below[owner] = sum(max(0.0, excess) for excess in trial.constraints.values())
        curve = {step: score for step, score in trial.intermediate_values.items() if np.isfinite(score)}
        if trial.state == TrialState.COMPLETE:  # a searcher may be told another value than the last report's
            curve[max(curve, default=whole)] = trial.value
        steps = sorted(curve) if below[owner] == 0 else []
        every = -(-len(steps) // most) or 1
        rows += [(owner, step / whole, curve[step]) for step in steps[::-1][::every]] or [(owner, 1.0, np.nan)] * LEAF
    numbers, fractions, objectives = np.array(rows, dtype=float).T
    owners, objectives = numbers.astype(np.intp), direction.sign * objectives
    worst = np.nanmin(objectives) if np.isfinite(objectives).any() else 0.0
    return owners, fractions, np.where(np.isnan(objectives), worst - below[owners], objectives)


def rank_normally(objectives: Array) -> Array:
    """Put quantiles of the normal distribution in the objectives' places: a return of -1e6 is the lowest, no more."""
    from scipy.special import ndtri

    ordered = np.sort(objectives)
    ranks = [np.searchsorted(ordered, objectives, side) for side in ("left", "right")]
    return np.asarray(ndtri(np.mean(ranks, axis=0) / len(ordered)))


def _predict(trees: Sequence[Any], inputs: Array) -> Array:
    """Return the mean over the trees at the end of a whole training."""
    whole = np.column_stack([inputs, np.ones(len(inputs))]).astype(np.float32)
    return np.asarray(np.mean([tree.predict(whole, check_input=False) for tree in trees], axis=0))


def _is_among(candidates: Array, others: Array) -> NDArray[np.bool_]:
    """Whether each candidate is one of the others."""
    rows = {row.tobytes() for row in others.round(9)}
    return np.array([row.tobytes() in rows for row in candidates.round(9)])
