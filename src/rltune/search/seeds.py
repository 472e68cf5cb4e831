"""Derive all of a sweep's seeds from its own, so that a resumed sweep draws what an unbroken one would have drawn.

NumPy's SeedSequence mixes the sweep's seed with a trial's number; a third number keeps the streams apart.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

_SAMPLER, _CERTIFICATION = 1, 2
_POSITIVE_INT32 = 0x7FFFFFFF  # The largest seed that every library accepts.


def derive_trial_seeds(sweep_seed: int, number: int, replicates: int) -> list[int]:
    """Return a trial's seeds, one per replicate; more replicates keep the first.

    Args:
        replicates: The number of seeds that a trial trains with.
    """
    return _draw([sweep_seed, number], replicates)


def derive_sampler_seed(sweep_seed: int, number: int) -> int:
    """Return the seed of the sampler that proposes a trial, below 2**32."""
    return int(np.random.SeedSequence([sweep_seed, number, _SAMPLER]).generate_state(1)[0])


def derive_certification_seeds(sweep_seed: int, count: int, searched: Collection[int]) -> list[int]:
    """Return ``count`` seeds that no trial has seen; a larger count keeps the first.

    Args:
        searched: The seeds of all trials.
    """
    # Extra seeds are drawn, so that enough are left even if all seeds of trials are among the drawn seeds.
    drawn = _draw([sweep_seed, 0, _CERTIFICATION], count + len(searched))
    return [seed for seed in dict.fromkeys(drawn) if seed not in searched][:count]


def _draw(entropy: list[int], count: int) -> list[int]:
    return [int(seed) & _POSITIVE_INT32 for seed in np.random.SeedSequence(entropy).generate_state(count)]
