"""Statistics for few scores: interquartile mean, confidence intervals and differences of means.

Source of the formulas, where none is named: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice". ``benchmarks/coverage.py`` simulates how often the intervals hold. This is NumPy, because
``scipy.stats`` takes over a second to import. The tests compare the two.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rltune.records import Direction

Array = NDArray[Any]
LEAST_COVERAGE = 0.93  # Five values allow at most a 93.75% interval, which is accepted as a 95% interval.
LEAST_EPISODES = 5  # The fewest returns for an interval of their mean.
# How bad an unseen failure may be, in distances of the nearer extreme return from the median. The tests simulate it:
# where failures lie up to 25 standard deviations below the other returns, nine intervals in ten hold the mean.
FAILURE_DISTANCE = 10


def interquartile_mean(values: ArrayLike, axis: int = -1) -> Array:
    """Average the middle half of the values, so that outliers do not decide (Agarwal et al. 2021, section 4.2).

    Args:
        values: Scores, in any shape.
        axis: The axis that is averaged.

    Returns:
        The values' shape without ``axis``. A quarter of n values is n // 4, as in ``scipy.stats.trim_mean``.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64), axis=axis)
    size = ordered.shape[axis]
    return np.asarray(ordered.take(range(size // 4, size - size // 4), axis=axis).mean(axis=axis))


def median_interval(values: ArrayLike) -> tuple[float, float] | None:
    """Compute a confidence interval for a population's median from a few values, without assuming a distribution.

    The k-th lowest and the k-th highest of n values miss the median only where fewer than k of them lie on one side of
    it, as a fair coin shows it: 1 - 2 P(Binomial(n, 1/2) < k) of such intervals hold it, and more where values are
    equal (Thompson 1936, "On confidence ranges for the median"; David & Nagaraja 2003, "Order Statistics", section
    7.1). The greatest k is taken by which at least `LEAST_COVERAGE` do: lowest to highest of five values (93.75%),
    second to ninth of ten (97.9%). No interval of an interquartile mean can hold as often at five values: where three
    runs in ten fail, one sample in six shows none that did.

    Args:
        values: Scores, shape (n,).

    Returns:
        Two of the values; None where n is below 5, of which even lowest and highest hold it in 87.5% at most.
    """
    ordered = np.sort(np.asarray(values, dtype=np.float64))
    size, outside, missed = len(ordered), -1, 0.0
    while (missed := missed + 2.0 * math.comb(size, outside + 1) / 2.0**size) <= 1.0 - LEAST_COVERAGE:
        outside += 1
    return (float(ordered[outside]), float(ordered[size - 1 - outside])) if outside >= 0 else None


def mean_interval(returns: ArrayLike, direction: Direction = Direction.MAX) -> tuple[float, float] | None:
    """Compute a confidence interval for a policy's mean return from the returns of some episodes.

    Both ends are those of Student's t. A policy may fail in rare episodes, and a few returns may not show it. So the
    worse end is also that of Student's t after one more episode that failed (Laplace's rule of succession). How bad a
    failure is that nobody saw, no statistic can tell (Bahadur & Savage 1956, "The nonexistence of certain statistical
    procedures in nonparametric problems"). Its return is taken to be the worst of three: the worst return; the median
    less `FAILURE_DISTANCE` times its distance from the best or the worst return, whichever is nearer; and 0. The first
    two scale and shift with the returns. The better end does not exceed the best return: many returns are capped.

    Args:
        returns: The returns of episodes, shape (n,).
        direction: Which returns are better. With ``MIN``, the worse end is the upper one.

    Returns:
        Both ends of the 95% interval; None where n is below 5, and where all returns are equal and no better than 0:
        they tell nothing about other episodes.
    """
    seen = np.asarray(returns, dtype=np.float64)
    if len(seen) < LEAST_EPISODES:
        return None
    low, high = _bound_mean(seen * direction.sign)
    if low == high:
        return None
    return (low, high) if direction is Direction.MAX else (-high, -low)


def _bound_mean(returns: Array) -> tuple[float, float]:
    """Compute the interval of `mean_interval`, for returns of which higher ones are better."""
    low, high = _bound_by_student(returns)
    worst, middle, best = returns.min(), np.median(returns), returns.max()
    failure = min(0.0, worst, middle - FAILURE_DISTANCE * min(best - middle, middle - worst))
    low_after_failure, _ = _bound_by_student(np.append(returns, failure))
    return min(low, low_after_failure), min(high, float(best))


def _bound_by_student(values: Array) -> tuple[float, float]:
    """Return the 95% confidence interval of a mean by Student's t."""
    from scipy.special import stdtrit  # Imported here, because SciPy takes a third of a second.

    half = stdtrit(len(values) - 1, 0.975) * values.std(ddof=1) / math.sqrt(len(values))
    return float(values.mean() - half), float(values.mean() + half)


class Difference(NamedTuple):
    """The difference between the means of two populations, with its confidence interval.

    Attributes:
        mean: The difference of the samples' means.
        low: Lower end of its interval (`find_level`); None where a sample has a single value.
        high: Upper end of this interval.
    """

    mean: float
    low: float | None
    high: float | None

    def is_better(self, direction: Direction) -> bool:
        """Return whether the difference is significantly better: the whole interval is on the better side of zero."""
        worse_end = self.low if direction is Direction.MAX else self.high
        return worse_end is not None and direction.is_better(worse_end, 0.0)

    def is_worse(self, direction: Direction) -> bool:
        """Return whether the difference is significantly worse: the whole interval is on the worse side of zero."""
        return self.is_better(Direction.MIN if direction is Direction.MAX else Direction.MAX)


def bound_difference(ours: Sequence[float], theirs: Sequence[float], num_compared: int = 1) -> Difference:
    """Compute a confidence interval for a difference of means by Welch's t-test, without assuming equal variances.

    Two samples that each consist of equal values give an interval without width.

    Args:
        ours: Scores, one or more.
        theirs: Scores, one or more.
        num_compared: How many samples are compared with ``theirs``, which makes the interval wider (`find_level`).
    """
    # The subtraction turns equal values into exact zeros, which have no variance.
    samples = [np.asarray(values, dtype=np.float64) - theirs[0] for values in (ours, theirs)]
    difference = float(samples[0].mean() - samples[1].mean())
    if min(len(ours), len(theirs)) < 2:
        return Difference(difference, None, None)
    errors = [float(values.var(ddof=1)) / len(values) for values in samples]
    if not sum(errors):
        return Difference(difference, difference, difference)
    from scipy.special import stdtrit  # Imported here, because SciPy takes a third of a second.

    freedom = sum(errors) ** 2 / (errors[0] ** 2 / (len(ours) - 1) + errors[1] ** 2 / (len(theirs) - 1))
    half = float(stdtrit(freedom, 0.5 + find_level(num_compared) / 200)) * math.sqrt(sum(errors))
    return Difference(difference, difference - half, difference + half)


def find_level(num_compared: int) -> float:
    """Return the confidence level of `bound_difference` in percent, which is higher with more comparisons.

    If several samples are compared with the same one, then each of them may exclude zero by chance. So that one of them
    does in at most 5% of such comparisons, each end is missed in 5% divided by their number: 95% of the intervals hold
    for one and two samples, 96.7% for three.
    """
    return 100.0 * (1.0 - 0.1 / max(2, num_compared))
