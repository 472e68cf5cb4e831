"""Estimate which parameters a sweep's scores depend on, by permutation importance (Breiman 2001) and a null test.

The forest of ``searcher=rf`` predicts each trial's scores from its values, by the trees that were not grown on that
trial. Then one parameter's values are shuffled between the trials: the more the scores depend on the parameter, the
worse the predictions become. A forest also finds patterns in luck, so the same is measured on sweeps that have none
but luck: this sweep with its scores shuffled between the trials (Altmann et al. 2010). Only a parameter that beats all
parameters of all these sweeps is reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState, create_trial

from rltune.records import Direction, TrialRecord
from rltune.search.searchers.random_forest import fill_missing, grow_trees, list_examples, rank_normally
from rltune.search.searchers.unit_cube import Array, UnitCube
from rltune.search.space import Space

MIN_TRIALS = 10  # Below this number of trials, the test would not find even an important parameter.
NUM_TREES = 20
NUM_SHUFFLES = 5  # A parameter's importance is the mean over this many shuffles of its values.
# A parameter must beat this many sweeps with shuffled scores. If none matters, one does so by chance in 1 of 51 cases.
NUM_NULL_SWEEPS = 50


@dataclass(frozen=True)
class Importance:
    """The importance of each parameter of a sweep, and how large it may be by chance.

    Attributes:
        num_trials: Trials that were used: all with a score, and those that diverged.
        increases: How much the squared error of the predictions grows when one parameter's values are shuffled, as a
            fraction of the error, the largest first. Empty with too few trials, or where these do not differ.
        chance: The largest increase of any parameter in the sweeps with shuffled scores.
    """

    num_trials: int
    increases: Mapping[str, float]
    chance: float

    @property
    def outstanding(self) -> list[str]:
        """The parameters whose importance is greater than chance, the most important first."""
        return [name for name, increase in self.increases.items() if increase > self.chance]


class _OutOfBagForest:
    """A random forest as a scikit-learn estimator, whose score is its error on out-of-bag trials."""

    def __init__(
        self, cube: UnitCube, trials: list[FrozenTrial], direction: Direction, rng: np.random.Generator
    ) -> None:
        self._cube, self._rng = cube, rng
        self._owners, self._fractions, objectives = list_examples(trials, direction)
        self._targets = rank_normally(objectives)
        self.can_differ = bool(np.ptp(self._targets) > 0)

    def fit(self, places: Array, y: None = None) -> _OutOfBagForest:
        """Fit the forest to the trials' reports; ``places`` (trials, parameters) are points in the unit cube."""
        examples = self._make_examples(places)
        self._trees, times_drawn = grow_trees(examples, self._targets, self._owners, NUM_TREES, self._rng)
        self._is_unseen = (times_drawn == 0)[:, self._owners]
        return self

    def score(self, places: Array, y: None = None) -> float:
        """Return the negative log of the out-of-bag squared error; the difference of two is a log ratio of errors."""
        examples = self._make_examples(places).astype(np.float32)
        predicted = np.array([tree.predict(examples, check_input=False) for tree in self._trees])
        num_unseen = self._is_unseen.sum(axis=0)
        is_scored = num_unseen > 0
        means = (predicted * self._is_unseen).sum(axis=0)[is_scored] / num_unseen[is_scored]
        return -float(np.log(np.mean((means - self._targets[is_scored]) ** 2)))

    def _make_examples(self, places: Array) -> Array:
        return np.column_stack([self._cube.expand(fill_missing(places, self._rng))[self._owners], self._fractions])


def measure_importance(space: Space, trials: Sequence[TrialRecord], direction: Direction, seed: int = 0) -> Importance:
    """Estimate the importance of all parameters of a sweep, which takes seconds.

    Args:
        space: The search space.
        trials: The trials of the search.
        direction: Which scores are better.
        seed: The seed of all shuffles and trees.
    """
    records = [trial for trial in trials if trial.state != "FAIL" and (trial.score is not None or trial.diverged)]
    frozen = [_freeze(space, record) for record in records]
    names = {
        dimension.label: dimension.name
        for dimension in space.dimensions
        if len({str(trial.params[dimension.label]) for trial in frozen if dimension.label in trial.params}) > 1
    }
    if len(frozen) < MIN_TRIALS or not names:
        return Importance(len(frozen), {}, 0.0)
    distributions, rng = space.distributions(), np.random.default_rng(seed)
    cube = UnitCube({label: distributions[label] for label in names})
    forest, places = _OutOfBagForest(cube, frozen, direction, rng), cube.place(frozen)
    if not forest.can_differ:
        return Importance(len(frozen), {}, 0.0)
    increases = _permute(forest, places, rng)
    chance = max(float(_permute(forest, rng.permutation(places), rng).max()) for _ in range(NUM_NULL_SWEEPS))
    order = np.argsort(-increases)
    return Importance(len(frozen), {list(names.values())[axis]: float(increases[axis]) for axis in order}, chance)


def _permute(forest: _OutOfBagForest, places: Array, rng: np.random.Generator) -> Array:
    """Return for each parameter the relative increase of the forest's error when its values are shuffled."""
    from sklearn.inspection import permutation_importance  # scikit-learn is imported here, because that takes a second.

    seed = int(rng.integers(2**31))
    importance: Any = permutation_importance(
        forest.fit(places), places, None, n_repeats=NUM_SHUFFLES, random_state=seed
    )
    return np.asarray(np.expm1(importance.importances_mean), dtype=float)


def _freeze(space: Space, record: TrialRecord) -> FrozenTrial:
    """Make an Optuna trial for the forest; a diverged trial has no scores and so counts as the worst."""
    drawn, distributions = space.encode(record.params), space.distributions()
    return create_trial(
        state=TrialState.PRUNED,
        params={label: drawn[label] for label in drawn if label in distributions},
        distributions={label: distributions[label] for label in drawn if label in distributions},
        intermediate_values={} if record.diverged else record.scores,
    )
