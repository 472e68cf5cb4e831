"""The desk takes a sweep only if it can be run, and has its ledger changed where a verb asks for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ended import write_sweep
from queueing import FakeProcesses, begin_sweep

from rltune.errors import RltuneError
from rltune.records import ENQUEUE, RETRY
from rltune.service.checking import Checked, Request, check_here
from rltune.service.desk import Desk
from rltune.service.dispatcher import Dispatcher, Ending
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import Submissions
from rltune.service.views import Views
from rltune.study.storage import open_ledger


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    folder = ServiceFolder(tmp_path / "outputs")
    with folder.hold(), closing(Submissions(folder.database, "here")) as queue:
        yield Desk(folder, queue, Dispatcher(queue, FakeProcesses(), 1), Views(folder), check_here)


def end(desk: Desk, name: str, code: int = 0) -> None:
    """Have a sweep of the queue run and end."""
    processes = desk.dispatcher._processes
    assert isinstance(processes, FakeProcesses)
    desk.dispatcher.step()
    processes.endings[name] = Ending(code)
    desk.dispatcher.step()


def test_the_name_of_a_sweep_that_is_there_is_taken(desk: Desk) -> None:
    write_sweep(desk.folder.sweeps / "there", 1)
    desk.submit([], "new")
    for name in ("there", "new"):
        with pytest.raises(RltuneError) as refused:
            desk.submit([], name)
        assert refused.value.key == "name"
    assert [row["name"] for row in desk.list()] == ["new"]


def test_a_complete_sweep_goes_on_only_with_more_to_do(desk: Desk) -> None:
    desk.submit(["algo=ppo"], "one")
    end(desk, "one")
    with pytest.raises(RltuneError) as refused:
        desk.act("resume", "one", {})
    assert refused.value.key == "sweep"
    with pytest.raises(RltuneError) as refused:
        desk.act("resume", "one", {"overrides": ["budget.trails=30"]})
    assert refused.value.key == "budget.trails"
    assert desk.show("one")["state"] == "complete"
    told = desk.act("resume", "one", {"overrides": ["budget.trials=30"]})
    assert (told["state"], told["overrides"]) == ("queued", ["algo=ppo", "budget.trials=30"])


def test_what_is_enqueued_into_an_ended_sweep_has_it_wait_again(desk: Desk) -> None:
    desk.submit([], "one")
    end(desk, "one")
    write_sweep(desk.folder.sweeps / "one", 12, None, "complete", "budget.trials=12")
    with pytest.raises(RltuneError, match="momentum"):  # The parameter that the sweep does not search.
        desk.act("enqueue", "one", {"space": {"momentum": 1}})
    assert desk.show("one")["state"] == "complete"
    told = desk.act("enqueue", "one", {"space": {"lr": 0.001}})
    assert (told["state"], told["overrides"]) == ("queued", ["budget.trials=13"])
    with closing(open_ledger(desk.folder.sweeps / "one")) as ledger:
        assert [request.kind for request in ledger.read_requests()] == [ENQUEUE]


def test_what_is_enqueued_after_the_last_environment_step_has_more_of_them(desk: Desk) -> None:
    desk.submit([], "one")
    end(desk, "one")
    write_sweep(desk.folder.sweeps / "one", 2, None, "complete", "budget.total_env_steps=1000", "budget.env_steps=1000")
    told = desk.act("enqueue", "one", {"space": {"lr": 0.001}})
    (word,) = told["overrides"]
    assert word.startswith("budget.total_env_steps="), "there are trials left"


def test_failed_trials_wait_to_be_tried_again(desk: Desk) -> None:
    desk.submit([], "one")
    end(desk, "one", 1)
    write_sweep(desk.folder.sweeps / "one", 2)
    with pytest.raises(RltuneError):
        desk.act("retry", "one", {})
    with closing(open_ledger(desk.folder.sweeps / "one")) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        ledger.trials.end(number, "FAIL", "the pole broke")
    with pytest.raises(RltuneError) as refused:
        desk.act("retry", "one", {"trials": "3"})
    assert refused.value.key == "trials"
    assert desk.act("retry", "one", {"trials": [number]})["state"] == "queued"
    with closing(open_ledger(desk.folder.sweeps / "one")) as ledger:
        assert [request.kind for request in ledger.read_requests()] == [RETRY]


def test_an_unknown_verb_is_refused(desk: Desk) -> None:
    desk.submit([], "one")
    with pytest.raises(RltuneError):
        desk.act("stopp", "one", {})
    assert desk.show("one")["state"] == "queued"


def test_a_refused_resume_leaves_the_submission_as_it_was(desk: Desk) -> None:
    desk.submit(["budget.trials=12"], "one")
    end(desk, "one")
    begin_sweep(desk.folder.sweeps / "one", desk.submissions.get("one").settings)
    before = desk.submissions.get("one")
    with pytest.raises(RltuneError):
        desk.act("resume", "one", {"overrides": ["budget.env_steps=9000"]})
    assert desk.submissions.get("one") == before
    desk.act("resume", "one", {"overrides": ["budget.trials=30"]})
    budget = yaml.safe_load(desk.submissions.get("one").settings)["budget"]
    before_budget = yaml.safe_load(before.settings)["budget"]
    assert budget == before_budget | {"trials": 30}


def test_the_queue_moves_while_a_submission_is_checked(desk: Desk) -> None:
    desk.submit([], "one")
    end(desk, "one", 1)
    begun, go_on = threading.Event(), threading.Event()

    def hang(request: Request) -> Checked:
        begun.set()
        assert go_on.wait(30)
        return check_here(request)

    slow = replace(desk, check=hang)
    thread = threading.Thread(target=slow.act, args=("resume", "one", {"overrides": ["budget.trials=30"]}))
    thread.start()
    assert begun.wait(30)
    desk.submit([], "two")
    desk.dispatcher.step()
    assert desk.show("two")["state"] == "running"
    assert desk.act("stop", "two", {})["stopping"]
    go_on.set()
    thread.join(30)
    assert desk.show("one")["state"] == "queued"
