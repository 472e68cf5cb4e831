"""Which trials Hyperband lets go on: each bracket by itself."""

from __future__ import annotations

import pytest

from rltune.errors import ConfigError
from rltune.records import Report
from rltune.search.hyperband import Hyperband
from rltune.search.schedulers import GO_ON, Stop


def make(grace=0.1, factor=3, brackets=2):
    return Hyperband(1000, grace, factor, brackets)


def test_each_bracket_has_its_first_rung_later():
    assert [bracket.levels for bracket in make(brackets=4).brackets] == [[100, 300, 900], [300, 900], [900], []]


def test_a_slow_starter_goes_on_in_a_later_bracket():
    """Six trials come to 100 steps, the worse the later: only the eager bracket, of even numbers, stops some."""
    rule = make()
    decisions = [rule.decide(Report(number, 100, -number)) for number in range(6)]
    assert decisions == [GO_ON, GO_ON, GO_ON, GO_ON, Stop(100), GO_ON]


def test_brackets_do_not_compare_their_trials():
    rule = make()
    for number in (0, 2, 4):
        rule.decide(Report(number, 300, 100.0))
    assert rule.decide(Report(1, 300, 1.0)) == GO_ON, "the first of its own bracket"


def test_each_bracket_remembers_its_own_trials():
    rule = make()
    for number in range(4):
        rule.decide(Report(number, 100, 10.0))
    assert [rule.decide(Report(number, 100, 1.0)) for number in (4, 5)] == [Stop(100), GO_ON]


@pytest.mark.parametrize("args", [{"brackets": 0}, {"brackets": 1.5}, {"brackets": "two"}, {"grace": 0}, {"factor": 1}])
def test_an_argument_out_of_range_is_refused(args):
    with pytest.raises(ConfigError) as refused:
        make(**args)
    assert refused.value.key.startswith("scheduler.args.")
