"""Derive the seeds of trials and samplers from the sweep's seed, so that resuming does not change them.

NumPy's SeedSequence mixes the sweep's seed with a trial's number; a third number keeps the streams apart.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

_SAMPLER, _CERTIFICATION = 1, 2
_POSITIVE_INT32 = 0x7FFFFFFF  # The largest seed that all libraries accept, which is a 32-bit signed integer.


def derive_trial_seeds(sweep_seed: int, number: int, replicates: int) -> list[int]:
    """Return the seeds with which a trial trains; a larger number of replicates extends the list.

    Args:
        replicates: The number of seeds that a trial trains with.
    """
    return _draw([sweep_seed, number], replicates)


def derive_sampler_seed(sweep_seed: int, number: int) -> int:
    """Return the seed of the sampler that proposes a given trial, below 2**32."""
    return int(np.random.SeedSequence([sweep_seed, number, _SAMPLER]).generate_state(1)[0])


def derive_certification_seeds(sweep_seed: int, count: int, searched: Collection[int]) -> list[int]:
    """Return seeds for the certification that no trial of the search has used; a larger count adds to them.

    Args:
        searched: The seeds of all trials.
    """
    # More seeds than needed are drawn, because the seeds of trials are removed from them.
    drawn = _draw([sweep_seed, 0, _CERTIFICATION], count + len(searched))
    return [seed for seed in dict.fromkeys(drawn) if seed not in searched][:count]


def _draw(entropy: list[int], count: int) -> list[int]:
    return [int(seed) & _POSITIVE_INT32 for seed in np.random.SeedSequence(entropy).generate_state(count)]
