"""A sampler with a random forest over parameters and training steps, which also learns from stopped trials.

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

MAX_EXAMPLES = 1000  # The most examples of the forest, but at least one per trial, so that a proposal takes 0.1 s.
# The minimum number of examples in a leaf. A trial without a finite report counts as this many examples; with fewer,
# the other trials in its leaf would hide how bad it is.
LEAF = 3
NUM_CANDIDATES = 1000


class RandomForestSampler(BaseSampler):
    """A random forest sampler for studies with one objective, in which trials report scores by environment steps.

    A trial without a finite report, such as one that diverged, counts as the worst report of all at the end of a whole
    training. A parameter that a trial lacks, because its condition is not met, has a random value in each of the
    trial's examples: the forest learns that it does not matter there. Where a constraint is broken, the trial counts as
    worse than the worst report, by how much it is broken.

    Args:
        n_startup_trials: The number of trials that are drawn at random before the first model.
        random_fraction: The fraction of later trials that are drawn at random as well.
        n_estimators: The number of trees.
        seed: The seed of all draws.

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
        """Return the distributions of all parameters of ended trials, including conditional ones."""
        distributions = {
            name: distribution for ended in _list_ended(study) for name, distribution in ended.distributions.items()
        }
        return {name: distribution for name, distribution in distributions.items() if not distribution.single()}

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a parameter at random: in the first trials, if it is new, and in a fraction of the later trials."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Propose the random candidate with the best score that the forest predicts for the end of the training."""
        ended = _list_ended(study)
        is_early = len(ended) < self._n_startup_trials or not search_space
        if is_early or self._rng.random() < self._random_fraction:
            return {}
        direction = Direction.MIN if study.direction == StudyDirection.MINIMIZE else Direction.MAX
        cube = UnitCube(search_space)
        tried = cube.place(ended)
        owners, fractions, objectives = list_examples(ended, direction)
        examples = np.column_stack([cube.expand(_fill_missing(tried[owners], self._rng)), fractions])
        trees = _grow_trees(examples, rank_normally(objectives), owners, self._n_estimators, self._rng)
        candidates = cube.snap(self._rng.random((NUM_CANDIDATES, tried.shape[1])))
        predicted = _predict(trees, cube.expand(candidates))
        running = cube.place(study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))
        # Candidates that were tried already are excluded, unless all of them were, as in a small space of choices.
        is_tried = _is_among(candidates, np.concatenate([tried, running]))
        predicted[is_tried & ~is_tried.all()] = -np.inf
        return cube.read(candidates[predicted.argmax()])


def _fill_missing(places: Array, rng: np.random.Generator) -> Array:
    """Fill parameters that a trial lacks, because their conditions are not met, with random values."""
    return np.where(np.isnan(places), rng.random(places.shape), places)


def _grow_trees(
    examples: Array, targets: Array, owners: NDArray[np.intp], num_trees: int, rng: np.random.Generator
) -> list[Any]:
    """Fit extremely randomized trees (Geurts et al. 2006), each on a bootstrap sample of the trials.

    If examples were drawn instead, as scikit-learn's forests do, nearly every trial would be in every tree.

    Args:
        examples: Shape (examples, inputs).
        targets: The values to predict, shape (examples,).
        owners: Each example's trial, from 0; shape (examples,).
        rng: Draws the trials and the trees' seeds.
    """
    # The import of scikit-learn takes seconds and is not needed to check the settings.
    from sklearn.tree import ExtraTreeRegressor

    trees, trials = [], owners.max() + 1
    # The examples are converted to float32 only once, and not again by each tree.
    inputs = np.ascontiguousarray(examples, dtype=np.float32)
    for _ in range(num_trees):
        drawn = np.bincount(rng.integers(trials, size=trials), minlength=trials)
        seed = int(rng.integers(2**31))
        tree = ExtraTreeRegressor(min_samples_leaf=LEAF, max_features=0.8, random_state=seed)
        trees.append(tree.fit(inputs, targets, drawn[owners].astype(float), check_input=False))
    return trees


def _list_ended(study: Study) -> list[FrozenTrial]:
    """List the complete and pruned trials, from which the forest learns."""
    ended: list[FrozenTrial] = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    return ended


def list_examples(trials: Sequence[FrozenTrial], direction: Direction) -> tuple[NDArray[np.intp], Array, Array]:
    """Return the forest's training examples: each one's trial, fraction of the training, and objective.

    A whole training is the longest one so far. Each trial gives as many reports as `MAX_EXAMPLES` allows, evenly
    spread, the last one included. A trial that breaks a constraint is worse than the worst report by its excess.
    Objectives that are to be minimized are negated, so that higher is always better in the result.
    """
    whole = max((step for trial in trials for step in trial.intermediate_values), default=1)
    most = max(1, MAX_EXAMPLES // len(trials))
    rows: list[tuple[int, float, float]] = []
    below = np.zeros(len(trials))
    for owner, trial in enumerate(trials):
        below[owner] = sum(max(0.0, excess) for excess in trial.constraints.values())
        curve = {step: score for step, score in trial.intermediate_values.items() if np.isfinite(score)}
        # The value of a complete trial replaces the score of its last report, which may differ.
        if trial.state == TrialState.COMPLETE:
            curve[max(curve, default=whole)] = trial.value
        steps = sorted(curve) if below[owner] == 0 else []
        every = -(-len(steps) // most) or 1
        rows += [(owner, step / whole, curve[step]) for step in steps[::-1][::every]] or [(owner, 1.0, np.nan)] * LEAF
    numbers, fractions, objectives = np.array(rows, dtype=float).T
    owners, objectives = numbers.astype(np.intp), direction.sign * objectives
    worst = np.nanmin(objectives) if np.isfinite(objectives).any() else 0.0
    return owners, fractions, np.where(np.isnan(objectives), worst - below[owners], objectives)


def rank_normally(objectives: Array) -> Array:
    """Transform objectives to normal quantiles of their ranks, which limits the influence of outliers."""
    from scipy.special import ndtri

    ordered = np.sort(objectives)
    ranks = [np.searchsorted(ordered, objectives, side) for side in ("left", "right")]
    return np.asarray(ndtri(np.mean(ranks, axis=0) / len(ordered)))


def _predict(trees: Sequence[Any], inputs: Array) -> Array:
    """Return the trees' mean prediction of the objective at the end of the training."""
    whole = np.column_stack([inputs, np.ones(len(inputs))]).astype(np.float32)
    return np.asarray(np.mean([tree.predict(whole, check_input=False) for tree in trees], axis=0))


def _is_among(candidates: Array, others: Array) -> NDArray[np.bool_]:
    """Return for each candidate whether it equals one of the configurations ``others``."""
    rows = {row.tobytes() for row in others.round(9)}
    return np.array([row.tobytes() in rows for row in candidates.round(9)])
