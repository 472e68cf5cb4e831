"""A driver carries out the requests of users."""

from __future__ import annotations

from signal import SIGINT

import pytest

from rltune.driver.requests.inbox import Inbox, describe_user, withdraw_stops
from rltune.ledger import ledger as ledger_module
from rltune.records import CERTIFY, ENQUEUE, RETRY, STOP, TRIALS


def test_a_stop_ends_the_sweep_as_an_interrupt_would(mine):
    stopper = mine.make_stopper()
    box = Inbox(mine.ledger, stopper)
    box.read()
    assert not stopper.is_requested()
    mine.ledger.add_request(STOP, {}, "maria@host")
    box.read()
    assert not mine.ledger.read_requests(STOP)
    assert "maria@host" in stopper.reason
    assert stopper.signal == SIGINT


def test_a_stop_that_was_meant_for_a_killed_driver_ends_no_other(mine):
    mine.ledger.add_request(STOP, {}, "maria@host")
    withdraw_stops(mine.ledger)
    stopper = mine.make_stopper()
    Inbox(mine.ledger, stopper).read()
    assert not stopper.is_requested()


def test_a_stop_while_the_driver_still_starts_counts(mine, monkeypatch):
    """By whatever clock: that of the machine on which it is asked may be an hour behind."""
    withdraw_stops(mine.ledger)
    with monkeypatch.context() as behind:
        behind.setattr(ledger_module.time, "time", lambda: 1.0)
        mine.ledger.add_request(STOP, {}, "maria@host")
    stopper = mine.make_stopper()
    Inbox(mine.ledger, stopper).read()
    assert stopper.is_requested()


def test_an_enqueued_configuration_is_taken_with_its_trial_or_not_at_all(mine, monkeypatch):
    """A kill in between may neither lose it nor try it twice: both are one transaction."""
    first = mine.ledger.add_request(ENQUEUE, {"lr": 1e-3}, "maria@host")
    mine.ledger.add_request(ENQUEUE, {"lr": 2e-3}, "ben@host")
    box = Inbox(mine.ledger, mine.make_stopper())
    assert box.find_enqueued().id == first
    assert box.find_enqueued().id == first, "to look takes nothing"
    with monkeypatch.context() as broken:
        broken.setattr("rltune.ledger.trial_table.update", None)  # the second half of the transaction
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
        mine.ledger.add_request(RETRY, {TRIALS: [0, 1], CERTIFY: []}, "maria@host")
    lines = []
    box = Inbox(mine.ledger, mine.make_stopper())
    assert [record.number for record in box.reopen_failed(lines.append)] == [0]
    (line,) = lines
    assert line.startswith("trial 0:")
    assert "maria@host" in line
    assert box.reopen_failed(lines.append) == []
    assert [record.state for record in mine.ledger.trials.records()] == ["RUNNING", "COMPLETE"]


def test_a_request_names_its_user_and_their_machine():
    assert describe_user().count("@") == 1
