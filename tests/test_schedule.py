"""What Tune is told about a trial after each of its reports."""

from __future__ import annotations

from ray.tune.schedulers import TrialScheduler

from rltune.rungs import Rungs
from rltune.schedule import AshaScheduler


def test_tune_is_told_to_stop_what_the_rungs_stop_and_the_rung_is_remembered():
    scheduler = AshaScheduler(Rungs(1000, 0.1, 3))
    told = [
        scheduler.on_trial_result(None, None, {"number": number, "env_steps": 120, "objective": objective})
        for number, objective in enumerate([5.0, 9.0, 1.0, 12.0])
    ]
    go, stop = TrialScheduler.CONTINUE, TrialScheduler.STOP
    assert told == [go, go, stop, go]
    assert scheduler.stopped == {2: 100}


def test_without_rungs_every_trial_runs_to_its_end():
    scheduler = AshaScheduler(None)
    for number in range(20):
        result = {"number": number, "env_steps": 500, "objective": float(-number)}
        assert scheduler.on_trial_result(None, None, result) == TrialScheduler.CONTINUE
    assert scheduler.stopped == {}
