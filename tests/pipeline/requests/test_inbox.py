"""What a driver does about what it was asked."""

from __future__ import annotations

import time
from signal import SIGINT

import pytest
from sqlalchemy.exc import OperationalError

from rltune.pipeline.requests import inbox as module
from rltune.pipeline.requests.inbox import Inbox, withdraw_stops
from rltune.records import CERTIFY, ENQUEUE, RETRY, STOP, TRIALS
from rltune.study import ledger as ledger_module


class Stopper:
    def __init__(self):
        self.requests = []

    def request(self, reason, signal=None):
        self.requests.append((reason, signal))


def wait_until_taken(ledger):
    deadline = time.monotonic() + 30
    while ledger.read_requests(STOP):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_a_stop_ends_the_sweep_as_an_interrupt_would(mine):
    stopper = Stopper()
    with Inbox(mine.ledger, stopper):
        mine.ledger.ask(STOP, {}, "maria@host")
        wait_until_taken(mine.ledger)
    ((reason, signal),) = stopper.requests
    assert "maria@host" in reason
    assert signal == SIGINT


def test_a_stop_that_was_meant_for_a_killed_driver_ends_no_other(mine):
    mine.ledger.ask(STOP, {}, "maria@host")
    withdraw_stops(mine.ledger)
    stopper = Stopper()
    box = Inbox(mine.ledger, stopper)
    box._read()
    assert stopper.requests == []


def test_a_stop_while_the_driver_still_starts_counts(mine, monkeypatch):
    """By whatever clock: that of the machine on which it is asked may be an hour behind."""
    withdraw_stops(mine.ledger)
    with monkeypatch.context() as behind:
        behind.setattr(ledger_module.time, "time", lambda: 1.0)
        mine.ledger.ask(STOP, {}, "maria@host")
    stopper = Stopper()
    with Inbox(mine.ledger, stopper):
        wait_until_taken(mine.ledger)
    assert len(stopper.requests) == 1


def test_a_ledger_that_does_not_answer_is_asked_again(mine, monkeypatch):
    monkeypatch.setattr(module, "POLL_S", 0.02)
    read, failures = mine.ledger.read_requests, [1, 2]

    def fail_twice(*kinds, **more):
        if failures:
            failures.pop()
            raise OperationalError("SELECT", {}, OSError("away"))
        return read(*kinds, **more)

    monkeypatch.setattr(mine.ledger, "read_requests", fail_twice)
    stopper = Stopper()
    with Inbox(mine.ledger, stopper):
        mine.ledger.ask(STOP, {}, "maria@host")
        deadline = time.monotonic() + 30
        while not stopper.requests:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert len(stopper.requests) == 1


def test_an_enqueued_configuration_is_taken_with_its_trial_or_not_at_all(mine, monkeypatch):
    """A kill in between may neither lose it nor try it twice: both are one transaction."""
    first = mine.ledger.ask(ENQUEUE, {"lr": 1e-3}, "maria@host")
    mine.ledger.ask(ENQUEUE, {"lr": 2e-3}, "ben@host")
    box = Inbox(mine.ledger, Stopper())
    assert box.find_enqueued().id == first
    assert box.find_enqueued().id == first, "to look takes nothing"
    with monkeypatch.context() as broken:
        broken.setattr("rltune.study.trial_table.update", None)  # the second half of the transaction
        with pytest.raises(TypeError):
            mine.ledger.trials.add({"lr": 1e-3}, [1], first, drawn={})
    assert (mine.ledger.trials.records(), box.find_enqueued().id) == ([], first)
    record = mine.ledger.trials.add({"lr": 1e-3}, [1], first, drawn={})
    assert record.enqueued_by == "maria@host"
    assert box.find_enqueued().payload == {"lr": 2e-3}
    assert box.count_begun() == 1


def test_what_failed_is_reopened_once_and_only_that(mine):
    for _ in range(2):
        mine.begin()
    mine.fail(0)
    mine.ledger.trials.end(1, "COMPLETE", "whole budget")
    for _ in range(2):
        mine.ledger.ask(RETRY, {TRIALS: [0, 1], CERTIFY: []}, "maria@host")
    lines = []
    box = Inbox(mine.ledger, Stopper())
    assert [record.number for record in box.reopen_failed(lines.append)] == [0]
    (line,) = lines
    assert line.startswith("trial 0:")
    assert "maria@host" in line
    assert box.reopen_failed(lines.append) == []
    assert [record.state for record in mine.ledger.trials.records()] == ["RUNNING", "COMPLETE"]
