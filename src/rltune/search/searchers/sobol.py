"""A sampler that covers the search space evenly by a scrambled Sobol sequence.

Optuna's QMCSampler keeps its position in the study, and begins again if the study is lost or the driver is killed
between two writes. Here a trial's point follows from its number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler, RandomSampler
from optuna.trial import FrozenTrial

from rltune.search.searchers.unit_cube import UnitCube

if TYPE_CHECKING:
    from optuna.study import Study


class SobolSampler(BaseSampler):
    """Sampler that covers a space without conditions by a Sobol sequence (Sobol' 1967; scrambled as in Owen 1998).

    The first trial is drawn at random, because the sampler learns the space from it.

    Args:
        seed: The seed of the first trial.
        sweep_seed: The seed of the sequence, which all trials share.
    """

    def __init__(self, seed: int | None = None, sweep_seed: int = 0) -> None:
        self._independent, self._sweep_seed = RandomSampler(seed), sweep_seed

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Return the parameters of the study's first trial as the search space of all later trials."""
        first = study.get_trials(deepcopy=False)[0]
        return {
            name: distribution
            for name, distribution in first.distributions.items()
            if trial.number and not distribution.single()
        }

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        """Draw a parameter of the first trial at random."""
        return self._independent.sample_independent(study, trial, param_name, param_distribution)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the point of the Sobol sequence whose index belongs to the trial."""
        if not search_space:
            return {}
        # The import of SciPy takes seconds and is not needed to check the settings.
        from scipy.stats.qmc import Sobol

        sequence = Sobol(len(search_space), scramble=True, rng=self._sweep_seed)
        if trial.number > 1:  # SciPy's fast_forward raises an error for zero points.
            sequence.fast_forward(trial.number - 1)
        return UnitCube(search_space).read(sequence.random()[0])
