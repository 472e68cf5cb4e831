"""Attempts that end before their trials: which trials go on, and when the whole sweep ends."""

from __future__ import annotations

import pytest

from rltune.driver.tune.attempts import Attempts
from rltune.errors import Cause

FIRST, SECOND = ("trials", 0), ("certify", 0)


@pytest.fixture
def attempts() -> Attempts:
    return Attempts(max_retries=1, stop_after=3)


def end(
    attempts: Attempts,
    trial: tuple[str, int],
    raised: bool = False,
    is_nodes_fault: bool = False,
    cause: Cause | None = None,
) -> bool:
    """One attempt without progress; whether the trial may go on."""
    cause = cause or (Cause.UNKNOWN if raised else Cause.LOST_NODE)
    attempts.begin(trial)
    return attempts.end(trial, cause, counts_against_trial=raised, is_nodes_fault=is_nodes_fault)


def test_exceptions_in_a_row_fail_a_trial(attempts: Attempts) -> None:
    assert end(attempts, FIRST, raised=True)
    assert not end(attempts, FIRST, raised=True)
    assert not attempts.are_exhausted


def test_an_attempt_with_progress_counts_nothing(attempts: Attempts) -> None:
    assert end(attempts, FIRST, raised=True)
    attempts.begin(FIRST)
    attempts.note_progress(FIRST)
    assert attempts.end(FIRST, Cause.UNKNOWN, counts_against_trial=True)
    assert [end(attempts, FIRST, raised=True) for _ in range(2)] == [True, False]


@pytest.mark.parametrize("cause", [Cause.ENVIRONMENT, Cause.REWARD, Cause.OBSERVATION])
def test_attempts_get_nowhere_in_which_no_episode_ends(attempts: Attempts, cause: Cause) -> None:
    """Each gets further by a checkpoint, and so the whole budget was spent."""
    outcomes = []
    for has_episode in (False, False, True, False, False, False):
        attempts.begin(FIRST)
        attempts.note_progress(FIRST)
        outcomes.append(attempts.end(FIRST, cause, counts_against_trial=True, has_episode=has_episode))
    assert outcomes == [True] * 5 + [False], "three in a row are failures.stop_after here"
    assert not attempts.are_exhausted, "other trials may do better"


def test_lost_nodes_fail_no_trial_where_nothing_works(attempts: Attempts) -> None:
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


@pytest.mark.parametrize(("may_lose_nodes", "ends"), [(False, [True, True, False]), (True, [True, True, True])])
def test_a_process_that_ends_on_and_on_is_its_trials_fault(may_lose_nodes: bool, ends: list[bool]) -> None:
    attempts = Attempts(max_retries=1, stop_after=9, may_lose_nodes=may_lose_nodes)
    outcomes = []
    for _ in range(3):
        attempts.note_progress(SECOND)
        outcomes.append(end(attempts, FIRST, cause=Cause.LOST_PROCESS))
    assert outcomes == ends


@pytest.mark.parametrize(
    ("causes", "are_own"),
    [
        ([Cause.LOST_PROCESS] * 3, True),
        ([Cause.ENVIRONMENT, Cause.REWARD, Cause.OBSERVATION], True),
        ([Cause.ENVIRONMENT, Cause.LOST_PROCESS, Cause.ENVIRONMENT], True),
        ([Cause.ENVIRONMENT, Cause.LOST_NODE, Cause.ENVIRONMENT], False),
        ([Cause.OUTAGE] * 3, False),
        ([Cause.LOST_NODE] * 3, False),
        ([Cause.DISK_FULL] * 3, False),
        ([Cause.UNKNOWN] * 3, False),
        ([Cause.OUT_OF_MEMORY] * 3, False),
        ([Cause.STALLED] * 3, False),
    ],
)
def test_a_row_is_the_trials_own_fault_by_its_causes(attempts: Attempts, causes: list[Cause], are_own: bool) -> None:
    end(attempts, SECOND, cause=Cause.OUTAGE)
    attempts.note_progress(SECOND)
    for number, cause in enumerate(causes):
        end(attempts, ("trials", number), cause=cause)
    assert (attempts.are_exhausted, attempts.are_own_fault) == (True, are_own)


def test_in_a_cluster_a_lost_process_may_be_its_nodes_fault() -> None:
    attempts = Attempts(max_retries=1, stop_after=3, may_lose_nodes=True)
    assert [end(attempts, FIRST, cause=Cause.LOST_PROCESS) for _ in range(3)] == [True] * 3
    assert attempts.are_exhausted
    assert not attempts.are_own_fault
