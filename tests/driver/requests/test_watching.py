"""A sweep that another process runs, watched by its ledger."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rltune.driver.requests import handle
from rltune.driver.requests.watching import watch_sweep
from rltune.records import CERTIFY, RETRY, TRIALS


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    monkeypatch.setattr(handle, "POLL_S", 0.05)


def wait_for(stream, text):
    deadline = time.monotonic() + 30
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, stream.getvalue()
        time.sleep(0.02)


def test_a_sweep_is_followed_to_its_end_with_its_exit_code(mine, stream):
    mine.begin()
    mine.report(0, 100)
    with ThreadPoolExecutor(1) as pool:
        with mine.drive():
            watched = pool.submit(watch_sweep, mine.ref, stream=stream)
            wait_for(stream, "begun so far")
            mine.report(0, 500, 1000)
            mine.ledger.trials.end(0, "COMPLETE", "whole budget")
            wait_for(stream, "1,000  lr=0.001")
            mine.begin(lr=2e-3)
            mine.fail(1)  # between two looks, perhaps
            wait_for(stream, "it broke")
            mine.ledger.add_request(RETRY, {TRIALS: [1], CERTIFY: []}, "maria@host")
            mine.ledger.reopen_failed(mine.ledger.read_requests()[0])
            wait_for(stream, "trial   1 interrupted")
            mine.ledger.trials.start(1)
            mine.report(1, 100, 1000)
            mine.ledger.trials.end(1, "COMPLETE", "whole budget")
            wait_for(stream, "trial   1 complete")
            mine.end("complete")
        assert watched.result(30) == 0
    assert ": 2 complete" in stream.getvalue()


@pytest.mark.parametrize(("status", "code"), [("complete", 0), ("failed", 1), ("interrupted", 130)])
def test_one_that_has_ended_is_shown_by_its_closing_lines(status, code, mine, stream):
    mine.begin()
    mine.end(status)
    assert watch_sweep(mine.ref, stream=stream) == code
    assert f"mine: {status}, 1 trial" in stream.getvalue()
    assert "begun so far" not in stream.getvalue()


def test_a_driver_that_was_killed_is_noticed(mine, stream):
    mine.begin()
    assert watch_sweep(mine.ref, stream=stream) == 130
    assert "resume sweep=mine" in stream.getvalue()


def test_a_resumed_sweep_is_waited_for_until_it_runs(mine, stream):
    """Its ledger has the earlier end while its driver starts."""
    mine.end("interrupted")
    with ThreadPoolExecutor(1) as pool, mine.drive():
        mine.ledger.change_sweep(status="interrupted")
        watched = pool.submit(watch_sweep, mine.ref, stream=stream)
        wait_for(stream, "sweep mine: 4 trials")
        time.sleep(0.3)
        assert not watched.done()
        mine.ledger.change_sweep(status="running")
        time.sleep(0.3)
        mine.end("complete")
        assert watched.result(30) == 0, "though its driver still lives"


def test_an_interrupt_leaves_the_sweep_as_it_is(mine, stream, monkeypatch):
    def interrupt(_):
        raise KeyboardInterrupt

    with mine.drive() as stopper:
        monkeypatch.setattr(handle.time, "sleep", interrupt)
        with pytest.raises(KeyboardInterrupt):
            watch_sweep(mine.ref, stream=stream)
        monkeypatch.undo()
        assert stopper.reason is None
    assert "watch sweep=mine" in stream.getvalue()


def test_runs_of_the_certification_are_counted(make_mine, stream):
    mine = make_mine("certify=on", "certify.seeds=2", "certify.top=1")
    mine.begin()
    mine.report(0, 1000)
    mine.ledger.trials.end(0, "COMPLETE", "whole budget")
    with ThreadPoolExecutor(1) as pool:
        with mine.drive():
            mine.ledger.runs.add({"lr": 1e-3}, [9], key="k", of_trial=0, seed_index=0)
            watched = pool.submit(watch_sweep, mine.ref, stream=stream)
            wait_for(stream, "begun so far")
            mine.ledger.runs.end(0, "COMPLETE", "whole budget", returns=(4.0, 6.0))
            wait_for(stream, "certified seed 1 of trial 0: 5 (1 of up to 5 runs)")
            mine.end("complete")
        assert watched.result(30) == 0
