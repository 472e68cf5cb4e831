"""When a whole sweep ends, and how long its trials have to save their state."""

from __future__ import annotations

import pickle

import pytest

from rltune.checkpoints.store import open_store
from rltune.driver.stopper import EXIT_S, GRACE_S, SweepStopper
from rltune.trial.supervisor import STOP_FILE


@pytest.fixture
def make_stopper(tmp_path, request_of):
    def make(*overrides, spent_steps=0):
        config = request_of(*overrides)
        joined = config.cluster.address is not None
        return SweepStopper(open_store(tmp_path), config.budget, spent_steps, waits_for_nodes=joined)

    return make


def test_the_first_request_is_the_one_that_counts(make_stopper, tmp_path):
    stopper = make_stopper()
    stopper.request("interrupted", 15)
    stopper.request("budget.wall_time_s is spent")
    assert (stopper.reason, stopper.signal) == ("interrupted", 15)
    assert (tmp_path / STOP_FILE).exists(), "trials look for it"
    stopper.clear()
    assert not (tmp_path / STOP_FILE).exists()


def test_a_lost_lease_gives_trials_up_and_asks_nobody(make_stopper, tmp_path):
    stopper = make_stopper()
    stopper.active_trial_dirs.add("trials/0")
    assert not stopper.stop_all()
    stopper.lose_lease()
    stopper.request("interrupted", 15)
    assert stopper.stop_all()
    assert not (tmp_path / STOP_FILE).exists()
    (tmp_path / STOP_FILE).touch()  # the other driver's
    stopper.clear()
    assert (tmp_path / STOP_FILE).exists()


def test_a_signal_leaves_seconds_to_a_sweep_that_a_budget_ended(make_stopper):
    stopper = make_stopper()
    stopper.request("budget.wall_time_s is spent")
    assert not stopper.is_urgent()
    stopper.request("interrupted", 15)
    assert (stopper.is_urgent(), stopper.signal) == (True, 15)
    assert stopper.left_s() <= EXIT_S


def test_a_stop_file_of_an_earlier_driver_stops_nothing(make_stopper, tmp_path):
    (tmp_path / STOP_FILE).touch()
    assert not make_stopper().is_requested()
    assert not (tmp_path / STOP_FILE).exists()


@pytest.mark.parametrize(("more", "ends"), [(399, False), (400, True)])
def test_steps_of_earlier_drivers_count_into_the_budget(make_stopper, more, ends):
    stopper = make_stopper("budget.total_env_steps=1000", "budget.env_steps=100", spent_steps=600)
    stopper.env_steps += more
    stopper.check_wall_time()
    assert stopper.has_spent_steps() is ends
    assert not stopper.is_requested(), "what runs comes to its end"


def test_time_is_counted_from_the_start(make_stopper, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("rltune.driver.stopper.time.monotonic", lambda: clock[0])
    stopper = make_stopper("budget.wall_time_s=60")
    for clock[0], ends in ((159.9, False), (160.0, True)):
        stopper.check_wall_time()
        assert stopper.is_requested() is ends
    assert "budget.wall_time_s" in stopper.reason


def test_a_wait_for_others_on_a_cluster_spends_no_time(make_stopper, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr("rltune.driver.stopper.time.monotonic", lambda: clock[0])
    stopper = make_stopper("budget.wall_time_s=60", "cluster=address")
    for clock[0], live, ends in ((1000.0, set(), False), (1001.0, {"trials/0"}, False), (1060.9, set(), False)):
        stopper.active_trial_dirs = live
        stopper.check_wall_time()
        assert stopper.is_requested() is ends
    clock[0] = 1061.0
    stopper.check_wall_time()
    assert "budget.wall_time_s" in stopper.reason


def test_trials_that_save_are_waited_for_until_the_deadline(make_stopper, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("rltune.driver.stopper.time.monotonic", lambda: clock[0])
    stopper = make_stopper()
    stopper.active_trial_dirs.add("trials/0")
    assert not stopper.stop_all(), "nobody asked for an end"
    stopper.request("interrupted", 2)
    assert not stopper.stop_all()
    assert stopper.left_s() == pytest.approx(EXIT_S)
    clock[0] = GRACE_S + 0.1
    assert stopper.stop_all()
    clock[0] = 60.0
    assert stopper.left_s() == 1.0, "MLflow has a second in any case"


def test_without_a_live_trial_nobody_is_waited_for(make_stopper):
    stopper = make_stopper()
    stopper.request("interrupted", 2)
    assert stopper.stop_all()


def test_what_tune_pickles_holds_nothing(make_stopper):
    assert vars(pickle.loads(pickle.dumps(make_stopper()))) == {}
