"""The queue's table: places only grow, one name once, and nobody changes a row that has changed meanwhile."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from rltune.errors import StudyError
from rltune.service.submissions import COMPLETE, QUEUED, REFUSED, RUNNING, Submissions, UnknownSubmissionError


@pytest.fixture
def queue(tmp_path: Path) -> Submissions:
    return Submissions(f"sqlite:///{tmp_path / 'service.db'}", "here")


def test_submissions_stand_in_the_order_in_which_they_came(queue: Submissions) -> None:
    for name in ("b", "a", "c"):
        queue.add(name, [f"algo={name}"], "family")
    assert [(one.name, one.overrides, one.state, one.group) for one in queue.list()] == [
        (name, (f"algo={name}",), QUEUED, "family") for name in ("b", "a", "c")
    ]


def test_one_that_is_queued_again_waits_behind_all_others(queue: Submissions) -> None:
    first = queue.add("first", [])
    queue.add("second", [])
    queue.change(first, state=COMPLETE, ended_s=1.0, reason="old", is_adopted=True)
    assert queue.queue_again(queue.get("first"))
    again = queue.get("first")
    assert [one.name for one in queue.list()] == ["second", "first"]
    assert (again.state, again.reason, again.is_adopted, again.ended_s) == (QUEUED, None, False, None)


def test_a_setting_that_is_given_again_takes_the_others_place(queue: Submissions) -> None:
    one = queue.add("one", ["algo=ppo", "budget.trials=4"])
    queue.queue_again(one, ["budget.trials=8", "seed=1"])
    assert queue.get("one").overrides == ("algo=ppo", "budget.trials=8", "seed=1")


def test_a_name_that_waits_or_runs_is_taken(queue: Submissions) -> None:
    one = queue.add("twice", ["seed=1"])
    problems = set()
    for state in (QUEUED, RUNNING):
        queue.change(queue.get("twice"), state=state)
        with pytest.raises(StudyError, match="name=twice") as refused:
            queue.add("twice", ["seed=2"])
        problems.add(refused.value.problem)
    assert len(problems) == 2, "whether it waits or runs"
    assert queue.get("twice").id == one.id
    queue.change(queue.get("twice"), state=REFUSED)
    assert queue.add("twice", ["seed=2"]).overrides == ("seed=2",), "a refused one left nothing behind"


def test_a_row_that_has_changed_meanwhile_is_left_alone(queue: Submissions) -> None:
    seen = queue.add("one", [])
    assert queue.change(seen, state=RUNNING)
    assert not queue.change(seen, state=COMPLETE), "who saw it queued decides nothing any more"
    assert queue.get("one").state == RUNNING


def test_services_of_one_database_do_not_see_each_other(queue: Submissions, tmp_path: Path) -> None:
    queue.add("same", [])
    other = Submissions(f"sqlite:///{tmp_path / 'service.db'}", "elsewhere")
    assert not other.list()
    other.add("same", ["seed=1"])
    assert queue.get("same").overrides == ()


def test_an_unknown_name_is_answered_with_the_nearest(queue: Submissions) -> None:
    queue.add("cartpole", [])
    with pytest.raises(UnknownSubmissionError, match="'cartpole'"):
        queue.get("cartpol")


def test_a_database_that_cannot_be_opened_is_told_without_its_login() -> None:
    with pytest.raises(StudyError) as refused:
        Submissions("mysql://me:s3cret@host/db", "here")
    assert "s3cret" not in str(refused.value)


def test_a_submissions_settings_are_its_own(queue: Submissions) -> None:
    queue.add("one", [], settings="seed: 1\n")
    queue.change(queue.get("one"), state=COMPLETE)
    queue.queue_again(queue.get("one"))
    assert queue.get("one").settings == "seed: 1\n"
    queue.change(queue.get("one"), state=COMPLETE)
    queue.queue_again(queue.get("one"), [], "seed: 2\n")
    assert queue.get("one").settings == "seed: 2\n"


def test_what_was_resumed_and_ended_meanwhile_is_left_alone(queue: Submissions) -> None:
    queue.add("one", [])
    queue.change(queue.get("one"), state=COMPLETE)
    seen = queue.get("one")
    queue.queue_again(seen)
    queue.change(queue.get("one"), state=COMPLETE)
    assert not queue.queue_again(seen, [], "seed: 2\n")
    assert queue.get("one").settings == ""


def test_a_queue_of_another_format_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    for _ in range(2):  # its own format opens again
        Submissions(f"sqlite:///{path}", "here").close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE submissions_format SET format = 99")
        database.commit()
    with pytest.raises(StudyError) as refused:
        Submissions(f"sqlite:///{path}", "here")
    assert all((refused.value.what, refused.value.allowed, refused.value.fix))


def test_a_queue_whose_first_service_was_killed_while_it_made_the_tables_opens(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    Submissions(f"sqlite:///{path}", "here").close()
    with closing(sqlite3.connect(path)) as database:
        database.execute("DELETE FROM submissions_format")
        database.commit()
    for _ in range(2):
        Submissions(f"sqlite:///{path}", "here").close()
    with closing(sqlite3.connect(path)) as database:
        assert database.execute("SELECT count(*) FROM submissions_format").fetchone() == (1,)
