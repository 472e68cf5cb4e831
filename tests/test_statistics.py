"""The arithmetic of few scores, against values made by hand and against SciPy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from rltune import statistics
from rltune.statistics import bootstrap_interval, interquartile_mean, predictive_interval, probability_of_improvement


def test_the_interquartile_mean_drops_both_outer_quarters():
    assert interquartile_mean([-1000.0, 1, 2, 3, 4, 5, 6, 1000]) == 3.5
    assert interquartile_mean([0.0, 10, 20, 30, 1000]) == 20, "of five the middle three"
    assert interquartile_mean([5.0]) == 5


def test_the_probability_of_improvement_counts_ties_half():
    """The probability of improvement counts pairs and ties half."""
    assert probability_of_improvement([3, 4], [1, 2]) == 1
    assert probability_of_improvement([1, 2], [3, 4]) == 0
    assert probability_of_improvement([1, 3], [2, 3]) == pytest.approx((0 + 0 + 1 + 0.5) / 4)
    assert probability_of_improvement([5, 5, 5], [5, 5]) == 0.5


def test_the_interval_holds_the_iqm_and_narrows_with_the_spread():
    wide, narrow = (
        bootstrap_interval([100, 200, 300, 400, 500]),
        bootstrap_interval([290, 295, 300, 305, 310]),
    )
    assert 100 <= wide[0] < 300 < wide[1] <= 500
    assert narrow[1] - narrow[0] == pytest.approx((wide[1] - wide[0]) / 20)
    assert bootstrap_interval([7.0, 7.0, 7.0]) == (7.0, 7.0)
    # Two runs: the resample is (a, a), (a, b) or (b, b), so the percentiles are the runs themselves.
    assert bootstrap_interval([1.0, 3.0]) == (1.0, 3.0)


def test_the_interval_covers_the_true_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(200):
        low, high = bootstrap_interval(rng.normal(size=20).tolist())
        hits += low <= 0 <= high
    assert 0.85 <= hits / 200 <= 1, "a percentile bootstrap of twenty runs covers a little less than 95%"


def test_fresh_episodes_fall_where_they_are_predicted():
    rng = np.random.default_rng(1)
    inside = 0
    for _ in range(100):
        low, high = predictive_interval(rng.normal(100, 20, size=50).tolist(), 50, worst=40)
        inside += low <= rng.normal(100, 20, size=50).mean() <= high
    assert inside >= 90


def test_a_policy_that_has_not_failed_yet_may_fail_once():
    low, high = predictive_interval([500.0] * 100, 100, worst=9)
    assert high == 500
    assert 450 < low < 495.1, "one episode of 9 among a hundred is predicted"
    assert predictive_interval([500.0] * 100, 100, worst=500) == (500, 500)


@pytest.mark.parametrize("count", [2, 3, 10, 101])
def test_scipy_gives_the_same_numbers(count):
    rng = np.random.default_rng(count)
    ours, theirs = rng.normal(size=count), rng.normal(size=7).round(1)

    def trimmed(rows, axis):
        return stats.trim_mean(rows, 0.25, axis=axis)

    for mine, scipys in ((interquartile_mean, trimmed), (np.mean, np.mean)):
        wanted = stats.bootstrap(
            (ours,), scipys, n_resamples=statistics.RESAMPLES, method="percentile", rng=np.random.default_rng(3)
        ).confidence_interval
        assert bootstrap_interval(ours, mine, seed=3) == pytest.approx(wanted)
    assert interquartile_mean(ours) == pytest.approx(stats.trim_mean(ours, 0.25))
    above = stats.mannwhitneyu(ours, theirs).statistic / (count * len(theirs))
    assert probability_of_improvement(ours, theirs) == pytest.approx(above)


def test_many_scores_are_resampled_in_blocks_as_if_whole(monkeypatch):
    scores = np.random.default_rng(0).normal(size=50)
    whole = bootstrap_interval(scores)
    monkeypatch.setattr(statistics, "BLOCK", 777)
    assert bootstrap_interval(scores) == whole
