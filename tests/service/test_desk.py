"""The desk takes a sweep only if it can be run, and has its ledger changed where a verb asks for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from ended import write_sweep
from queueing import FakeProcesses

from rltune.composition.overrides import spell_value
from rltune.errors import RltuneError
from rltune.records import ENQUEUE, RETRY
from rltune.service.desk import Desk, check_submission
from rltune.service.dispatcher import Dispatcher, Ending
from rltune.service.folder import ServiceFolder
from rltune.service.submissions import Submissions
from rltune.service.views import Views
from rltune.study.storage import open_ledger


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    folder = ServiceFolder(tmp_path / "outputs")
    with folder.hold(), closing(Submissions(folder.database, "here")) as queue:
        yield Desk(folder, queue, Dispatcher(queue, FakeProcesses(), 1), Views(folder))


def end(desk: Desk, name: str, code: int = 0) -> None:
    """Have a sweep of the queue run and end."""
    processes = desk.dispatcher._processes
    assert isinstance(processes, FakeProcesses)
    desk.dispatcher.step()
    processes.endings[name] = Ending(code)
    desk.dispatcher.step()


def test_a_sweep_gets_a_name_or_keeps_its_own(desk: Desk) -> None:
    name, words = check_submission(["algo=dqn", "env=acrobot"], None, desk.folder)
    assert name.startswith("acrobot-dqn-")
    assert words == ("algo=dqn", "env=acrobot")
    assert check_submission(["name=mine", "seed=1"], None, desk.folder) == ("mine", ("seed=1",))
    assert check_submission(["name=mine"], "yours", desk.folder)[0] == "yours"


def test_a_command_that_mentions_an_address_holds_no_login(desk: Desk) -> None:
    for command in ("mail -d 'done: me@x.org'", 'curl https://x.org/y -d "done: me@x.org"'):
        word = f"notify={spell_value('notify', command)}"
        assert check_submission([word], None, desk.folder)[1] == (word,)
    for word in (
        "notify='curl https://me:s3cret@x.org/'",
        "notify='curl https://x.org/y -u maria:p@ss'",
        "notify='curl https://x.org/y -H \"Authorization: Basic abc\"'",
        "notify=https://me:s3cret@x.org/",
        "tracking.uri=http://a:b@c",
    ):
        with pytest.raises(RltuneError, match="holds a login") as refused:
            check_submission([word], None, desk.folder)
        assert "s3cret" not in str(refused.value)


def test_the_name_of_a_sweep_that_is_there_is_taken(desk: Desk) -> None:
    write_sweep(desk.folder.sweeps / "there", 1)
    with pytest.raises(RltuneError, match="name=there"):
        desk.submit([], "there")
    desk.submit([], "new")
    with pytest.raises(RltuneError, match="in the queue"):
        desk.submit([], "new")


def test_a_complete_sweep_goes_on_only_with_more_to_do(desk: Desk) -> None:
    desk.submit(["algo=ppo"], "one")
    end(desk, "one")
    with pytest.raises(RltuneError, match="nothing asks for more"):
        desk.act("resume", "one", {})
    with pytest.raises(RltuneError, match="did you mean 'trials'"):
        desk.act("resume", "one", {"overrides": ["budget.trails=30"]})
    told = desk.act("resume", "one", {"overrides": ["budget.trials=30"]})
    assert (told["state"], told["overrides"]) == ("queued", ["algo=ppo", "budget.trials=30"])


def test_what_is_enqueued_into_an_ended_sweep_has_it_wait_again(desk: Desk) -> None:
    desk.submit([], "one")
    end(desk, "one")
    write_sweep(desk.folder.sweeps / "one", 12, None, "complete", "budget.trials=12")
    with pytest.raises(RltuneError, match="momentum"):
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
    with pytest.raises(RltuneError, match="one"):
        desk.act("retry", "one", {})
    with closing(open_ledger(desk.folder.sweeps / "one")) as ledger:
        number = ledger.trials.add({"lr": 1e-3}, [1]).number
        ledger.trials.end(number, "FAIL", "the pole broke")
    with pytest.raises(RltuneError, match="trials='3'"):
        desk.act("retry", "one", {"trials": "3"})
    assert desk.act("retry", "one", {"trials": [number]})["state"] == "queued"
    with closing(open_ledger(desk.folder.sweeps / "one")) as ledger:
        assert [request.kind for request in ledger.read_requests()] == [RETRY]


def test_an_unknown_verb_is_refused(desk: Desk) -> None:
    desk.submit([], "one")
    with pytest.raises(RltuneError, match="did you mean 'stop'"):
        desk.act("stopp", "one", {})
