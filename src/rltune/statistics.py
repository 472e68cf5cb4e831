"""Statistics for few scores: interquartile mean, confidence intervals, and the test of what is better.

Source of the formulas, where none is named: Agarwal et al. 2021, "Deep Reinforcement Learning at the Edge of the
Statistical Precipice". ``benchmarks/coverage.py`` simulates how often the intervals hold. This is NumPy, because
``scipy.stats`` takes over a second to import. The tests compare the two. NumPy is imported inside the functions: its
import is a seventh of the time of ``rltune list`` and ``rltune show``, which compute no statistics.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rltune.records import Direction

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    Array = NDArray[Any]

LEAST_COVERAGE = 0.93  # Five values allow at most a 93.75% interval, which is accepted as a 95% interval.
LEAST_EPISODES = 5  # The fewest returns for an interval of their mean.
ERROR_RATE = 0.05  # How often something may be called better that is not.
SPENT = {5: 0.625, 10: 0.725, 20: 0.825, 40: 0.925, 80: 0.945}
"""The share of the error rate that may be spent up to a number of pairs; five wins of five take 1/32 = 0.625 of 5%."""
ROUNDING = 1e-12  # Sums of probabilities are rounded.
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
    import numpy as np

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
    import numpy as np

    ordered = np.sort(np.asarray(values, dtype=np.float64))
    outside, _ = _bound_median(len(ordered))
    return (float(ordered[outside]), float(ordered[len(ordered) - 1 - outside])) if outside >= 0 else None


def median_level(num_values: int) -> float:
    """Return the confidence level of `median_interval` in percent, which is at least that; 0 where there is none."""
    _, level = _bound_median(num_values)
    return 100.0 * level


def _bound_median(size: int) -> tuple[int, float]:
    """Return how many values the interval of a median leaves out at each end, -1 without one, and its level."""
    outside, missed = -1, 0.0
    while (more := missed + 2.0 * math.comb(size, outside + 1) / 2.0**size) <= 1.0 - LEAST_COVERAGE:
        outside, missed = outside + 1, more
    return outside, 1.0 - missed if outside >= 0 else 0.0


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
    import numpy as np

    seen = np.asarray(returns, dtype=np.float64)
    if len(seen) < LEAST_EPISODES:
        return None
    low, high = _bound_mean(seen * direction.sign)
    if low == high:
        return None
    return (low, high) if direction is Direction.MAX else (-high, -low)


def _bound_mean(returns: Array) -> tuple[float, float]:
    """Compute the interval of `mean_interval`, for returns of which higher ones are better."""
    import numpy as np

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


def is_mean_better(ours: Sequence[float], theirs: Sequence[float], direction: Direction) -> bool:
    """Return whether the 95% interval of a difference of two means excludes zero on the better side (Welch 1947).

    It is made for the returns of many episodes. For few runs of a training, whose failures are rare and far away, it is
    wrong too often: `count_wins_needed` compares those.

    Args:
        ours: Two or more values.
        theirs: Two or more values.
        direction: Which values are better.
    """
    import numpy as np
    from scipy.special import stdtrit  # Imported here, because SciPy takes a third of a second.

    # The subtraction turns equal values into exact zeros, which have no variance.
    samples = [np.asarray(values, dtype=np.float64) - theirs[0] for values in (ours, theirs)]
    largest = max(float(np.abs(values).max()) for values in samples) or 1.0
    samples = [values / largest for values in samples]  # The squares of huge returns are infinite, of tiny ones zero.
    errors = [float(values.var(ddof=1)) / len(values) for values in samples]
    difference = direction.sign * float(samples[0].mean() - samples[1].mean())
    if not sum(errors):
        return difference > 0.0
    freedom = sum(errors) ** 2 / (errors[0] ** 2 / (len(ours) - 1) + errors[1] ** 2 / (len(theirs) - 1))
    return difference > float(stdtrit(freedom, 0.975)) * math.sqrt(sum(errors))


def count_wins_needed(num_pairs: int, error_rate: float = ERROR_RATE) -> int | None:
    """Return how many of some paired runs a configuration has to win to be called better than another one.

    Better means: trained again on another seed, it does better than the other one more often than not. The test is the
    exact sign test (Dixon & Mood 1946, "The statistical sign test"). If the configuration wins at most half of all
    pairs, then a fair coin wins at least as often, whatever the law of the returns is, failing runs included. So that
    the test holds however often somebody looks, and whenever they stop adding pairs, the error rate is spent along the
    number of pairs (Lan & DeMets 1983, "Discrete sequential boundaries for clinical trials"): `SPENT` of it at 5, 10,
    20, 40 and 80 pairs. At each number of pairs from 5 on, the fewest wins are taken that a fair coin reaches there for
    the first time no more often than is left to spend.

    Args:
        num_pairs: The number of pairs.
        error_rate: How often a configuration that is not better may be called so, over all numbers of pairs together.

    Returns:
        With the default rate 5 of 5, 9 of 10, 16 of 20 and 28 of 40. None if too few pairs can show nothing.
    """
    needed = _list_wins_needed(next((size for size in SPENT if size >= num_pairs), num_pairs), error_rate)[num_pairs]
    return needed if needed <= num_pairs else None


@functools.cache
def _list_wins_needed(num_pairs: int, error_rate: float) -> tuple[int, ...]:
    """Compute the wins that are needed for each number of pairs from 0 to ``num_pairs``."""
    import numpy as np

    undecided = np.zeros(num_pairs + 2)  # The probability of each number of wins of a coin not called better so far.
    undecided[0], left, needed = 1.0, 0.0, [1]
    for size in range(1, num_pairs + 1):
        undecided[1:] = (undecided[1:] + undecided[:-1]) / 2.0
        undecided[0] /= 2.0
        if size in SPENT:
            left += error_rate * (SPENT[size] - max((SPENT[before] for before in SPENT if before < size), default=0.0))
        tails = np.cumsum(undecided[::-1])[::-1]  # At least so many wins, shape (num_pairs + 2,).
        wins = int(np.argmax(tails <= left + ROUNDING))
        left -= float(tails[wins])
        undecided[wins:] = 0.0
        needed.append(wins)
    # Wins cannot be lost again: who has as many as a later number of pairs needs is better already.
    return tuple(np.minimum.accumulate(needed[::-1])[::-1].tolist())


def bound_failure_rate(num_failed: int, num_runs: int) -> float:
    """Return the highest failure rate with which so few failures in some runs are still to be expected.

    That is the exact upper bound, which holds with a probability of 95% (Clopper & Pearson 1934): no failure in 5 runs
    still allows 45%.
    """
    if num_failed == num_runs:
        return 1.0
    from scipy.special import betaincinv  # Imported here, because SciPy takes a third of a second.

    return float(betaincinv(num_failed + 1, num_runs - num_failed, 0.95))
