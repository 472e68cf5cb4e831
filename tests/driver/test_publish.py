"""What a person is shown at a sweep's start and end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy
from listener import listen

from rltune.driver.publish import notify_users_of_crash, publish_outcome, start_console
from rltune.driver.sweep import Sweep
from rltune.errors import StudyError, UnavailableError
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome


def crash(sweep: Sweep, error: Exception) -> None:
    notify_users_of_crash(sweep.plan.folder, sweep.ledger, sweep.tracker, sweep.console, error)


def outcome(folder, status="complete", **trials):
    counts = {"total": 2, "complete": 2, "pruned": 0, "failed": 0, "interrupted": 0} | trials
    cost = {"env_steps": 10, "env_steps_saved": 0, "train_s": 1.0, "wall_s": 2.0, "slots": 1, "efficiency": 0.5}
    cost |= {"certify_env_steps": 0, "certify_train_s": 0.0}
    return Outcome("mine", status, counts, None, None, cost, folder=folder)


@pytest.fixture
def server():
    with listen() as listener:
        yield listener


@pytest.mark.parametrize(("status", "resumes"), [("complete", False), ("interrupted", True)])
def test_only_what_is_unfinished_is_told_how_to_go_on(open_mine, stream, status, resumes):
    with open_mine("certify=off", "report=false") as sweep:
        start_console(sweep.plan, sweep.search.share, sweep.display, sweep.console)
        ended = replace(outcome(sweep.plan.folder, status), folder=Path(sweep.plan.folder))
        ended.save()
        publish_outcome(sweep, [], ended, None)
    assert ("sweeps.resume" in stream.getvalue()) is resumes


def test_an_error_that_ends_a_sweep_is_told_like_any_end(open_mine, server):
    with open_mine(f"notify=http://{server.host}/") as sweep:
        notify_users_of_crash(
            sweep.plan.folder,
            sweep.ledger,
            sweep.tracker,
            sweep.console,
            StudyError("the ledger is gone: postgresql://me:s3cret@host"),
        )
    (content,) = server.contents
    assert (content["name"], content["status"], content["winner"]) == ("mine", "failed", None)
    assert content["reason"].startswith("StudyError: ")
    assert content["reason"].endswith("postgresql://***@host")


@pytest.mark.parametrize(
    ("error", "end"),
    [
        (UnavailableError("disk"), ("interrupted", 75)),
        (StudyError("ledger"), ("failed", 2)),
        (ValueError("bug"), ("failed", 1)),
    ],
)
def test_an_error_ends_a_sweep_with_the_commands_exit_code(open_mine, server, error, end):
    with open_mine(f"notify=http://{server.host}/") as sweep:
        crash(sweep, error)
    assert [(content["status"], content["exit_code"]) for content in server.contents] == [end]


def test_a_ledger_that_fails_keeps_nobody_from_being_told(open_mine, server, monkeypatch):
    def fail(*_):
        raise sqlalchemy.exc.OperationalError("select", {}, OSError("the disk is gone"))

    with open_mine(f"notify=http://{server.host}/") as sweep, monkeypatch.context() as patch:
        patch.setattr(Ledger, "check_lease", fail)
        patch.setattr(Ledger, "sweep", fail)
        patch.setattr(Ledger, "read_pending_trials", fail)
        notify_users_of_crash(
            sweep.plan.folder, sweep.ledger, sweep.tracker, sweep.console, StudyError("the ledger is gone")
        )
    assert [content["status"] for content in server.contents] == ["failed"]


@pytest.mark.parametrize("read", ["rltune.ledger.ledger.Ledger.read_requests", "rltune.driver.publish.read_folder"])
def test_nobody_is_notified_of_an_end_that_an_error_of_the_ledger_prevents(open_mine, server, monkeypatch, read):
    def fail(*_, **__):
        raise UnavailableError("the ledger does not answer")

    with open_mine("report=false", f"notify=http://{server.host}/") as sweep:
        ended = outcome(Path(sweep.plan.folder))
        ended.save()
        with monkeypatch.context() as patch:
            patch.setattr(read, fail)
            with pytest.raises(UnavailableError) as error:
                publish_outcome(sweep, [], ended, None)
        crash(sweep, error.value)
    assert [content["status"] for content in server.contents] == ["interrupted"]


def test_a_notification_that_fails_changes_nothing_and_is_said_once(open_mine, server, stream):
    with open_mine("report=false", f"notify=http://{server.host}/no") as sweep:
        ended = outcome(Path(sweep.plan.folder))
        ended.save()
        publish_outcome(sweep, [], ended, None)
    assert stream.getvalue().count("answered with 404") == 1
