"""What the ledger has is sent by a thread: servers that stall, die and refuse."""

from __future__ import annotations

import os
import signal
import threading
import time

import pytest
from tracked_sweep import Sweep

from rltune.tracking import outbox
from rltune.tracking.outbox import Outbox

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow

STALLED_S = 1.0  # for a request to a server that stands still
WAKE_BOUND_S = STALLED_S / 2  # 0.01 ms on a quiet machine


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch):
    monkeypatch.setattr(outbox, "LINGER_S", 0.1)


def test_a_stalled_server_delays_nobody_and_loses_nothing(folder, server, monkeypatch):
    sweep = Sweep(folder, server.uri, "stalled").begin().reports([1, 2]).settle()
    patience = os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"]
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", str(STALLED_S))
    server.signal(signal.SIGSTOP)
    try:
        sweep.reports(range(3, 30))
        sweep.add_trial(lr=0.003)  # its creation may be answered into the void
        sweep.reports([30], trials=3)
        sweep.wait_for("does not answer")
    finally:
        server.signal(signal.SIGCONT)
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", patience)
    sweep.wait_for("answers again")
    sweep.reports([31], trials=3)
    for number in range(3):
        sweep.end(number, "COMPLETE")
    assert sweep.tracker.close("FINISHED")
    assert sweep.tracker.warnings() == []  # each was said once

    assert sweep.longest_s < WAKE_BOUND_S
    assert set(sweep.statuses().items()) == {
        (name, "FINISHED") for name in ("stalled", "trial-000", "trial-001", "trial-002")
    }
    assert sweep.check_curves() == 2 * (31 + 31 + 2)
    assert not sweep.is_behind()


def test_the_next_driver_sends_what_a_dead_server_did_not_get(folder, server):
    sweep = Sweep(folder, server.uri, "dead").begin().reports([1, 2]).settle()
    server.kill()
    try:
        sweep.reports([3, 4])
        sweep.add_trial(lr=0.003)
        sweep.reports([5], trials=3)
        sweep.end(0, "COMPLETE", checkpoint=sweep.write_checkpoint(0))
        began = time.monotonic()
        assert not sweep.tracker.close("KILLED", timeout_s=1.0)
        assert time.monotonic() - began < 60, "MLflow's own client tries for minutes"
        sweep.wait_for("sweep=dead")
        assert sweep.is_behind()
        sweep.ledger.close()
    finally:
        server.start().wait()
    after = Sweep(folder, server.uri, "dead").start()
    assert after.tracker.close("FINISHED")
    assert not after.is_behind()
    assert after.statuses() == {
        "dead": "FINISHED",
        "trial-000": "FINISHED",
        "trial-001": "KILLED",
        "trial-002": "KILLED",
    }
    assert after.check_curves() == 2 * (5 + 5 + 1)
    kept = after.client.list_artifacts(after.runs()["trial-000"].info.run_id, "checkpoint")
    assert [file.path for file in kept] == ["checkpoint/weights.bin"]


def test_a_server_that_dies_while_it_is_sent_to_loses_nothing(folder, server):
    sweep = Sweep(folder, server.uri, "dies").begin(trials=8)
    stop = threading.Event()

    def report():
        for step in range(1, 400):  # a slow machine must send them all
            if stop.wait(0.05):
                return
            sweep.reports([step], trials=8)

    driver = threading.Thread(target=report)
    driver.start()
    try:
        for _ in range(2):
            time.sleep(2.0)
            server.kill()
            time.sleep(0.5)
            server.start().wait()
    finally:
        stop.set()
        driver.join()
    for number in range(8):
        sweep.end(number, "COMPLETE")
    sweep.settle(240.0)
    assert sweep.tracker.close("FINISHED", 120.0), sweep.tracker.warnings()
    assert set(sweep.statuses().values()) == {"FINISHED"}
    assert sweep.check_curves() > 100


def test_an_artifact_that_is_gone_holds_up_nothing_else(folder):
    sweep = Sweep(folder).begin(trials=1)
    sweep.tracker.artifact(folder / "not-there")
    sweep.reports([1], trials=1)
    assert sweep.tracker.close("FINISHED")
    sweep.wait_for("not-there")
    assert sweep.check_curves() == 2
    assert sweep.runs()["first"].info.status == "FINISHED"


class Fake:
    """A view of a ledger whose failures are chosen."""

    def __init__(self):
        self.alive, self.sent, self.failing = True, [], set()
        self.connected = threading.Event()

    def connect(self):
        self.connected.set()

    def send(self, attempt):
        for name in ("first", "second"):
            if attempt(name, lambda name=name: self.carry_out(name)):
                self.sent.append(name)
        return "here"

    def carry_out(self, name):
        if name in self.failing:
            raise ValueError(name)

    def is_alive(self):
        return self.alive

    def doubt(self):
        pass


@pytest.fixture
def view():
    return Fake()


def test_an_operation_that_fails_on_a_live_server_is_given_up(view, monkeypatch):
    monkeypatch.setattr(outbox, "FIRST_WAIT_S", 0.01)
    messages = []
    view.failing.add("first")
    kept = Outbox(view, messages.append)
    kept.call(lambda: None, 20.0)
    kept.stop()
    assert view.sent == ["second"]
    assert len(messages) == 1
    assert "ValueError: first" in messages[0]


def test_nothing_is_given_up_while_the_server_is_away(view, monkeypatch):
    monkeypatch.setattr(outbox, "FIRST_WAIT_S", 0.01)
    messages = []
    view.failing.add("first")
    view.alive = False
    kept = Outbox(view, messages.append)
    with pytest.raises(TimeoutError):
        kept.call(lambda: None, 0.5)
    deadline = time.monotonic() + 20.0
    while kept.state != "down" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert (kept.state, view.sent) == ("down", [])
    view.failing.clear()
    view.alive = True
    kept.call(lambda: None, 20.0)
    kept.stop()
    assert view.sent == ["first", "second"]
    assert ["again" in message for message in messages] == [False, True]


def test_mlflow_is_imported_only_after_the_first_seconds(view, monkeypatch):
    monkeypatch.setattr(outbox, "LINGER_S", 600.0)
    kept = Outbox(view, print)
    try:
        kept.wake()
        assert not view.connected.wait(0.5)
        kept.call(lambda: None, 20.0)  # somebody waits
        assert view.connected.is_set()
    finally:
        kept.stop()
