"""The arithmetic of few scores, against values made by hand and against SciPy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from rltune.records import Direction
from rltune.statistics import (
    bound_failure_rate,
    count_wins_needed,
    interquartile_mean,
    is_mean_better,
    mean_interval,
    median_interval,
    median_level,
)


@pytest.fixture
def stats():
    """SciPy's: a second to import, in each process that collects these tests."""
    from scipy import stats

    return stats


def test_the_interquartile_mean_drops_both_outer_quarters():
    assert interquartile_mean([-1000.0, 1, 2, 3, 4, 5, 6, 1000]) == 3.5
    assert interquartile_mean([0.0, 10, 20, 30, 1000]) == 20, "of five the middle three"
    assert interquartile_mean([-90.0, 1, 2, 1000]) == 1.5, "of four the middle two"
    assert interquartile_mean([5.0]) == 5


@pytest.mark.parametrize(
    ("num_pairs", "needed"),
    [(0, None), (4, None), (5, 5), (6, 6), (10, 9), (12, 11), (20, 16), (30, 24), (40, 28), (80, 54)],
)
def test_so_many_wins_are_needed(num_pairs, needed):
    assert count_wins_needed(num_pairs) == needed


@pytest.mark.parametrize("error_rate", [0.05, 0.025, 0.001])
def test_no_way_of_looking_is_wrong_more_often_than_allowed(error_rate):
    """A look at every number of pairs, which is the worst way to look, at a configuration that wins every other one."""
    undecided = {0: 1.0}
    wrong = 0.0
    for num_pairs in range(1, 201):
        following = {}
        for wins, share in undecided.items():
            for more in (wins, wins + 1):
                following[more] = following.get(more, 0.0) + share / 2
        needed = count_wins_needed(num_pairs, error_rate) or num_pairs + 1
        wrong += sum(share for wins, share in following.items() if wins >= needed)
        undecided = {wins: share for wins, share in following.items() if wins < needed}
    assert 0.7 * error_rate < wrong <= error_rate


def test_more_pairs_never_need_fewer_wins():
    needed = [count_wins_needed(num_pairs) for num_pairs in range(5, 161)]
    assert all(0 <= after - before <= 1 for before, after in itertools.pairwise(needed))


@pytest.mark.parametrize("shift", [0.0, 0.5, 2.0])
def test_a_mean_is_better_where_scipys_interval_excludes_zero(shift, stats):
    rng = np.random.default_rng(3)
    for _ in range(20):
        ours, theirs = rng.normal(shift, 1, 20), rng.normal(0, 3, 50)
        low = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval(0.95).low
        assert is_mean_better(ours.tolist(), theirs.tolist(), Direction.MAX) is bool(low > 0)
        assert is_mean_better((-ours).tolist(), (-theirs).tolist(), Direction.MIN) is bool(low > 0)
    assert not is_mean_better([0.1] * 3, [0.1] * 5, Direction.MAX), "rounding makes no difference"
    assert is_mean_better([0.2] * 3, [0.1] * 5, Direction.MAX)
    for scale in (1e-160, 1e160):
        assert is_mean_better([3.0 * scale, 3.1 * scale] * 5, [1.0 * scale, 1.1 * scale] * 5, Direction.MAX)


@pytest.mark.parametrize(("num_failed", "num_runs"), [(0, 3), (0, 5), (1, 5), (4, 10), (5, 5)])
def test_the_bound_of_a_failure_rate_is_scipys(num_failed, num_runs, stats):
    exact = stats.binomtest(num_failed, num_runs, alternative="less").proportion_ci(0.95).high
    assert bound_failure_rate(num_failed, num_runs) == pytest.approx(exact)


@pytest.mark.parametrize(("num_values", "level"), [(4, 0.0), (5, 93.75), (10, 97.85)])
def test_the_level_of_a_medians_interval_is_named(num_values, level):
    assert median_level(num_values) == pytest.approx(level, abs=0.01)


@pytest.mark.parametrize(
    ("count", "low", "high"), [(5, 0, 4), (6, 0, 5), (8, 0, 7), (9, 1, 7), (10, 1, 8), (12, 2, 9), (20, 5, 14)]
)
def test_the_ends_of_the_interval_are_two_of_the_values(count, low, high, stats):
    assert median_interval(np.random.default_rng(0).permutation(count)) == (low, high)
    assert stats.binomtest(low, count).pvalue <= 0.07
    assert stats.binomtest(low + 1, count).pvalue > 0.07, "no narrower one holds 93%"


@pytest.mark.parametrize("count", range(5))
def test_below_five_values_there_is_no_interval(count):
    assert median_interval(range(count)) is None


@pytest.mark.parametrize("count", [5, 10])
@pytest.mark.parametrize(
    ("draw", "median"),
    [
        (lambda rng, shape: rng.normal(size=shape), 0.0),
        (lambda rng, shape: rng.lognormal(size=shape), 1.0),
        (lambda rng, shape: np.where(rng.random(shape) < 0.3, 9.0, rng.uniform(480, 500, shape)), 480 + 20 * 2 / 7),
        (lambda rng, shape: np.minimum(rng.normal(500, 5, shape).round(), 500), 500.0),
    ],
    ids=["normal", "skewed", "bimodal", "capped"],
)
def test_at_least_93_percent_of_the_intervals_hold(draw, median, count):
    every = [median_interval(values) for values in draw(np.random.default_rng(0), (5000, count))]
    assert np.mean([low <= median <= high for low, high in every]) >= 0.93


@pytest.mark.parametrize("count", [2, 5, 10, 101])
def test_scipy_gives_the_same_numbers(count, stats):
    rng = np.random.default_rng(count)
    ours = rng.normal(size=count)
    if count >= 5:
        middle = np.median(ours)
        with_failure = np.append(ours, middle - 10 * min(ours.max() - middle, middle - ours.min()))
        (low, high), (lower, _) = (
            stats.t.interval(0.95, len(each) - 1, each.mean(), stats.sem(each)) for each in (ours, with_failure)
        )
        assert ours.min() < 0
        bounds = min(low, lower), min(high, ours.max())
        assert mean_interval(ours) == pytest.approx(bounds)
        assert mean_interval(-ours, Direction.MIN) == pytest.approx((-bounds[1], -bounds[0]))
    assert interquartile_mean(ours) == pytest.approx(stats.trim_mean(ours, 0.25))


@pytest.mark.parametrize("count", [5, 10, 20, 100])
@pytest.mark.parametrize(
    ("draw", "mean"),
    [
        (lambda rng, shape: rng.normal(200, 20, shape), 200),
        (lambda rng, shape: rng.normal(-200, 20, shape), -200),
        (lambda rng, shape: np.where(rng.random(shape) < 0.1, 0.0, 500.0), 450),
        (lambda rng, shape: np.where(rng.random(shape) < 0.02, 0.0, 500.0), 490),
    ],
    ids=["normal", "negative", "10% failures", "2% failures"],
)
def test_the_interval_of_a_mean_holds_as_often_as_it_says(draw, mean, count):
    ends = [mean_interval(returns) for returns in draw(np.random.default_rng(count), (800, count))]
    assert np.mean([low <= mean <= high for low, high in ends]) >= 0.925


@pytest.mark.parametrize("count", [10, 20, 100])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.05, 0.1])
@pytest.mark.parametrize("gap", [4, 10, 25])
def test_a_mean_holds_failures_of_returns_anywhere(gap, share, count):
    """Failures lie 25 standard deviations lower; few episodes often show none of them. Nine in ten is what docs say."""
    rng = np.random.default_rng([gap, count])
    drawn = rng.normal(size=(600, count)) - gap * (rng.random((600, count)) < share)
    for scale, shift, direction in (
        (1.0, -100.0, Direction.MAX),
        (20.0, 85.0, Direction.MIN),
        (20.0, 260.0, Direction.MAX),
    ):
        mean, returns = shift - direction.sign * scale * gap * share, shift + direction.sign * scale * drawn
        held = [low <= mean <= high for low, high in (mean_interval(each, direction) for each in returns)]
        assert np.mean(held) >= 0.9, (scale, shift, direction)


@pytest.mark.parametrize("shift", [-1e6, -50.0, -5.0])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 3e26])
def test_an_interval_of_a_mean_scales_and_shifts(scale, shift):
    returns = -np.random.default_rng(3).lognormal(size=30)
    expected = scale * (np.array(mean_interval(returns)) + shift)
    assert mean_interval(scale * (returns + shift)) == pytest.approx(expected, rel=1e-6)
    low, high = mean_interval(scale * (returns - shift))
    assert low <= expected[0] - 2 * scale * shift + 1e-6 * scale
    assert high == pytest.approx(expected[1] - 2 * scale * shift), "above 0, only the worse end may be farther away"


@pytest.mark.parametrize(
    ("returns", "direction"), [(-200.0, Direction.MAX), (0.0, Direction.MAX), (7.0, Direction.MIN)]
)
def test_equal_returns_tell_nothing_of_failures(returns, direction):
    assert mean_interval([returns] * 100, direction) is None


def test_failures_that_were_seen_show_how_bad_they_are():
    """A success rate: Laplace's rule, one more failure."""
    low, _ = mean_interval([0.0] * 5 + [1.0] * 95)
    assert 0.88 < low < 0.91


def test_a_mean_at_a_cap_has_no_interval_above_it():
    low, high = mean_interval([500.0] * 100)
    assert 480 < low < 495.1, "one episode of 0 in a hundred and one"
    assert high == 500


def test_the_lower_end_of_a_mean_may_lie_below_all_returns():
    low, high = mean_interval([1.0, 2.0, 3.0, 4.0, 500.0])
    assert low < 1
    assert high == pytest.approx(378.26, abs=0.01)


@pytest.mark.parametrize("count", range(1, 5))
def test_below_five_episodes_a_mean_has_no_interval(count):
    assert mean_interval(range(count)) is None
