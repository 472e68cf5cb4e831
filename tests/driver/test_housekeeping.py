"""The driver's chores run in one thread, at their intervals, whatever one of them does."""

from __future__ import annotations

import logging
import threading
import time

import pytest
from waiting import wait_until

import rltune.driver.housekeeping
from rltune.driver.housekeeping import Housekeeping

pytestmark = pytest.mark.fast


def test_each_chore_runs_at_its_own_interval() -> None:
    often, seldom = [], []
    with Housekeeping([(0.01, lambda: often.append(1)), (60.0, lambda: seldom.append(1))]):
        wait_until(lambda: len(often) >= 5)
    assert len(seldom) == 1


def test_all_chores_run_in_one_thread() -> None:
    threads = []
    with Housekeeping([(0.01, lambda: threads.append(threading.current_thread())) for _ in range(4)]):
        wait_until(lambda: len(threads) >= 8)
    assert {thread.name for thread in threads} == {"housekeeping"}
    assert len(set(threads)) == 1


def test_a_failing_chore_is_logged_once_and_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    attempts = []

    def fail() -> None:
        attempts.append(1)
        raise OSError("no answer")

    with caplog.at_level(logging.WARNING, logger="rltune"), Housekeeping([(0.01, fail)]):
        wait_until(lambda: len(attempts) >= 3)
    assert len([record for record in caplog.records if record.exc_info]) == 1


def test_a_second_outage_is_logged_again(caplog: pytest.LogCaptureFixture) -> None:
    attempts = []

    def fail_at_times() -> None:
        attempts.append(1)
        if len(attempts) != 2:
            raise OSError("no answer")

    with caplog.at_level(logging.WARNING, logger="rltune"), Housekeeping([(0.01, fail_at_times)]):
        wait_until(lambda: len(attempts) >= 4)
    assert len([record for record in caplog.records if record.exc_info]) == 2


def test_a_chore_that_hangs_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rltune.driver.housekeeping, "CLOSE_S", 0.1)
    hangs, released = threading.Event(), threading.Event()
    began = time.monotonic()
    with Housekeeping([(1.0, lambda: (hangs.set(), released.wait(60.0)))]):
        assert hangs.wait(10.0)
    assert time.monotonic() - began < 30.0
    released.set()


def test_nothing_runs_after_the_end() -> None:
    runs: list[int] = []
    with Housekeeping([(0.01, lambda: runs.append(1))]):
        wait_until(lambda: bool(runs))
    count = len(runs)
    time.sleep(0.1)
    assert len(runs) == count
