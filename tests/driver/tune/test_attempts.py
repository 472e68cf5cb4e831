"""Attempts that end before their trials: which trials go on, and when the whole sweep ends."""

from __future__ import annotations

import pytest

from rltune.driver.tune.attempts import Attempts

FIRST, SECOND = ("trials", 0), ("certify", 0)


@pytest.fixture
def attempts() -> Attempts:
    return Attempts(max_retries=1, stop_after=3)


def end(attempts: Attempts, trial: tuple[str, int], raised: bool = False, is_nodes_fault: bool = False) -> bool:
    """One attempt without progress; whether the trial may go on."""
    attempts.begin(trial)
    return attempts.end(trial, counts_against_trial=raised, is_nodes_fault=is_nodes_fault)


def test_exceptions_in_a_row_fail_a_trial(attempts: Attempts) -> None:
    assert end(attempts, FIRST, raised=True)
    assert not end(attempts, FIRST, raised=True)
    assert not attempts.are_exhausted


def test_an_attempt_with_progress_counts_nothing(attempts: Attempts) -> None:
    assert end(attempts, FIRST, raised=True)
    attempts.begin(FIRST)
    attempts.note_progress(FIRST)
    assert attempts.end(FIRST, counts_against_trial=True)
    assert [end(attempts, FIRST, raised=True) for _ in range(2)] == [True, False]


def test_lost_processes_fail_no_trial_where_nothing_works(attempts: Attempts) -> None:
    assert [end(attempts, trial) for trial in (FIRST, SECOND, FIRST, FIRST)] == [True] * 4
    assert attempts.are_exhausted


def test_exceptions_fail_no_trial_where_nothing_works(attempts: Attempts) -> None:
    assert [end(attempts, trial, raised=True) for trial in (FIRST, SECOND, FIRST, SECOND)] == [True] * 4


def test_attempts_in_a_row_are_those_of_all_trials(attempts: Attempts) -> None:
    for trial in (FIRST, SECOND):
        end(attempts, trial)
    assert not attempts.are_exhausted
    end(attempts, FIRST)
    assert attempts.are_exhausted
    attempts.note_progress(SECOND)
    assert not attempts.are_exhausted


def test_a_bad_node_fails_no_trial_but_ends_the_sweep(attempts: Attempts) -> None:
    for _ in range(4):
        assert end(attempts, FIRST, is_nodes_fault=True)
        attempts.note_progress(SECOND)
    assert not attempts.are_exhausted
    assert [end(attempts, FIRST, is_nodes_fault=True) for _ in range(3)] == [True] * 3
    assert attempts.are_exhausted


def test_a_process_that_ends_alike_twice_is_its_trials_fault(attempts: Attempts) -> None:
    def die(trial: tuple[str, int], death: str) -> bool:
        attempts.begin(trial)
        return attempts.end(trial, counts_against_trial=False, death=death)

    attempts.note_progress(SECOND)
    assert die(FIRST, "killed")
    attempts.note_progress(SECOND)
    assert die(FIRST, "exit 3")
    attempts.note_progress(SECOND)
    assert not die(FIRST, "exit 3") or not die(FIRST, "exit 3")
