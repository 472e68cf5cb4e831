"""What a few scores say about those to come: interquartile mean, bootstrap intervals, probability of improvement.

Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the Statistical Precipice". Pure NumPy; runs anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

RESAMPLES = 5000
PERCENTILES = (2.5, 97.5)


def iqm(values: Sequence[float] | np.ndarray) -> float:
    """The interquartile mean: without the lowest and highest quarter, rounded down (scipy's trim_mean)."""
    return float(_iqms(np.asarray(values, dtype=np.float64)[None])[0])


def _iqms(rows: np.ndarray) -> np.ndarray:
    """The interquartile mean of each row."""
    cut = rows.shape[1] // 4
    return np.asarray(np.sort(rows, axis=1)[:, cut : rows.shape[1] - cut].mean(axis=1))


def interval(scores: Sequence[float], seed: int = 0) -> tuple[float, float]:
    """The 95% stratified bootstrap interval of the IQM over training runs.

    Strata are tasks (Agarwal et al. 2021, section 4.1: runs are resampled with replacement within each task). A sweep
    has one task, so that all its runs are one stratum.

    Args:
        scores: One a run.
        seed: Of the resampling.

    Returns:
        The 2.5th and 97.5th percentile; a single run has no spread to show.
    """
    values = np.asarray(scores, dtype=np.float64)
    picks = np.random.default_rng(seed).integers(len(values), size=(RESAMPLES, len(values)))
    low, high = np.percentile(_iqms(values[picks]), PERCENTILES)
    return float(low), float(high)


def probability_of_improvement(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """How probably a run of ours scores higher than one of theirs, ties counting half.

    P(X > Y) = 1/(N M) sum_i sum_j S(x_i, y_j) with S = 1, 1/2, 0 for x_i >, =, < y_j: the Mann-Whitney statistic
    (Agarwal et al. 2021, section 4.3).
    """
    difference = np.sign(np.subtract.outer(np.asarray(ours, dtype=np.float64), np.asarray(theirs, dtype=np.float64)))
    return float((0.5 * (difference + 1.0)).mean())


def foreseen(returns: Sequence[float], episodes: int, worst: float, seed: int = 0) -> tuple[float, float]:
    """Where the mean of so many fresh episodes of the same policy lies, 95 times in a hundred.

    Wider than the mean's confidence interval, because the fresh episodes have chances of their own: a population is
    resampled from the returns, and then the fresh episodes from that. One more episode, the worst known, stands among
    the returns for what a hundred episodes do not show (Laplace's rule of succession); without it, a policy that has
    not failed yet would be foreseen never to fail.

    Args:
        returns: Of the policy's episodes.
        episodes: Whose mean is foreseen.
        worst: The lowest return that its configuration is known to give.
        seed: Of the resampling.
    """
    known = np.append(np.asarray(returns, dtype=np.float64), min(worst, *returns))
    rng = np.random.default_rng(seed)
    rows = max(1, 2_000_000 // max(len(known), episodes))  # at once: few enough for memory
    means: list[np.ndarray] = []
    for done in range(0, RESAMPLES, rows):
        count = min(rows, RESAMPLES - done)
        population = rng.integers(len(known), size=(count, len(known)))
        fresh = np.take_along_axis(population, rng.integers(len(known), size=(count, episodes)), axis=1)
        means.append(known[fresh].mean(axis=1))
    low, high = np.percentile(np.concatenate(means), PERCENTILES)
    return float(low), float(high)
