"""The queue in every state: order, width, what a killed service left behind, stop and resume."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rltune.errors import StudyError
from rltune.service import dispatcher as dispatcher_module
from rltune.service.descriptions import SweepDescriptions
from rltune.service.dispatcher import ON_REQUEST, Dispatcher, decide_state
from rltune.service.folder import ServiceFolder
from rltune.service.processes import Ending, SweepProcesses
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
from tests.service.queueing import FakeProcesses


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


@pytest.mark.parametrize(
    ("ending", "is_stopping", "state", "reason"),
    [
        (Ending(0), False, COMPLETE, None),
        (Ending(1, "failed", "every trial failed"), False, FAILED, "every trial failed"),
        (Ending(2, None, "lr=-1: out of range"), False, REFUSED, "lr=-1: out of range"),
        (Ending(143, "interrupted"), True, INTERRUPTED, "stopped on request"),
        (Ending(-15), True, INTERRUPTED, "stopped on request"),
        (Ending(130, "interrupted"), False, INTERRUPTED, "its process received a signal to end"),
        (Ending(129, "interrupted"), False, INTERRUPTED, "its process received a signal to end"),
        (Ending(143, "interrupted", is_stop_requested=True), False, INTERRUPTED, "stopped on request"),
        (Ending(75, "interrupted", "the head is gone"), False, QUEUED, "the head is gone"),
        (Ending(75, "interrupted"), True, INTERRUPTED, "stopped on request"),
        (Ending(-9, "running"), False, QUEUED, "its process was killed by SIGKILL"),
        (Ending(-9, "running"), True, INTERRUPTED, "stopped on request"),
        (Ending(None, "complete"), False, COMPLETE, None),
        (Ending(None, "stopped"), False, COMPLETE, None),
        (Ending(None, "failed", "why"), False, FAILED, "why"),
        (Ending(None, "running"), False, QUEUED, "its process is gone"),
        (Ending(None, "interrupted"), False, QUEUED, "its process is gone"),
        (Ending(None, None), False, QUEUED, "its process is gone"),
        (Ending(None, "interrupted"), True, INTERRUPTED, "stopped on request"),
        (Ending(None, "interrupted", is_stop_requested=True), False, INTERRUPTED, "stopped on request"),
        (Ending(None, "complete", is_stop_requested=True), False, COMPLETE, None),
    ],
)
def test_each_way_to_end_is_one_state(ending: Ending, is_stopping: bool, state: str, reason: str | None) -> None:
    assert decide_state(submission(is_stopping=is_stopping), ending) == (state, reason)


@pytest.mark.parametrize(("status", "state"), [("interrupted", INTERRUPTED), ("running", QUEUED)])
def test_an_adopted_sweep_that_its_user_interrupts_is_not_started_again(status: str, state: str) -> None:
    assert decide_state(submission(is_adopted=True), Ending(None, status))[0] == state


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
    queue.add("b", [])
    assert dispatcher.num_starts == 3, "those that a new submission has replaced count, too"


def test_a_smaller_width_starts_nothing_until_enough_have_ended(queue: Submissions, processes: FakeProcesses) -> None:
    for name in "abc":
        queue.add(name, [])
    Dispatcher(queue, processes, 2).step()
    narrow = Dispatcher(queue, processes, 1)
    narrow.step()
    processes.endings["a"] = Ending(0)
    narrow.step()
    assert processes.started == ["a", "b"]
    processes.endings["b"] = Ending(0)
    narrow.step()
    assert processes.started == ["a", "b", "c"]


def test_a_new_service_adopts_what_runs_and_starts_the_lost_before_the_waiting(
    queue: Submissions, processes: FakeProcesses
) -> None:
    for name in "abcd":
        queue.add(name, [])
    Dispatcher(queue, processes, 2).step()  # this service is killed
    processes.alive.remove("b")  # and so was a sweep
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


def test_a_sweep_that_somebody_drives_is_not_started(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    for name in "ab":
        queue.add(name, [])
    processes.driven_by_others["a"] = None  # Its lease has to be watched for a while.
    dispatcher.step()
    assert states(queue) == {"a": QUEUED, "b": QUEUED}, "nobody overtakes it meanwhile"
    processes.driven_by_others["a"] = True
    dispatcher.step()
    dispatcher.step()
    assert (states(queue), processes.started) == ({"a": RUNNING, "b": QUEUED}, [])
    del processes.driven_by_others["a"]
    processes.endings["a"] = Ending(None, "interrupted")
    dispatcher.step()
    assert (states(queue), processes.started) == ({"a": INTERRUPTED, "b": RUNNING}, ["b"])


class SilentProcesses(FakeProcesses):
    """Processes, of which one has a ledger that does not answer until a test says so."""

    def __init__(self, silent: str) -> None:
        super().__init__()
        self.silent, self.answers, self.num_reads = silent, threading.Event(), 0

    def is_driven(self, submission: Submission, if_down: bool | None = False) -> bool | None:
        """Wait if it is that one's."""
        if submission.name == self.silent:
            self.num_reads += 1
            assert self.answers.wait(30)
        return super().is_driven(submission, if_down)


def test_a_ledger_that_does_not_answer_holds_up_no_queue(queue: Submissions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher_module, "ANSWER_S", 0.2)
    for name in "abc":
        queue.add(name, [])
    processes = SilentProcesses("a")
    dispatcher = Dispatcher(queue, processes, 1)
    dispatcher.step()
    assert states(queue) == {"a": QUEUED, "b": RUNNING, "c": QUEUED}
    processes.endings["b"] = Ending(0)
    dispatcher.step()
    assert states(queue) == {"a": QUEUED, "b": COMPLETE, "c": RUNNING}
    assert processes.num_reads == 1, "more threads than one wait for the same ledger"
    processes.answers.set()
    processes.endings["c"] = Ending(0)
    while states(queue)["a"] != RUNNING:
        dispatcher.step()
    assert processes.started == ["b", "c", "a"]


def test_a_running_sweep_whose_ledger_is_silent_lets_others_end(
    queue: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcher_module, "ANSWER_S", 0.2)
    for name in "ab":
        queue.change(queue.add(name, []), state=RUNNING)
    processes = SilentProcesses("a")
    processes.alive.add("b")
    dispatcher = Dispatcher(queue, processes, 2)
    thread = threading.Thread(target=dispatcher.step)
    thread.start()
    assert dispatcher.stop("b").is_stopping
    processes.endings["b"] = Ending(143)
    thread.join(30)
    dispatcher.step()
    assert states(queue) == {"a": RUNNING, "b": INTERRUPTED}
    processes.answers.set()
    while states(queue)["a"] == RUNNING and "a" not in processes.started:
        dispatcher.step()


def test_a_sweep_that_another_driver_took_over_is_running(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    queue.add("a", [])
    dispatcher.step()
    processes.driven_by_others["a"] = True
    processes.endings["a"] = Ending(75, "running", "another driver is working on it", is_driven=True)
    dispatcher.step()
    dispatcher.step()
    assert (states(queue), processes.started) == ({"a": RUNNING}, ["a"])
    assert dispatcher.stop("a").is_stopping
    assert processes.stopped == ["a"]
    del processes.driven_by_others["a"]
    processes.endings["a"] = Ending(None, "interrupted")
    dispatcher.step()
    assert (queue.get("a").state, queue.get("a").reason) == (INTERRUPTED, ON_REQUEST)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The dispatcher's clocks; a test moves them by changing the only entry."""
    now = [1000.0]
    moved = SimpleNamespace(monotonic=lambda: now[0], time=lambda: now[0])
    monkeypatch.setattr(dispatcher_module, "time", moved)
    return now


def test_an_outage_keeps_a_place_and_waits_ever_longer(
    queue: Submissions, processes: FakeProcesses, clock: list[float]
) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    queue.add("a", [])
    begins: list[float] = []
    while len(begins) < 8:
        dispatcher.step()
        if len(processes.started) > len(begins):
            begins.append(clock[0])
            processes.endings["a"] = Ending(75, None, "tracking.uri=http://away cannot be reached")
        else:
            assert (queue.get("a").state, queue.get("a").position) == (QUEUED, 1)
            assert "tracking.uri=http://away" in str(queue.get("a").reason)
            clock[0] += 30.0
    waits = [later - sooner for sooner, later in itertools.pairwise(begins)]
    assert waits == [60.0, 120.0, 240.0, 480.0, 960.0, 1800.0, 1800.0]


def test_a_sweep_that_waits_for_a_server_lets_others_begin(
    queue: Submissions, processes: FakeProcesses, clock: list[float]
) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    for name in "ab":
        queue.add(name, [])
    dispatcher.step()
    processes.endings["a"] = Ending(75, None, "storage=s3://bucket cannot be reached")
    dispatcher.step()
    assert states(queue) == {"a": QUEUED, "b": RUNNING}
    clock[0] += 61.0
    dispatcher.step()
    assert processes.started == ["a", "b"], "the width still holds"
    queue.add("c", [])
    processes.endings["b"] = Ending(0)
    dispatcher.step()
    assert processes.started == ["a", "b", "a"], "its place was kept"
    assert queue.get("a").reason is None
    assert states(queue) == {"a": RUNNING, "b": COMPLETE, "c": QUEUED}


def test_a_wrong_request_is_refused_and_never_tried_again(queue: Submissions, processes: FakeProcesses) -> None:
    queue.add("a", [])
    dispatcher = Dispatcher(queue, processes, 1)
    dispatcher.step()
    processes.endings["a"] = Ending(2, None, "lr=-1")
    dispatcher.step()
    dispatcher.step()
    assert (states(queue), processes.started) == ({"a": REFUSED}, ["a"])


def test_a_killed_sweep_is_started_again_in_its_place(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    for name in "ab":
        queue.add(name, [])
    dispatcher.step()
    for progress in range(5):  # Each run comes further, so that no limit is reached.
        processes.endings["a"] = Ending(-9, "running", progress=progress)
        dispatcher.step()
        assert states(queue) == {"a": RUNNING, "b": QUEUED}
    assert processes.started == ["a"] * 6


@pytest.mark.parametrize("code", [-9, None])
def test_three_losses_in_a_row_without_progress_end_a_sweep(
    queue: Submissions, processes: FakeProcesses, code: int | None
) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    for name in "ab":
        queue.add(name, [])
    for _ in range(3):
        dispatcher.step()
        assert states(queue) == {"a": RUNNING, "b": QUEUED}
        processes.endings["a"] = Ending(code, "running", progress=7)
    dispatcher.step()
    assert processes.started == ["a", "a", "a", "b"]
    assert states(queue) == {"a": FAILED, "b": RUNNING}
    assert dispatcher.resume(queue.get("a")).state == QUEUED


def test_a_command_that_exits_with_75_waits_in_the_queue(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    with folder.hold(), closing(Submissions(folder.database, "here")) as queue:
        program = ("/bin/sh", "-c", "echo 'error: tracking.uri=http://away'; exit 75")
        dispatcher = Dispatcher(queue, SweepProcesses(folder, {}, program), 1)
        queue.add("a", [])
        deadline = time.monotonic() + 60
        dispatcher.step()
        while queue.get("a").state == RUNNING:
            assert time.monotonic() < deadline
            dispatcher.step()
            time.sleep(0.05)
        row = queue.get("a")
        assert (row.state, row.position, row.ended_s) == (QUEUED, 1, None)
        assert "tracking.uri=http://away" in str(row.reason)
        (described,) = SweepDescriptions(folder).list(queue)
        assert (described["queue"], described["reason"]) == (1, row.reason)


def test_a_process_that_kills_itself_is_started_three_times(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    with folder.hold(), closing(Submissions(folder.database, "here")) as queue:
        processes = SweepProcesses(folder, {}, ("/bin/sh", "-c", "echo begun; kill -9 $$"))
        dispatcher = Dispatcher(queue, processes, 1)
        queue.add("a", [])
        deadline = time.monotonic() + 60
        while queue.get("a").state != FAILED:
            assert time.monotonic() < deadline
            dispatcher.step()
            time.sleep(0.05)
        assert folder.read_log("a")[0].splitlines().count("begun") == 3


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
    assert dispatcher.stop("a").is_stopping
    assert processes.stopped == ["a"]
    with pytest.raises(StudyError):
        dispatcher.resume(queue.get("a"))
    processes.endings["a"] = Ending(143)
    dispatcher.step()
    assert states(queue) == {"a": INTERRUPTED, "b": RUNNING, "c": QUEUED}
    assert not dispatcher.resume(queue.get("a")).is_stopping
    for name in "bc":
        processes.endings[name] = Ending(0)
        dispatcher.step()
    assert processes.started == ["a", "b", "c", "a"]


def test_a_driver_that_cannot_be_reached_is_not_stopping(queue: Submissions) -> None:
    class Unreachable(FakeProcesses):
        def stop(self, submission: Submission) -> None:
            raise StudyError(
                ": it has no ledger yet", "a sweep with a ledger", "the same a moment later", key="sweep", value="a"
            )

    dispatcher = Dispatcher(queue, Unreachable(), 1)
    queue.add("a", [])
    dispatcher.step()
    with pytest.raises(StudyError):
        dispatcher.stop("a")
    assert (queue.get("a").state, queue.get("a").is_stopping) == (RUNNING, False)


def test_a_sweep_whose_driver_starts_late_is_asked_until_it_has_ended(
    queue: Submissions, processes: FakeProcesses
) -> None:
    queue.add("a", [])
    Dispatcher(queue, processes, 1).step()  # this service is killed
    fresh = Dispatcher(queue, processes, 1)
    fresh.step()
    assert (fresh.stop("a").is_stopping, processes.asked_again) == (True, [])
    fresh.step()
    assert processes.asked_again == ["a"]
    processes.endings["a"] = Ending(None, "interrupted", is_stop_requested=True)
    fresh.step()
    assert (queue.get("a").state, queue.get("a").reason) == (INTERRUPTED, ON_REQUEST)


def test_one_that_has_ended_is_not_stopped(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    queue.add("a", [])
    dispatcher.step()
    processes.endings["a"] = Ending(0)
    dispatcher.step()
    for name in "ab":
        with pytest.raises(StudyError) as error:
            dispatcher.stop(name)
        assert error.value.key == "sweep"


def test_after_its_end_a_service_notes_and_starts_nothing(queue: Submissions, processes: FakeProcesses) -> None:
    dispatcher = Dispatcher(queue, processes, 1)
    for name in "ab":
        queue.add(name, [])
    dispatcher.step()
    dispatcher.close()
    processes.endings["a"] = Ending(143)  # the machine shuts down: its sweeps are told like the service
    dispatcher.step()
    assert states(queue) == {"a": RUNNING, "b": QUEUED}


class Broken(FakeProcesses):
    """Processes of a machine that has none left for some sweeps."""

    def __init__(self, *names: str) -> None:
        super().__init__()
        self.names = set(names)

    def start(self, submission: Submission) -> None:
        if submission.name in self.names:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().start(submission)


def test_a_sweep_that_cannot_be_started_keeps_no_other_from_it(queue: Submissions) -> None:
    for name in "ab":
        queue.add(name, [])
    dispatcher = Dispatcher(queue, Broken("a"), 1)
    dispatcher.step()
    dispatcher.step()
    assert states(queue) == {"a": QUEUED, "b": RUNNING}
    assert queue.get("a").reason


def test_a_full_disk_at_their_start_fails_no_sweep_of_the_queue(
    queue: Submissions, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.count(step=100)
    monkeypatch.setattr(dispatcher_module.time, "monotonic", lambda: float(next(clock)))
    processes = Broken(*"abcd")
    for name in "abcd":
        queue.add(name, [])
    dispatcher = Dispatcher(queue, processes, 2)
    for _ in range(20):  # The last ones are tried often, because starts without a process give their slots back.
        dispatcher.step()
        assert set(states(queue).values()) == {QUEUED}
    processes.names.clear()
    while len(processes.started) < 2:
        dispatcher.step()
    assert sorted(states(queue).values()) == [QUEUED, QUEUED, RUNNING, RUNNING]


def test_one_that_was_taken_from_the_queue_meanwhile_is_not_started(queue: Submissions) -> None:
    class Slow(FakeProcesses):
        def read_history(self, submission: Submission) -> dict[str, Any]:
            queue.change(submission, state=INTERRUPTED)
            return super().read_history(submission)

    processes = Slow()
    queue.add("a", [])
    Dispatcher(queue, processes, 1).step()
    assert processes.started == []
    assert states(queue) == {"a": INTERRUPTED}
