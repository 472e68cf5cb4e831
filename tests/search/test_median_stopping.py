"""Which trials the median stopping rule lets go on: medians worked out by hand."""

from __future__ import annotations

import math

import pytest

from rltune.errors import ConfigError
from rltune.records import Report
from rltune.search.median_stopping import MedianStopping
from rltune.search.schedulers import GO_ON, Stop


def show(rule, number, curve):
    """What a rule says to each report of a curve."""
    return [rule.decide(Report(number, env_steps, objective)) for env_steps, objective in curve.items()]


def flat(objective, upto=1000):
    return dict.fromkeys(range(100, upto + 1, 100), objective)


def make(*others, min_trials=3, grace=0.0):
    """A rule that has seen others' curves."""
    rule = MedianStopping(1000, grace, min_trials)
    for number, curve in enumerate(others):
        show(rule, number, curve)
    return rule


def test_a_trial_below_the_median_of_the_averages_is_stopped():
    """Averages up to 300: 2, 4 and 60; their median is 4."""
    others = {100: 1.0, 200: 2.0, 300: 3.0}, {100: 4.0, 200: 4.0, 300: 4.0}, {100: 0.0, 200: 90.0, 300: 90.0}
    for objective, decision in ((3.9, Stop(300)), (4.0, GO_ON), (4.1, GO_ON)):
        assert show(make(*others), 9, {300: objective}) == [decision], objective


def test_a_median_of_an_even_number_lies_between_the_middle_two():
    others = [flat(objective) for objective in (1.0, 2.0, 4.0, 100.0)]
    assert show(make(*others), 9, {100: 2.9}) == [Stop(100)]
    assert show(make(*others), 9, {100: 3.0}) == [GO_ON]


def test_the_best_report_counts_not_the_last():
    others = [flat(5.0)] * 3
    assert show(make(*others), 9, {100: 6.0, 200: -50.0, 300: -50.0}) == [GO_ON] * 3
    assert show(make(*others), 9, {100: 4.0, 200: 6.0}) == [Stop(100), GO_ON]


def test_others_count_with_what_they_were_at_the_same_step():
    """At 100 all of them were at 1, whatever they became."""
    others = [{100: 1.0, 200: 50.0, 1000: 90.0}] * 3
    assert show(make(*others), 9, {100: 1.5, 200: 20.0}) == [GO_ON, Stop(200)]


def test_only_trials_that_have_come_as_far_are_compared():
    others = [flat(9.0, upto=300)] * 2 + [flat(9.0)] * 2
    assert show(make(*others), 9, {300: 1.0}) == [Stop(300)]
    assert show(make(*others), 9, {400: 1.0}) == [GO_ON], "two of them never reached 400"


@pytest.mark.parametrize("min_trials", [1, 4])
def test_a_trial_goes_on_until_there_are_enough_others(min_trials):
    rule = make(min_trials=min_trials)
    for number in range(min_trials):
        assert show(rule, number, {100: 5.0 - number}) == [GO_ON]
    assert show(rule, 99, {100: -9.0}) == [Stop(100)]


def test_no_trial_is_stopped_in_its_grace():
    rule = make(*[flat(5.0)] * 4, grace=0.3)
    assert show(rule, 9, {100: 1.0, 200: 1.0, 290: 1.0, 300: 1.0}) == [GO_ON, GO_ON, GO_ON, Stop(300)]
    assert show(make(*[flat(5.0)] * 4, grace=1.0), 9, flat(1.0)) == [GO_ON] * 10


def test_a_trial_is_judged_at_its_first_mark_with_a_return():
    rule = make(*[flat(5.0)] * 3)
    assert show(rule, 9, {100: math.nan, 200: math.nan, 300: 4.0}) == [GO_ON, GO_ON, Stop(300)]
    assert show(rule, 10, {100: math.nan, 200: 6.0}) == [GO_ON, GO_ON]


def test_a_trial_without_a_return_is_compared_with_nobody():
    assert show(make(*[flat(math.nan)] * 5), 9, {100: -1e9}) == [GO_ON]
    assert show(make(*[flat(math.nan)] * 5, *[flat(1.0)] * 2), 9, {100: -1e9}) == [GO_ON], "two others, not seven"


def test_trials_without_an_episode_do_not_stop_each_other():
    assert show(make(*[flat(math.nan)] * 5), 9, flat(math.nan)) == [GO_ON] * 10


def test_reports_before_the_first_episode_are_left_out_of_averages():
    """Their mean up to 200 is 8, not nothing and not 4."""
    others = [{100: math.nan, 200: 8.0}] * 3
    assert show(make(*others), 9, {200: 7.0}) == [Stop(200)]


def test_later_first_episodes_do_not_raise_the_median():
    """All trials rise alike; the late ones' averages lack the low scores of early training."""
    rising = {mark: float(mark) for mark in range(100, 1001, 100)}
    late = {mark: math.nan if mark < 600 else score for mark, score in rising.items()}
    slightly_worse = {mark: score - 5.0 for mark, score in rising.items()}
    for others in ([late] * 5, [late] * 5 + [rising] * 3):
        assert show(make(*others, grace=0.2), 9, slightly_worse) == [GO_ON] * 10


def test_trials_that_are_equally_late_are_compared():
    late = {mark: math.nan if mark < 600 else 5.0 for mark in range(100, 1001, 100)}
    assert show(make(*[late] * 3), 9, late | {600: 4.0})[:6] == [GO_ON] * 5 + [Stop(600)]


def test_equals_are_not_stopped_by_each_other():
    rule = make()
    assert [show(rule, number, {100: 8.0}) for number in range(10)] == [[GO_ON]] * 10


def test_steps_that_are_trained_again_count_once():
    rule = make(*[flat(5.0)] * 3)
    assert show(rule, 9, {100: 6.0, 200: 6.0}) == [GO_ON, GO_ON]
    assert show(rule, 9, {100: 1.0, 200: 1.0, 300: 6.0}) == [GO_ON] * 3, "it had failed and went on from its start"
    assert show(rule, 10, {100: 5.0}) == [GO_ON], "the median is still 5"


@pytest.mark.parametrize(("budget", "grace", "first"), [(3, 0.0, 1), (100, 0.15, 15), (100, 0.07, 7)])
def test_trials_are_judged_from_the_grace_to_below_the_budget(budget, grace, first):
    rule = MedianStopping(budget, grace, 1)
    for number, objective in ((0, 5.0), (1, 1.0)):
        decisions = show(rule, number, dict.fromkeys(range(1, budget + 1), objective))
    assert decisions == [GO_ON] * (first - 1) + [Stop(mark) for mark in range(first, budget)] + [GO_ON]


@pytest.mark.parametrize(
    ("args", "key"),
    [
        ((-0.1, 5), "scheduler.args.grace_fraction"),
        ((1.1, 5), "scheduler.args.grace_fraction"),
        ((None, 5), "scheduler.args.grace_fraction"),
        ((0.2, 0), "scheduler.args.min_trials"),
        ((0.2, "few"), "scheduler.args.min_trials"),
    ],
)
def test_arguments_out_of_range_are_refused(args, key):
    with pytest.raises(ConfigError) as refused:
        MedianStopping(1000, *args)
    assert refused.value.key == key
    assert refused.value.fix.startswith(f"{key}=")
