"""What a sweep asks of a trial besides its score: bounds as they are typed, and how trials come out against them."""

from __future__ import annotations

import math

import pytest

from rltune.config.criteria import Criteria, parse_constraints, read_criteria
from rltune.errors import ConfigError
from rltune.records import Direction, TrialRecord

WHOLE = {"reports": {1000: 1.0}, "env_steps": 1040, "train_s": 60.0}


def judge(record, **constraints):
    return Criteria(parse_constraints(constraints), env_steps=1000).judge(record)


@pytest.mark.parametrize(
    ("bound", "kept", "broken"),
    [
        ("< 60", 59.999, 60.0),
        ("<60", -1.0, 60.001),
        (" <= 60.0 ", 60.0, 60.0001),
        ("> 1e-3", 0.0011, 0.001),
        (">= -2", -2.0, -2.01),
    ],
)
def test_a_bound_is_kept_up_to_the_last_digit(bound, kept, broken):
    (constraint,) = parse_constraints({"train_s": bound})
    assert not constraint.check(kept).is_broken
    assert constraint.check(kept).excess <= 0
    assert constraint.check(broken).is_broken
    assert constraint.check(broken).excess > 0, "also at the bound itself: to Optuna zero is no excess"


def test_what_was_not_measured_breaks_a_bound():
    (constraint,) = parse_constraints({"train_s": "< 60"})
    assert constraint.check(math.nan).is_broken
    assert str(constraint.check(math.nan)).startswith("train_s=unknown,")
    assert str(constraint.check(75.23456)).startswith("train_s=75.2346,")


@pytest.mark.parametrize("text", [60, "60", "< x", "= 60", "< 1.2.3", "< nan", "< inf", "<", "< 6 0", True, "", [1]])
def test_what_is_no_bound_is_refused_with_one_to_type(text):
    with pytest.raises(ConfigError) as refused:
        parse_constraints({"train_s": text})
    assert refused.value.key == "constraints.train_s"
    assert refused.value.value == ("[1]" if text == [1] else text)
    assert refused.value.allowed
    assert refused.value.fix.startswith("'+constraints.train_s=< ")


def test_a_number_without_a_sign_is_answered_with_one():
    with pytest.raises(ConfigError) as refused:
        parse_constraints({"train_s": 90})
    assert refused.value.fix == "'+constraints.train_s=< 90'"


def test_a_whole_trial_is_judged_by_the_seconds_it_took():
    assert not judge(TrialRecord(0, "COMPLETE", {}, **WHOLE), train_s="<= 60").broken, "its overshoot is part of it"
    (check,) = judge(TrialRecord(0, "COMPLETE", {}, **WHOLE), train_s="< 60").broken
    assert (check.name, check.bound, check.value) == ("train_s", "< 60", 60.0)


@pytest.mark.parametrize("state", ["PRUNED", "RUNNING"])
def test_a_stopped_trial_is_judged_by_its_whole_budgets_seconds(state):
    stopped = TrialRecord(0, state, {}, {200: 1.0}, env_steps=250, train_s=20.0)
    (check,) = judge(stopped, train_s="< 60").broken
    assert check.value == 80.0
    assert not judge(stopped, train_s="< 80.5").broken


def test_another_number_is_that_of_the_newest_report():
    record = TrialRecord(0, "COMPLETE", {}, **WHOLE, numbers={"episode_length_mean": 90.0})
    judged = judge(record, episode_length_mean="> 100", train_s="< 61", return_std_over_seeds="< 1")
    assert [str(check).partition(",")[0] for check in judged.broken] == [
        "episode_length_mean=90",
        "return_std_over_seeds=unknown",
    ]
    assert [check.is_broken for check in judged.checks] == [True, False, True]


def test_a_trial_that_failed_or_has_no_report_is_told_to_break_none():
    assert not judge(TrialRecord(0, "FAIL", {}, {200: 1.0}, env_steps=200, train_s=99.0), train_s="< 60").broken
    (check,) = (begun := judge(TrialRecord(0, "RUNNING", {}), train_s="< 60")).checks
    assert not begun.broken
    assert math.isnan(check.value)


def test_the_second_objective_is_measured_like_a_constraint():
    criteria = Criteria(second="train_s", env_steps=1000)
    assert criteria.judge(TrialRecord(0, "PRUNED", {}, {500: 1.0}, env_steps=500, train_s=4.0)).second == 8.0
    assert criteria.judge(TrialRecord(0, "RUNNING", {})).second is None


def test_older_settings_ask_for_nothing_more():
    assert read_criteria({"objective": {"kind": "return"}, "budget": {"env_steps": 10}}) == Criteria(env_steps=10)
    assert read_criteria({"constraints": {"train_s": None}}) == Criteria()


def test_settings_name_bounds_and_a_second_objective():
    wanted = {"constraints": {"train_s": "< 60"}, "objective": {"second": {"key": "train_s", "direction": "max"}}}
    criteria = read_criteria(wanted)
    assert [(one.name, one.bound) for one in criteria.constraints] == [("train_s", "< 60")]
    assert (criteria.second, criteria.second_direction, criteria.direction) == ("train_s", Direction.MAX, Direction.MAX)
    cost = read_criteria({"objective": {"direction": "min", "second": {"key": "train_s"}}})
    assert (cost.second_direction, cost.direction) == (Direction.MIN, Direction.MIN)
