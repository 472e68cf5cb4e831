"""What Tune is told about a trial after each of its reports."""

from __future__ import annotations

import pytest
from opened import TuneTrial
from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from rltune.driver.tune.scheduler import StoppingRuleScheduler
from rltune.records import Report
from rltune.search.schedulers import GO_ON, NoStopping, Stop
from rltune.search.successive_halving import SuccessiveHalving

GO, STOP = TrialScheduler.CONTINUE, TrialScheduler.STOP


class Rule:
    """Decides as told, and keeps what it saw."""

    def __init__(self, decision=GO_ON):
        self.decision, self.seen = decision, []

    def decide(self, report):
        self.seen.append(report)
        return self.decision


def make_result(number=0, env_steps=120, objective=1.0, **more):
    steps = {"nominal_steps": env_steps, "env_steps": env_steps}
    return {"kind": "trials", "number": number, **steps, "score": objective, **more}


def test_tune_stops_what_the_rungs_stop():
    scheduler = StoppingRuleScheduler(SuccessiveHalving(1000, 0.1, 3))
    results = [make_result(number, objective=objective) for number, objective in enumerate([5.0, 9.0, 1.0, 12.0])]
    assert [scheduler.on_trial_result(None, None, result) for result in results] == [GO, GO, STOP, GO]
    assert [scheduler.pop_reason(number) for number in (1, 2, 2)] == [None, Stop(120).reason, None]


def test_the_rule_sees_the_report_that_the_ledger_gets():
    scheduler = StoppingRuleScheduler(rule := Rule())
    scheduler.on_trial_result(None, None, make_result(3, 120, 2.5, **{"learner/loss": 0.5, "records/best/path": "x"}))
    (report,) = rule.seen
    assert isinstance(report, Report)
    assert (report.number, report.nominal_steps, report.score) == (3, 120, 2.5)
    assert report.numbers == {"score": 2.5, "env_steps": 120, "learner/loss": 0.5}


def test_without_stopping_every_trial_runs_to_its_end():
    scheduler = StoppingRuleScheduler(NoStopping(1000))
    decisions = {
        scheduler.on_trial_result(None, None, make_result(number, 500, float(-number))) for number in range(20)
    }
    assert decisions == {GO}
    assert not any(scheduler.pop_reason(number) for number in range(20))


@pytest.mark.parametrize("what", ["a certification's", "a checkpoint alone"])
def test_what_is_no_report_of_the_search_is_not_judged(what):
    scheduler = StoppingRuleScheduler(rule := Rule(Stop(100)))
    result = make_result(kind="certify")
    if what == "a checkpoint alone":
        result = make_result()
        del result["nominal_steps"]
    assert scheduler.on_trial_result(None, None, result) == GO
    scheduler.on_trial_complete(None, None, result)
    assert rule.seen == []
    assert not any(scheduler.pop_reason(number) for number in range(20))


def test_the_rule_sees_the_last_report_and_no_verdict_follows():
    """A resumed sweep's rule finds it in the ledger, and both must know the same."""
    scheduler = StoppingRuleScheduler(rule := Rule(Stop(100)))
    scheduler.on_trial_complete(None, None, make_result(5, 1000, 3.0, done=True))
    assert [(report.number, report.env_steps) for report in rule.seen] == [(5, 1000)]
    assert not any(scheduler.pop_reason(number) for number in range(20))


def test_an_end_without_a_new_report_tells_the_rule_nothing():
    scheduler = StoppingRuleScheduler(rule := Rule(Stop(100)))
    scheduler.on_trial_complete(None, None, {})
    scheduler.on_trial_complete(None, None, {"kind": "trials", "number": 5, "failed": "RuntimeError"})
    scheduler.on_trial_result(None, None, make_result(6))
    scheduler.on_trial_complete(None, None, make_result(6))
    assert len(rule.seen) == 1, "that which stopped trial 6"


def test_the_first_waiting_trial_is_run_and_ended_ones_are_not_looked_at():
    scheduler = StoppingRuleScheduler(NoStopping(1000))
    added = {}
    for number in (9, 8):
        added[number] = TuneTrial({"assignment": {"number": number}}, Trial.PENDING)
        scheduler.on_trial_add(None, added[number])
    assert scheduler.choose_trial_to_run(None) is added[8]
    added[8].status = Trial.RUNNING
    assert scheduler.choose_trial_to_run(None) is added[9]
    added[9].status = Trial.TERMINATED
    added[9].config.clear()  # as the recorder leaves a trial that has ended
    assert scheduler.choose_trial_to_run(None) is None
