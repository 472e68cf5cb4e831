"""What Tune is told about a trial after each of its reports."""

from __future__ import annotations

from types import SimpleNamespace

from ray.tune.experiment import Trial
from ray.tune.schedulers import TrialScheduler

from rltune.search.successive_halving import SuccessiveHalving
from rltune.sweep.tune.scheduler import StoppingRuleScheduler


def test_tune_is_told_to_stop_what_the_rungs_stop_and_the_rung_is_remembered():
    scheduler = StoppingRuleScheduler(SuccessiveHalving(1000, 0.1, 3))
    told = [
        scheduler.on_trial_result(None, None, {"number": number, "env_steps": 120, "objective": objective})
        for number, objective in enumerate([5.0, 9.0, 1.0, 12.0])
    ]
    go, stop = TrialScheduler.CONTINUE, TrialScheduler.STOP
    assert told == [go, go, stop, go]
    assert scheduler.stopped == {2: 100}


def test_without_rungs_every_trial_runs_to_its_end():
    scheduler = StoppingRuleScheduler(None)
    for number in range(20):
        result = {"number": number, "env_steps": 500, "objective": float(-number)}
        assert scheduler.on_trial_result(None, None, result) == TrialScheduler.CONTINUE
    assert scheduler.stopped == {}


def test_the_first_waiting_trial_is_run_and_ended_ones_are_not_looked_at():
    def trial(number: int, status: str) -> SimpleNamespace:
        return SimpleNamespace(status=status, config={"assignment": {"number": number}})

    live = {6: trial(6, Trial.RUNNING), 9: trial(9, Trial.PENDING), 8: trial(8, Trial.PENDING)}
    controller = SimpleNamespace(get_live_trials=lambda: list(live.values()))
    scheduler = StoppingRuleScheduler(None)
    assert scheduler.choose_trial_to_run(controller) is live[8]
    del live[8], live[9]
    assert scheduler.choose_trial_to_run(controller) is None
