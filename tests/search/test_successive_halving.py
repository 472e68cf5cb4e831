"""Which trials go on: rungs worked out by hand."""

from __future__ import annotations

import math
import random

import pytest

from rltune.errors import ConfigError
from rltune.records import Report
from rltune.search.schedulers import Stop
from rltune.search.successive_halving import SuccessiveHalving


def decide(rule, number, env_steps, objective):
    """The rung at which a trial must stop; None if it goes on."""
    decision = rule.decide(Report(number, env_steps, objective))
    return decision.env_steps if isinstance(decision, Stop) else None


@pytest.mark.parametrize(
    ("env_steps", "grace", "factor", "levels"),
    [
        (100_000, 0.1, 3, [10_000, 30_000, 90_000]),
        (100_000, 0.1, 4, [10_000, 40_000]),
        (100_000, 0.3, 3, [30_000, 90_000]),
        (4_000, 0.1, 3, [400, 1_200, 3_600]),
        (1_000_000, 0.07, 3, [70_000, 210_000, 630_000]),
        (100, 0.07, 3, [7, 21, 63]),
        (300, 1 / 3, 3, [100]),
        (1_000, 1.0, 3, []),
        (90, 0.1, 3, [9, 27, 81]),
        (55, 0.1, 2, [6, 11, 22, 44]),
    ],
)
def test_rungs_lie_at_the_grace_and_its_multiples(env_steps, grace, factor, levels):
    """Rungs lie at the grace and at its multiples below the budget."""
    assert SuccessiveHalving(env_steps, grace, factor).levels == levels


def test_no_trial_is_stopped_before_the_grace():
    made = SuccessiveHalving(1000, 0.1, 3)
    for number, objective in enumerate([50.0, 40.0, 30.0, 20.0, 10.0]):
        assert decide(made, number, 99, objective) is None


def test_the_first_trials_go_on():
    """The first trials go on since there is nothing to compare them with."""
    made = SuccessiveHalving(1000, 0.1, 3)
    assert decide(made, 0, 100, -5.0) is None
    assert decide(made, 1, 100, -9.0) is None
    assert decide(made, 2, 100, -7.0) == 100, "the third is the first to be judged"


def test_a_trial_in_the_best_third_goes_on():
    made = SuccessiveHalving(1000, 0.1, 3)
    arriving = [(10, None), (20, None), (30, None), (25, 100), (5, 100), (28, None), (29, None), (27, 100)]
    # 30 is best of three; 25 second of four; 5 last of five; 28 second of six, where two may go on; and so on
    for number, (objective, verdict) in enumerate(arriving):
        assert decide(made, number, 100, float(objective)) == verdict, number


def test_a_trial_is_judged_once_at_a_rung():
    made = SuccessiveHalving(1000, 0.1, 3)
    for number, objective in enumerate([3.0, 2.0]):
        decide(made, number, 100, objective)
    for env_steps in (150, 200, 250):
        assert decide(made, 1, env_steps, -100.0) is None, "the next rung is at 300"


def test_a_later_rung_compares_only_those_who_got_there():
    made = SuccessiveHalving(1000, 0.1, 3)
    for number in range(9):
        decide(made, number, 100, 90.0 - number)
    assert decide(made, 1, 300, 1.0) is None
    assert decide(made, 2, 300, 2.0) is None
    assert decide(made, 0, 300, 1.5) == 300
    assert decide(made, 3, 300, 3.0) is None


def test_equals_are_not_stopped_by_each_other():
    made = SuccessiveHalving(1000, 0.1, 3)
    assert [decide(made, number, 100, 8.0) for number in range(10)] == [None] * 10


def test_a_late_trial_is_judged_from_the_next_rung_on():
    """With 16 environments and episodes of 1,000 steps none ends before the first rung, at 10,000."""
    made = SuccessiveHalving(50_000, 0.2, 2)
    for survivor, later in ((4, 900.0), (5, 1.0)):
        assert [decide(made, survivor, mark, math.nan) for mark in (10_000, 12_500)] == [None, None]
        assert decide(made, survivor, 15_000, later) is None
        assert decide(made, survivor, 20_000, later) == (20_000 if later == 1.0 else None)


def test_late_trials_are_not_judged_by_rungs_they_passed():
    made = SuccessiveHalving(100_000, 0.2, 2)
    for number in range(4):
        decide(made, number, 20_000, 100.0 + number)
    for number in (10, 11, 12):
        assert [decide(made, number, mark, math.nan) for mark in (20_000, 40_000)] == [None, None]
        assert decide(made, number, 60_000, 50.0 - number) is None, "worse than all others"
    assert [decide(made, number, 80_000, 50.0 - number) for number in (10, 11, 12)] == [None, 80_000, 80_000]


def test_marks_coarser_than_the_rungs_are_judged():
    """Four reports, as in experiment=smoke: the rung at 20% judges at 25%, that at 40% at 50%."""
    made = SuccessiveHalving(1000, 0.2, 2)
    assert [decide(made, number, 250, -1.0 * number) for number in range(3)] == [None, 250, 250]
    assert [decide(made, number, 500, -1.0 * number) for number in range(3)] == [None, 500, 500]


def test_a_trial_without_a_return_is_compared_with_nobody():
    made = SuccessiveHalving(1000, 0.1, 3)
    for number in range(6):
        decide(made, number, 100, math.nan)
    assert decide(made, 6, 100, -1e9) is None, "the first one with a return"


def test_trials_without_an_episode_do_not_stop_each_other():
    """Trials of which nothing is known are not stopped among themselves."""
    made = SuccessiveHalving(1000, 0.1, 3)
    assert [decide(made, number, 100, math.nan) for number in range(6)] == [None] * 6


def test_a_larger_factor_keeps_fewer():
    lenient, strict = SuccessiveHalving(1000, 0.1, 2), SuccessiveHalving(1000, 0.1, 5)
    draw = random.Random(3)
    values = [draw.random() for _ in range(60)]
    kept = [sum(decide(r, n, 100, v) is None for n, v in enumerate(values)) for r in (lenient, strict)]
    assert kept[0] > kept[1]
    assert kept[1] >= 60 / 5 / 2


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ((0, 3), "scheduler.args.grace_fraction"),
        ((1.5, 3), "scheduler.args.grace_fraction"),
        (("soon", 3), "scheduler.args.grace_fraction"),
        ((math.nan, 3), "scheduler.args.grace_fraction"),
        ((True, 3), "scheduler.args.grace_fraction"),
        ((0.1, 1), "scheduler.args.reduction_factor"),
        ((0.1, None), "scheduler.args.reduction_factor"),
    ],
)
def test_arguments_out_of_range_are_refused(args, key):
    with pytest.raises(ConfigError) as refused:
        SuccessiveHalving(1000, *args)
    assert refused.value.key == key
    assert refused.value.fix.startswith(f"{key}=")
