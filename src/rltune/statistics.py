"""Say what a few scores tell about those to come: interquartile mean, intervals, probability of improvement.

Source of the formulas: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice".
This is NumPy alone, because ``scipy.stats`` takes over a second to import and five times as long for the same interval.
The tests compare the two.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[Any]
RESAMPLES = 5000
PERCENTILES = (2.5, 97.5)
BLOCK = 2_000_000  # numbers drawn at once: few enough for memory


def interquartile_mean(values: ArrayLike, axis: int = -1) -> Array:
    """Average the middle half, so that neither a lucky nor a failed run decides (Agarwal et al. 2021, section 4.2).

    Args:
        values: Scores, in any shape.
        axis: The axis that is averaged.

    Returns:
        The values' shape without ``axis``. A quarter of n values is n // 4, as in ``scipy.stats.trim_mean``.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=axis)
    size = ordered.shape[axis]
    return np.asarray(ordered.take(range(size // 4, size - size // 4), axis=axis).mean(axis=axis))


def bootstrap_interval(
    values: ArrayLike, statistic: Callable[..., Any] = interquartile_mean, seed: int = 0
) -> tuple[float, float]:
    """Bound a statistic by the percentile bootstrap: resample with replacement, take the middle 95%.

    Over training runs this is the stratified bootstrap of Agarwal et al. 2021, section 4.1. Its strata are tasks, and
    a sweep has one, so that all its runs are one stratum.

    Args:
        values: Scores, shape (n,), n at least 1.
        statistic: Takes rows of n values and ``axis=1``, as `interquartile_mean` and ``numpy.mean`` do.
        seed: Of the resampling.

    Returns:
        The 2.5th and the 97.5th percentile. Both are the value itself where n is 1.
    """
    known = np.asarray(values, dtype=np.float64)
    rng = np.random.default_rng(seed)

    def resample(count: int) -> Array:
        return np.asarray(statistic(known[rng.integers(len(known), size=(count, len(known)))], axis=1))

    return _middle(resample, len(known))


def probability_of_improvement(ours: ArrayLike, theirs: ArrayLike) -> float:
    """Say how probably a run of ours scores higher than one of theirs, ties counting half.

    P(X > Y) = 1/(N M) sum_i sum_j S(x_i, y_j) with S = 1, 1/2, 0 for x_i >, =, < y_j: the Mann-Whitney statistic
    (Agarwal et al. 2021, section 4.3).

    Args:
        ours: Scores, shape (N,).
        theirs: Scores, shape (M,).
    """
    difference = np.sign(np.subtract.outer(np.asarray(ours, np.float64), np.asarray(theirs, np.float64)))
    return float((0.5 * (difference + 1.0)).mean())


def predictive_interval(returns: ArrayLike, episodes: int, worst: float, seed: int = 0) -> tuple[float, float]:
    """Bound the mean of fresh episodes of the same policy: 95 times in a hundred it lies between the two numbers.

    It is wider than the mean's `bootstrap_interval`, because the fresh episodes vary too: a population is resampled
    from the returns, and the fresh episodes from that population. One more episode with the worst known return joins
    the returns, for what a hundred episodes do not show (Laplace's rule of succession). Without it, a policy that has
    not failed yet would be predicted never to fail.

    Args:
        returns: Those of the policy's episodes, shape (n,), n at least 1.
        episodes: How many fresh episodes are averaged.
        worst: The lowest return that the policy's configuration is known to give.
        seed: Of the resampling.

    Returns:
        The 2.5th and the 97.5th percentile of the mean.
    """
    seen = np.asarray(returns, dtype=np.float64)
    known = np.append(seen, min(worst, seen.min()))
    rng = np.random.default_rng(seed)

    def play(count: int) -> Array:
        population = rng.integers(len(known), size=(count, len(known)))
        fresh = np.take_along_axis(population, rng.integers(len(known), size=(count, episodes)), axis=1)
        return np.asarray(known[fresh].mean(axis=1))

    return _middle(play, max(len(known), episodes))


def _middle(draw: Callable[[int], Array], width: int) -> tuple[float, float]:
    """Take the percentiles of `RESAMPLES` results of ``draw(count)``, each of which needs ``width`` numbers."""
    most = max(1, BLOCK // width)
    drawn = [draw(min(most, RESAMPLES - done)) for done in range(0, RESAMPLES, most)]
    low, high = np.percentile(np.concatenate(drawn), PERCENTILES)
    return float(low), float(high)
