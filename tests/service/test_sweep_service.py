"""The service takes a sweep only if it can be run, and has its ledger changed where a verb asks for it."""

from __future__ import annotations

import contextlib
import io
import os
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from ended import write_sweep

from rltune.errors import RltuneError, StudyError
from rltune.ledger.storage import open_ledger
from rltune.records import ENQUEUE, RETRY
from rltune.service.checking import CheckedSweep
from rltune.service.descriptions import SweepDescriptions
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.processes import Ending
from rltune.service.submissions import Submissions
from rltune.service.sweep_service import SweepService
from tests.service.queueing import FakeProcesses, begin_sweep, check_at_once


@pytest.fixture
def service(tmp_path: Path) -> Iterator[SweepService]:
    folder = ServiceFolder(tmp_path / "outputs")
    with folder.hold(), closing(Submissions(folder.database, "here")) as queue:
        yield SweepService(
            folder, queue, Dispatcher(queue, FakeProcesses(), 1), SweepDescriptions(folder), check_at_once
        )


def end(service: SweepService, name: str, code: int = 0) -> None:
    """Have a sweep of the queue run and end."""
    processes = service.dispatcher._processes
    assert isinstance(processes, FakeProcesses)
    service.dispatcher.step()
    processes.endings[name] = Ending(code)
    service.dispatcher.step()


def test_the_name_of_a_sweep_that_is_there_is_taken(service: SweepService) -> None:
    write_sweep(service.folder.sweeps / "there", 1)
    service.submit([], "new")
    for name in ("there", "new"):
        with pytest.raises(RltuneError) as refused:
            service.submit([], name)
        assert refused.value.key == "name"
    assert [row["name"] for row in service.list()] == ["new"]


def test_a_complete_sweep_goes_on_only_with_more_to_do(service: SweepService) -> None:
    service.submit(["algo=ppo"], "one")
    end(service, "one")
    with pytest.raises(RltuneError) as refused:
        service.resume("one")
    assert refused.value.key == "sweep"
    with pytest.raises(RltuneError) as refused:
        service.resume("one", ["budget.trails=30"])
    assert refused.value.key == "budget.trails"
    assert service.show("one")["state"] == "complete"
    description = service.resume("one", ["budget.trials=30"])
    assert (description["state"], description["overrides"]) == ("queued", ["algo=ppo", "budget.trials=30"])


def test_what_is_enqueued_into_an_ended_sweep_has_it_wait_again(service: SweepService) -> None:
    service.submit([], "one")
    end(service, "one")
    write_sweep(service.folder.sweeps / "one", 12, None, "complete", "budget.trials=12")
    with pytest.raises(RltuneError, match="momentum"):  # The parameter that the sweep does not search.
        service.enqueue("one", {"momentum": 1})
    assert service.show("one")["state"] == "complete"
    description = service.enqueue("one", {"lr": 0.001})
    assert (description["state"], description["overrides"]) == ("queued", ["budget.trials=13"])
    with closing(open_ledger(service.folder.sweeps / "one")) as ledger:
        assert [request.kind for request in ledger.read_requests()] == [ENQUEUE]


def test_what_is_enqueued_after_the_last_environment_step_has_more_of_them(service: SweepService) -> None:
    service.submit([], "one")
    end(service, "one")
    write_sweep(
        service.folder.sweeps / "one", 2, None, "complete", "budget.total_env_steps=1000", "budget.env_steps=1000"
    )
    description = service.enqueue("one", {"lr": 0.001})
    (word,) = description["overrides"]
    assert word.startswith("budget.total_env_steps="), "there are trials left"


def test_failed_trials_wait_to_be_tried_again(service: SweepService) -> None:
    service.submit([], "one")
    end(service, "one", 1)
    write_sweep(service.folder.sweeps / "one", 2)
    with pytest.raises(RltuneError):
        service.retry("one")
    with closing(open_ledger(service.folder.sweeps / "one")) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        ledger.trials.end(number, "FAIL", "the pole broke")
    with pytest.raises(StudyError) as refused:
        service.retry("one", [number + 1])
    assert refused.value.key == "trials"
    assert service.retry("one", [number])["state"] == "queued"
    with closing(open_ledger(service.folder.sweeps / "one")) as ledger:
        assert [request.kind for request in ledger.read_requests()] == [RETRY]


def test_a_retry_changes_what_an_ended_sweep_endures(service: SweepService) -> None:
    service.submit([], "one")
    end(service, "one", 1)
    write_sweep(service.folder.sweeps / "one", 2)
    begin_sweep(service.folder.sweeps / "one", service.submissions.get("one").settings)
    with closing(open_ledger(service.folder.sweeps / "one")) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        ledger.trials.end(number, "FAIL", "the pole broke")
    assert service.retry("one", [number], ["env.restarts=20"])["state"] == "queued"
    with pytest.raises(StudyError) as refused:
        service.retry("one", [number], ["env.restarts=30"])
    assert refused.value.key == "sweep", "it waits with the settings that it has"
    assert yaml.safe_load(service.submissions.get("one").settings)["env"]["restarts"] == 20


def test_a_refused_resume_leaves_the_submission_as_it_was(service: SweepService) -> None:
    service.submit(["budget.trials=12"], "one")
    end(service, "one")
    begin_sweep(service.folder.sweeps / "one", service.submissions.get("one").settings)
    before = service.submissions.get("one")
    with pytest.raises(RltuneError):
        service.resume("one", ["budget.env_steps=9000"])
    assert service.submissions.get("one") == before
    service.resume("one", ["budget.trials=30"])
    budget = yaml.safe_load(service.submissions.get("one").settings)["budget"]
    before_budget = yaml.safe_load(before.settings)["budget"]
    assert budget == before_budget | {"trials": 30}


def test_the_queue_moves_while_a_submission_is_checked(service: SweepService) -> None:
    service.submit([], "one")
    end(service, "one", 1)
    begun, go_on = threading.Event(), threading.Event()

    def hang(check: Callable[..., CheckedSweep], *arguments: object, is_wanted: Callable[[], bool]) -> CheckedSweep:
        begun.set()
        assert go_on.wait(30)
        return check(*arguments)

    slow = replace(service, run_check=hang)
    thread = threading.Thread(target=slow.resume, args=("one", ["budget.trials=30"]))
    thread.start()
    assert begun.wait(30)
    service.submit([], "two")
    service.dispatcher.step()
    assert service.show("two")["state"] == "running"
    assert service.stop("two")["stopping"]
    go_on.set()
    thread.join(30)
    assert service.show("one")["state"] == "queued"


def test_a_policy_of_1970_is_packed(service: SweepService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy/agent").mkdir(parents=True)
    for file in ("policy.json", "agent/weights.bin"):
        (tmp_path / "policy" / file).write_text(file)
        os.utime(tmp_path / "policy" / file, (0, 0))
    located = contextlib.nullcontext(tmp_path / "policy")
    monkeypatch.setattr("rltune.service.sweep_service.locate_policy", lambda source: located)
    with zipfile.ZipFile(io.BytesIO(service.pack_policy("one"))) as packed:
        files = {name: packed.read(name).decode() for name in packed.namelist() if not name.endswith("/")}
    assert files == {"policy.json": "policy.json", "agent/weights.bin": "agent/weights.bin"}
