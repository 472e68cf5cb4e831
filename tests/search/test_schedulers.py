"""Which stopping rule a scheduler file means, and what it may say about it."""

from __future__ import annotations

import re

import pytest

from rltune.errors import ConfigError
from rltune.records import Report
from rltune.search.median_stopping import MedianStopping
from rltune.search.schedulers import GO_ON, Stop, StoppingRule, build_stopping_rule, replay_reports

ASHA = {"grace_fraction": 0.1, "reduction_factor": 3}


class FirstAlone(StoppingRule):
    """A rule of one's own, which needs no change of ours: every trial but the first is stopped."""

    def __init__(self, env_steps, patience, factor=1.2):
        if patience < 1:
            raise ValueError("patience must be 1 or more")
        self.patience, self.factor = patience, factor

    def decide(self, report):
        return Stop(report.nominal_steps) if report.number else GO_ON


FIRST_ALONE = f"{__name__}:FirstAlone"


def test_the_rules_that_a_file_may_name():
    assert build_stopping_rule("asha", ASHA, 1000).levels == [100, 300, 900]
    assert isinstance(build_stopping_rule("median", {"grace_fraction": 0.2, "min_trials": 5}, 1000), MedianStopping)


def test_without_a_rule_every_trial_goes_on():
    rule = build_stopping_rule("none", {}, 1000)
    assert {rule.decide(Report(number, 500, float(-number))) for number in range(20)} == {GO_ON}


def test_a_replay_tells_what_each_trials_newest_report_led_to():
    """Trial 2 was the third at the first rung and the worst; trial 0 went on from there, whatever came later."""
    come = [(0, 100, 5.0), (1, 100, 9.0), (2, 100, 1.0), (3, 50, 0.0), (0, 200, 0.0)]
    decisions = replay_reports(build_stopping_rule("asha", ASHA, 1000), [Report(*one) for one in come])
    assert decisions == {0: GO_ON, 1: GO_ON, 2: Stop(100), 3: GO_ON}


def test_no_stopping_ignores_the_other_rules_arguments():
    """An experiment sets them, and a person may run it with scheduler=none."""
    assert build_stopping_rule("none", {**ASHA, "grace_fraction": 7}, 1000).decide(Report(0, 1, 0.0)) == GO_ON


def test_a_rule_of_ones_own_is_named_by_its_class():
    rule = build_stopping_rule(FIRST_ALONE, {"patience": 3}, 1000)
    assert rule.decide(Report(4, 10, 1.0)) == Stop(10)
    assert build_stopping_rule(FIRST_ALONE, {"patience": 3, "factor": 0.8}, 1000).factor == 0.8


@pytest.mark.parametrize(
    ("kind", "args", "key"),
    [
        ("ahsa", {}, "scheduler.kind"),
        ("asha", {**ASHA, "grace": 3}, "scheduler.args.grace"),
        ("asha", {**ASHA, "env_steps": 3}, "scheduler.args.env_steps"),
        ("none", {"reduction": 3}, "scheduler.args.reduction"),
        ("asha", {**ASHA, "grace_fraction": 0}, "scheduler.args.grace_fraction"),
        ("asha", {"reduction_factor": 3}, "scheduler.args.grace_fraction"),
        ("median", {**ASHA, "min_trials": 5}, "scheduler.args.reduction_factor"),
        (FIRST_ALONE, {}, "scheduler.args.patience"),
        (FIRST_ALONE, {"patient": 3}, "scheduler.args.patient"),
        (FIRST_ALONE, {"patience": 0}, "scheduler.args"),
        ("nosuchmodule:Rule", {}, "scheduler.kind"),
        ("os:system", {}, "scheduler.kind"),
        ("collections:Counter", {}, "scheduler.kind"),
    ],
)
def test_a_scheduler_that_makes_no_sense_is_refused(kind, args, key):
    with pytest.raises(ConfigError) as refused:
        build_stopping_rule(kind, args, 1000)
    assert re.split("[= ]", refused.value.what)[0] == key
    assert refused.value.allowed
    assert refused.value.fix
