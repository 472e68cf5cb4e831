"""The queue in every state: order, width, what a killed service left behind, stop and resume."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from queueing import FakeProcesses

from rltune.errors import StudyError
from rltune.service.dispatcher import Dispatcher, Ending, choose_next, judge
from rltune.service.submissions import (
    COMPLETE,
    FAILED,
    INTERRUPTED,
    QUEUED,
    REFUSED,
    RUNNING,
    Submission,
    Submissions,
)


@pytest.fixture
def queue(tmp_path: Path) -> Submissions:
    return Submissions(f"sqlite:///{tmp_path / 'service.db'}", "here")


@pytest.fixture
def processes() -> FakeProcesses:
    return FakeProcesses()


def states(queue: Submissions) -> dict[str, str]:
    return {one.name: one.state for one in queue.list()}


def submission(name: str = "one", state: str = RUNNING, place: int = 1, **facts: Any) -> Submission:
    return Submission(place, name, (), state, place, **facts)


def test_the_next_ones_begin_in_their_order_and_as_many_as_fit() -> None:
    waiting = [submission(str(place), QUEUED, place) for place in (3, 1, 2)]
    assert [one.name for one in choose_next(waiting, 2)] == ["1", "2"]
    assert [one.name for one in choose_next([*waiting, submission("0", place=0)], 2)] == ["1"]
    assert choose_next([submission("a"), submission("b"), *waiting], 1) == [], "a width that was made smaller"


@pytest.mark.parametrize(
    ("ending", "stopping", "state", "reason"),
    [
        (Ending(0), False, COMPLETE, None),
        (Ending(1, "failed", "every trial failed"), False, FAILED, "every trial failed"),
        (Ending(2, None, "lr=-1: out of range"), False, REFUSED, "lr=-1: out of range"),
        (Ending(143, "interrupted"), True, INTERRUPTED, "stopped on request"),
        (Ending(-15), True, INTERRUPTED, "stopped on request"),
        (Ending(130, "interrupted"), False, INTERRUPTED, "its process was told to end"),
        (Ending(75, "interrupted"), False, INTERRUPTED, "the head of the cluster is gone"),
        (Ending(-9, "running"), False, FAILED, "its process was killed by SIGKILL"),
        (Ending(None, "complete"), False, COMPLETE, None),
        (Ending(None, "stopped"), False, COMPLETE, None),
        (Ending(None, "failed", "why"), False, FAILED, "why"),
        (Ending(None, "running"), False, QUEUED, None),
        (Ending(None, "interrupted"), False, QUEUED, None),
        (Ending(None, None), False, QUEUED, None),
        (Ending(None, "interrupted"), True, INTERRUPTED, "stopped on request"),
        (Ending(None, "interrupted", watched=True), False, INTERRUPTED, "stopped on request"),
        (Ending(None, "running", watched=True), False, QUEUED, None),
    ],
)
def test_each_way_to_end_is_one_state(ending: Ending, stopping: bool, state: str, reason: str | None) -> None:
    assert judge(submission(stopping=stopping), ending) == (state, reason)


def test_sweeps_begin_in_order_two_at_a_time(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 2)
    for name in "abcd":
        queue.add(name, [])
    dispatcher.step()
    dispatcher.step()
    assert processes.started == ["a", "b"]
    processes.endings["b"] = Ending(0)
    dispatcher.step()
    assert processes.started == ["a", "b", "c"]
    assert states(queue) == {"a": RUNNING, "b": COMPLETE, "c": RUNNING, "d": QUEUED}


def test_a_new_service_adopts_what_runs_and_starts_the_lost_before_the_waiting(
    queue: Submissions, processes: FakeProcesses
) -> None:
    for name in "abcd":
        queue.add(name, [])
    Dispatcher(queue, processes, 2).step()  # this service is killed
    del processes.alive["b"]  # and so was a sweep
    fresh = Dispatcher(queue, processes, 2)
    fresh.step()
    assert processes.started == ["a", "b", "b"], "a goes on, b begins again before c"
    assert states(queue) == {"a": RUNNING, "b": RUNNING, "c": QUEUED, "d": QUEUED}


def test_an_adopted_sweep_that_ends_unseen_is_what_its_ledger_says(
    queue: Submissions, processes: FakeProcesses
) -> None:
    queue.add("a", [])
    Dispatcher(queue, processes, 1).step()
    processes.endings["a"] = Ending(None, "complete")
    Dispatcher(queue, processes, 1).step()
    assert states(queue) == {"a": COMPLETE}
    assert processes.started == ["a"]


def test_a_waiting_sweep_that_is_stopped_never_begins(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    queue.add("a", [])
    assert dispatcher.stop("a").state == INTERRUPTED
    dispatcher.step()
    assert (processes.started, processes.stopped) == ([], [])


def test_a_running_sweep_is_told_and_resumes_at_the_queues_end(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    for name in "abc":
        queue.add(name, [])
    dispatcher.step()
    assert dispatcher.stop("a").stopping
    assert processes.stopped == ["a"]
    with pytest.raises(StudyError, match="a is running"):
        dispatcher.resume("a")
    processes.endings["a"] = Ending(143)
    dispatcher.step()
    assert states(queue) == {"a": INTERRUPTED, "b": RUNNING, "c": QUEUED}
    assert not dispatcher.resume("a").stopping
    for name in "bc":
        processes.endings[name] = Ending(0)
        dispatcher.step()
    assert processes.started == ["a", "b", "c", "a"]


def test_one_that_has_ended_is_not_stopped(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    queue.add("a", [])
    dispatcher.step()
    processes.endings["a"] = Ending(0)
    dispatcher.step()
    with pytest.raises(StudyError, match="a is complete"):
        dispatcher.stop("a")
    with pytest.raises(StudyError, match="no such sweep"):
        dispatcher.stop("b")


def test_what_changes_a_ledger_runs_before_the_sweep_waits_again(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    queue.add("a", [])
    dispatcher.stop("a")
    seen = []

    def prepare() -> list[str]:
        seen.append(states(queue)["a"])
        return ["budget.trials=9"]

    dispatcher.resume("a", prepare)
    assert seen == [INTERRUPTED]
    assert states(queue) == {"a": QUEUED}
    assert queue.get("a").words == ("budget.trials=9",)

    def fail() -> list[str]:
        raise StudyError("nothing to retry")

    dispatcher.stop("a")
    with pytest.raises(StudyError, match="nothing to retry"):
        dispatcher.resume("a", fail)
    assert states(queue) == {"a": INTERRUPTED}


def test_after_its_end_a_service_notes_and_starts_nothing(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    for name in "ab":
        queue.add(name, [])
    dispatcher.step()
    dispatcher.end()
    processes.endings["a"] = Ending(143)  # the machine shuts down: its sweeps are told like the service
    dispatcher.step()
    assert states(queue) == {"a": RUNNING, "b": QUEUED}


def test_a_sweep_that_cannot_be_started_keeps_no_other_from_it(queue: Submissions) -> None:
    class Broken(FakeProcesses):
        def start(self, submission: Submission, claim: Any) -> None:
            if submission.name == "a":
                raise OSError("no process left")
            super().start(submission, claim)

    processes = Broken()
    for name in "ab":
        queue.add(name, [])
    dispatcher = Dispatcher(queue, processes, 1)
    dispatcher.step()
    dispatcher.step()
    assert states(queue) == {"a": FAILED, "b": RUNNING}
    assert "no process left" in str(queue.get("a").reason)


def test_one_that_was_taken_from_the_queue_meanwhile_is_not_started(queue: Submissions) -> None:
    class Slow(FakeProcesses):
        def start(self, submission: Submission, claim: Any) -> None:
            def claim_late(mark: Mapping[str, Any]) -> bool:
                queue.change(submission, state=INTERRUPTED)
                return bool(claim(mark))

            super().start(submission, claim_late)

    processes = Slow()
    queue.add("a", [])
    Dispatcher(queue, processes, 1).step()
    assert processes.started == []
    assert states(queue) == {"a": INTERRUPTED}
