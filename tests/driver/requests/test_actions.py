"""Stop, enqueue and retry, for sweeps with and without a driver."""

from __future__ import annotations

import contextlib
import shutil
import time
from concurrent.futures import ThreadPoolExecutor

import fsspec
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem

from rltune.checkpoints.clients import Client
from rltune.checkpoints.store import Store
from rltune.driver import run as pipeline
from rltune.driver.plan import Invocation, make_plan
from rltune.driver.requests import actions, handle
from rltune.driver.requests.actions import enqueue_configuration, request_retry, retry_failed, stop_sweep
from rltune.driver.requests.inbox import describe_user, withdraw_stops
from rltune.errors import ConfigError, StudyError
from rltune.ledger.handover import hand_over, take
from rltune.ledger.storage import open_ledger
from rltune.records import CERTIFY, ENQUEUE, RETRY, STOP, TRIALS

VALUES = {"lr": 1e-3}


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(handle, "POLL_S", 0.05)


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_running_sweep_is_stopped_and_its_end_told(mine, stream):
    with ThreadPoolExecutor(1) as pool:
        with mine.drive() as stopper:
            answer = pool.submit(stop_sweep, mine.ref, stream=stream)
            wait_for(lambda: stopper.reason)
            mine.end("interrupted")
            time.sleep(0.3)
            assert not answer.done(), "its driver still has the folder: a resume would be refused"
        assert answer.result(30) == "interrupted"
    assert describe_user() in stopper.reason
    assert "0 of 4" in stream.getvalue(), "how many trials ended"
    assert "resume sweep=mine" in stream.getvalue()
    assert mine.ledger.read_requests() == []


def test_two_who_stop_it_both_learn_its_end(mine, stream):
    with ThreadPoolExecutor(2) as pool:
        with mine.drive() as stopper:
            answers = [pool.submit(stop_sweep, mine.ref, stream=stream) for _ in range(2)]
            wait_for(lambda: stopper.reason and len(mine.ledger.read_requests(STOP, waiting=False)) == 2)
            mine.end("interrupted")
        assert [answer.result(30) for answer in answers] == ["interrupted"] * 2


def test_a_stop_need_not_be_waited_for(mine, stream):
    with mine.drive() as stopper:
        assert stop_sweep(mine.ref, wait=False, stream=stream) == "running"
        wait_for(lambda: stopper.reason)


def test_a_stop_that_a_new_driver_does_not_heed_is_told(mine, stream, monkeypatch):
    monkeypatch.setattr("rltune.driver.requests.inbox.Inbox.read", lambda inbox: None)
    with ThreadPoolExecutor(1) as pool, mine.drive() as stopper:
        answer = pool.submit(stop_sweep, mine.ref, stream=stream)
        wait_for(lambda: mine.ledger.read_requests(STOP))
        withdraw_stops(mine.ledger)
        with pytest.raises(StudyError) as refused:
            answer.result(30)
        assert refused.value.key == "sweep"
        assert "stop sweep=mine" in refused.value.fix, "there is a driver that can be asked again"
        assert stopper.reason is None


def test_a_driver_that_dies_meanwhile_leaves_no_request(mine, stream, monkeypatch):
    monkeypatch.setattr("rltune.driver.requests.inbox.Inbox.read", lambda inbox: None)
    with ThreadPoolExecutor(1) as pool:
        with mine.drive():
            answer = pool.submit(stop_sweep, mine.ref, stream=stream)
            wait_for(lambda: mine.ledger.read_requests(STOP))
        with pytest.raises(StudyError) as refused:
            answer.result(30)
    assert refused.value.key == "sweep"
    assert "resume sweep=mine" in refused.value.fix, "no driver is there to be asked"
    assert mine.ledger.read_requests(STOP, waiting=False) == [], "it would end the next driver"


def test_what_does_not_run_is_not_stopped(mine):
    mine.end("complete")
    with pytest.raises(StudyError) as refused:
        stop_sweep(mine.ref)
    assert refused.value.key == "sweep"
    assert "(complete)" in refused.value.what
    assert mine.ledger.read_requests() == []


def test_a_configuration_is_enqueued_with_its_values(mine, stream):
    with mine.drive():
        enqueue_configuration(mine.ref, {**VALUES, "num_epochs": 5}, stream=stream)
    (request,) = mine.ledger.read_requests()
    assert (request.kind, request.payload) == (ENQUEUE, {"lr": 1e-3, "num_epochs": 5})
    assert "lr=0.001 num_epochs=5" in stream.getvalue()
    assert "resume" not in stream.getvalue(), "the driver that runs tries it"


WRONG = {
    "out of range": ({"lr": 2.0}, "space.lr=2 ", "loguniform"),
    "of another type": ({"lr": "much"}, "space.lr=much", "loguniform"),
    "not searched": ({"lrr": 1e-3}, "space.lrr=0.001", "'lr'"),
    "nested": ({"training": {"lrr": 1e-3}}, "space.training.lrr=0.001", "num_epochs"),
    "nothing": ({}, "no values", "at least one"),
}


@pytest.mark.parametrize("how", WRONG)
def test_values_that_the_sweep_does_not_search_are_refused(how, mine):
    values, what, allowed = WRONG[how]
    with pytest.raises(ConfigError) as refused:
        enqueue_configuration(mine.ref, values)
    assert what in refused.value.what
    assert allowed in refused.value.allowed
    assert mine.ledger.read_requests() == []


def test_a_value_under_a_condition_needs_it_met(make_mine):
    mine = make_mine(
        "~space", "+space.num_epochs=[choice,1,2]", "+space.lr=[when,{num_epochs:2},[loguniform,1e-5,1e-2]]"
    )
    with pytest.raises(ConfigError) as refused:
        enqueue_configuration(mine.ref, {"lr": 1e-3, "num_epochs": 1})
    assert refused.value.key == "space.lr"
    enqueue_configuration(mine.ref, {"lr": 1e-3, "num_epochs": 2})
    enqueue_configuration(mine.ref, {"lr": 1e-3})


def test_a_grid_takes_none_for_it_tries_all(make_mine):
    mine = make_mine("searcher=grid", "~space", "+space.num_epochs=[choice,1,2]")
    with pytest.raises(ConfigError) as refused:
        enqueue_configuration(mine.ref, {"num_epochs": 1})
    assert refused.value.key == "sweep"
    assert "searcher=" in refused.value.fix
    assert mine.ledger.read_requests() == []


def test_a_sweep_with_nothing_left_to_begin_says_what_extends_it(mine, stream):
    for _ in range(3):
        mine.begin()
    with mine.drive():
        enqueue_configuration(mine.ref, VALUES, stream=stream)
        with pytest.raises(StudyError) as refused:
            enqueue_configuration(mine.ref, VALUES)
    assert "budget.trials=4" in refused.value.what
    assert "budget.trials=5" in refused.value.fix
    assert len(mine.ledger.read_requests()) == 1


@pytest.mark.parametrize(("replicates", "larger"), [(1, 2100), (2, 4200)])
def test_a_sweep_whose_steps_are_spent_says_what_extends_it(replicates, larger, make_mine, stream):
    mine = make_mine(f"budget.total_env_steps={1000 * replicates}", f"replicates={replicates}")
    mine.begin()
    mine.train(0, 1100)
    with mine.drive(), pytest.raises(StudyError) as refused:
        enqueue_configuration(mine.ref, VALUES)
    assert "budget.total_env_steps" in refused.value.what
    assert f"budget.total_env_steps={larger}" in refused.value.fix
    mine.end("complete")
    enqueue_configuration(mine.ref, VALUES, stream=stream)
    assert stream.getvalue().rstrip().endswith(f"sweep=mine budget.total_env_steps={larger}"), "trials there are enough"


def test_without_a_driver_it_waits_for_the_next_resume(mine, stream):
    for _ in range(4):
        mine.begin()
    mine.end("complete")
    for _ in range(2):
        enqueue_configuration(mine.ref, VALUES, stream=stream)
    assert len(mine.ledger.read_requests(ENQUEUE)) == 2
    lines = stream.getvalue().splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == ["budget.trials=5", "budget.trials=6"]


def test_failed_trials_and_runs_are_tried_again_but_not_whole_ones(mine):
    for _ in range(3):
        mine.begin()
    mine.report(0, 100, 1000)
    mine.report(1, 100)
    mine.fail(0)  # it had its whole budget: nothing is left to train
    mine.fail(1)
    mine.ledger.trials.end(2, "PRUNED", "weak")
    mine.ledger.runs.add({"lr": 1e-3}, [9], key="k", of_trial=2, seed_index=0)
    mine.ledger.runs.end(0, "FAIL", "it broke")
    assert request_retry(mine.ref) == {TRIALS: [1], CERTIFY: [0]}
    assert [(request.kind, request.payload) for request in mine.ledger.read_requests()] == [
        (RETRY, {TRIALS: [1], CERTIFY: [0]})
    ]


@pytest.mark.parametrize(("trials", "key"), [([0], "trials"), ([7], "trials"), (None, "sweep")])
def test_what_did_not_fail_is_not_tried_again(trials, key, mine):
    mine.begin()
    with pytest.raises(StudyError) as refused:
        request_retry(mine.ref, trials)
    assert refused.value.key == key
    assert ("is running" in refused.value.what) is (trials == [0])
    assert mine.ledger.read_requests() == []


def test_a_running_sweep_tries_again_what_was_asked(mine, stream):
    mine.begin()
    mine.report(0, 100)
    mine.fail(0)
    with mine.drive(), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(retry_failed, mine.ref, stream=stream)
        wait_for(lambda: mine.ledger.read_requests(RETRY))
        (again,) = mine.ledger.reopen_failed(mine.ledger.read_requests(RETRY)[0])
        assert answer.result(30) is None
    assert (again.state, again.traceback, again.ended_s, list(again.reports)) == ("RUNNING", None, None, [100])
    assert "(0)" in stream.getvalue(), "the trial's number"
    assert "resume" not in stream.getvalue(), "its driver tries it"


def test_what_a_running_sweep_endures_does_not_change_with_a_retry(mine, stream):
    mine.begin()
    mine.fail(0)
    with mine.drive(), pytest.raises(StudyError) as refused:
        retry_failed(mine.ref, changes={"env": {"restarts": 20, "max_copies": None}}, stream=stream)
    assert (refused.value.key, refused.value.value) == ("env.restarts", 20)
    assert "stop sweep=mine" in refused.value.fix
    assert mine.ledger.read_requests() == []


def test_one_that_does_not_run_is_gone_on_with(mine, stream, monkeypatch):
    mine.begin()
    mine.fail(0)
    mine.end("failed")
    resumed = []
    monkeypatch.setattr("rltune.driver.run.resume_sweep", lambda ref, **given: resumed.append((ref, given["changes"])))
    retry_failed(mine.ref, changes={"env": {"restarts": 20}}, stream=stream)
    assert resumed == [(mine.ref, {"env": {"restarts": 20}})]
    assert [request.payload for request in mine.ledger.read_requests(RETRY)] == [{TRIALS: [0], CERTIFY: []}]


def test_a_retry_begins_with_the_state_of_the_machine_that_ran_last(mine, stream, monkeypatch):
    """A driver has ended here, and another machine has continued the sweep since."""
    monkeypatch.setattr("rltune.driver.run.resume_sweep", lambda *_, **__: None)
    memory = fsspec.filesystem("memory")
    filesystem = PyFileSystem(FSSpecHandler(memory))

    def open_in(folder):
        return Store(Client(lambda: filesystem), "/retried", folder, address="memory://retried")

    for module in (handle, actions):
        monkeypatch.setattr(module, "find_store", lambda sweep: open_in(sweep.folder))
    other = mine.folder.parent.parent / "other" / "mine"
    take(open_in(mine.folder), "d1")
    mine.begin()
    mine.ledger.close()
    hand_over(open_in(mine.folder), "d1")
    shutil.copytree(mine.folder, other)
    take(open_in(other), "d2")
    with contextlib.closing(open_ledger(other)) as ledger:
        ledger.trials.end(0, "FAIL", "it broke")
    open_in(other).publish(["ledger.db", "config.yaml"])
    hand_over(open_in(other), "d2")
    retry_failed(mine.ref, stream=stream)
    memory.rm("/retried", recursive=True)
    with contextlib.closing(open_ledger(mine.folder)) as ledger:
        assert [request.payload for request in ledger.read_requests()] == [{TRIALS: [0], CERTIFY: []}]


def test_a_driver_that_claims_a_sweep_sees_to_requests_first(mine, monkeypatch):
    """A stop that comes while Ray starts is for it, an older one is not."""
    mine.ledger.add_request(STOP, {}, "maria@host")

    def start(*_):
        mine.ledger.add_request(STOP, {}, "ben@host")
        raise RuntimeError("far enough")

    monkeypatch.setattr(pipeline, "prepare_environment", lambda cluster: None)
    monkeypatch.setattr(pipeline, "connect_ray", start)
    mine.ledger.add_request(RETRY, {TRIALS: [0], CERTIFY: []}, "maria@host")
    plan = make_plan(mine.config, mine.folder)
    with pytest.raises(RuntimeError, match="far enough"):
        pipeline.drive(plan, Invocation(0.0, trainable=object))
    waiting = mine.ledger.read_requests()
    assert [(request.kind, request.requested_by) for request in waiting] == [(RETRY, "maria@host"), (STOP, "ben@host")]


def test_one_that_is_stopped_meanwhile_is_not_gone_on_with(mine, stream, monkeypatch):
    mine.begin()
    mine.fail(0)
    monkeypatch.setattr("rltune.driver.run.resume_sweep", lambda *_, **__: pytest.fail("it was stopped"))
    with ThreadPoolExecutor(1) as pool:
        with mine.drive():
            answer = pool.submit(retry_failed, mine.ref, stream=stream)
            wait_for(lambda: mine.ledger.read_requests(RETRY))
            mine.end("interrupted")
        assert answer.result(30) is None
    assert "resume sweep=mine" in stream.getvalue()
    assert len(mine.ledger.read_requests(RETRY)) == 1
