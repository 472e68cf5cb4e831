"""The ledger of a sweep: what goes in comes out when it is opened again; what MLflow was sent; refusals."""

from __future__ import annotations

import contextlib
import math
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ledger import add_reports, ask, make_ledger
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from rltune.config.settings_file import FORMAT
from rltune.errors import StudyError
from rltune.ledger import database
from rltune.ledger.database import check_storage, make_storage_error
from rltune.ledger.ledger import Ledger, MissingSweepError
from rltune.records import CERTIFY, ENQUEUE, RETRY, STOP, TRIALS, SweepRecord


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    made = make_ledger(tmp_path)
    yield made
    made.close()


FACTS = {
    "status": "interrupted",
    "folder": "/home/me/outputs/sweep",
    "config": "algo: {name: ppo}\n",
    "versions": {"ray": "2.60.0", "rltune": "0.1.0"},
    "git_commit": "ab12" * 10,
    "command": "python -m sweeps.run algo=ppo",
    "began": "2026-01-02T03:04:05+00:00",
    "wall_s": 12.5,
    "winner": {"trial": 3, "params": {"lr": 0.1, "layers": [64, 64]}, "objective": 9.0},
    "model": {"name": "cartpole-ppo", "version": "3"},
    "certification": {"seeds": [1, 2], "configurations": []},
    "mlflow_run_id": "run0",
    "mlflow": {"uri": "sqlite:////home/me/mlflow.db", "experiment": "1"},
}


def test_a_sweep_reads_as_it_was_when_it_is_opened_again(ledger: Ledger, url: str) -> None:
    ledger.change_sweep(**FACTS)
    ledger.close()
    again = Ledger(url, "sweep").sweep()
    assert again == SweepRecord("sweep", key=again.key, **FACTS)
    assert len(again.key) == 32


def test_a_new_sweep_knows_its_name_and_a_key_of_its_own(ledger: Ledger, url: str) -> None:
    record = ledger.sweep()
    assert record == SweepRecord("sweep", key=record.key)
    assert Ledger(url, "other", create=True).sweep().key != record.key


def test_what_a_sweep_has_not_is_refused(ledger: Ledger) -> None:
    with pytest.raises(Exception, match="champion"):
        ledger.change_sweep(champion={"version": "3"})


def test_sweeps_of_one_database_do_not_meet(ledger: Ledger, url: str) -> None:
    other = Ledger(url, "other", create=True)
    ask(ledger)
    assert ask(other)[0] == 0
    add_reports(ledger, 0, {100: 1.0})
    other.change_sweep(status="complete")
    assert (ledger.sweep().status, len(other.trials.record(0).reports)) == (None, 0)
    assert [trial.number for trial in other.read_pending_trials("a")] == [0]
    assert other.read_reports_after(0, 10) == []
    other.close()


def test_trials_and_certification_runs_are_numbered_apart(ledger: Ledger) -> None:
    ask(ledger)
    run = ledger.runs.add({"lr": 1e-3}, [7], key="lr=1e-3 seed=7", of_trial=0, seed_index=1)
    assert (run.number, run.kind, run.name) == (0, CERTIFY, "trial-000-seed-2")
    assert [len(ledger.table(kind).records()) for kind in (TRIALS, CERTIFY)] == [1, 1]


@pytest.mark.slow
def test_another_process_reads_what_the_driver_has_committed(ledger: Ledger, url: str) -> None:
    add_reports(ledger, ask(ledger)[0], {100: 1.0, 200: math.nan})
    looking = f"from rltune.ledger.ledger import Ledger; print(Ledger({url!r}, 'sweep').trials.records()[0].reports)"
    done = subprocess.run([sys.executable, "-c", looking], capture_output=True, text=True, check=True)
    assert done.stdout == "{100: 1.0, 200: nan}\n"


def test_readers_see_what_one_driver_writes(ledger: Ledger, url: str) -> None:
    readers = [Ledger(url, "sweep"), Ledger(url, "sweep")]
    add_reports(ledger, ask(ledger)[0], {10: 1.0})
    assert [dict(reader.trials.record(0).reports) for reader in readers] == [{10: 1.0}] * 2
    for reader in readers:
        reader.close()


def test_a_reader_that_holds_the_file_does_not_stop_the_driver(ledger: Ledger, tmp_path: Path) -> None:
    reader = sqlite3.connect(tmp_path / "ledger.db")
    reader.execute("begin")
    assert reader.execute("select count(*) from reports").fetchone() == (0,)
    add_reports(ledger, ask(ledger)[0], {10: 1.0})
    assert reader.execute("select count(*) from reports").fetchone() == (0,), "it sees the state that it began with"
    reader.close()


# -- what trackers have --------------------------------------------------------------------------------------------


def pending(ledger: Ledger, tracker: str = "a", **options: bool) -> list[tuple[str, int]]:
    return [(trial.kind, trial.number) for trial in ledger.read_pending_trials(tracker, **options)]


def test_a_trial_is_pending_when_it_begins_and_when_it_ends(ledger: Ledger) -> None:
    ask(ledger)
    ledger.runs.add({}, [1])
    assert pending(ledger) == [(TRIALS, 0), (CERTIFY, 0)], "in the order in which they were proposed"
    for trial in ledger.read_pending_trials("a"):
        assert trial.delivered == 0
        ledger.mark_trial("a", trial.kind, trial.number, revision=trial.revision)
    assert (pending(ledger), pending(ledger, "b")) == ([], [(TRIALS, 0), (CERTIFY, 0)])
    add_reports(ledger, 0, {100: 1.0})
    ledger.trials.change(0, train_s=2.0)
    assert pending(ledger) == [], "reports have a mark of their own"
    for change in (
        lambda: ledger.trials.interrupt(0),
        lambda: ledger.trials.start(0),
        lambda: ledger.trials.end(0, "PRUNED", "stopped"),
    ):
        change()
        (trial,) = ledger.read_pending_trials("a")
        ledger.mark_trial("a", TRIALS, 0, revision=trial.revision)
    assert pending(ledger) == []


def test_what_changes_during_its_delivery_is_delivered_again(ledger: Ledger) -> None:
    ask(ledger)
    (trial,) = ledger.read_pending_trials("a")
    ledger.trials.end(0, "FAIL", "it broke")
    ledger.mark_trial("a", TRIALS, 0, revision=trial.revision)
    assert pending(ledger) == [(TRIALS, 0)]


def test_a_complete_trial_is_pending_until_its_files_are_there(ledger: Ledger) -> None:
    ask(ledger)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    (trial,) = ledger.read_pending_trials("a")
    ledger.mark_trial("a", TRIALS, 0, revision=trial.revision)
    assert (pending(ledger), pending(ledger, with_checkpoints=True)) == ([], [(TRIALS, 0)])
    ledger.mark_trial("a", TRIALS, 0, checkpoint="trials/0/best-100")
    assert pending(ledger, with_checkpoints=True) == []


def test_reports_are_read_once_each_in_the_order_they_came(ledger: Ledger) -> None:
    for _ in range(2):
        ask(ledger)
    ledger.runs.add({}, [1])
    for steps in (100, 200):
        for number in (1, 0):
            add_reports(ledger, number, {steps: float(number)})
    add_reports(ledger, 0, {300: math.nan})
    ledger.runs.add_report(ledger.trials.read_reports(0)[0])
    seen: list[tuple[str, int, int]] = []
    while page := ledger.read_reports_after(ledger.read_delivered_report("a"), limit=2):
        seen += [(kind, report.number, report.env_steps) for _, kind, report in page]
        assert len(page) <= 2
        ledger.mark_reports("a", page[-1][0])
    assert seen == [
        *((TRIALS, number, steps) for steps in (100, 200) for number in (1, 0)),
        (TRIALS, 0, 300),
        (CERTIFY, 0, 100),
    ]
    assert ledger.read_delivered_report("b") == 0


def test_another_mlflow_is_sent_all_of_it_again(ledger: Ledger, url: str) -> None:
    ask(ledger)
    add_reports(ledger, 0, {100: 1.0})
    ledger.trials.set_mlflow_run(0, "run0")
    ledger.trials.end(0, "COMPLETE", "whole budget")
    for tracker in ("a", "b"):
        ledger.mark_trial(tracker, TRIALS, 0, revision=9, checkpoint="trials/0/best-100")
        ledger.mark_reports(tracker, ledger.read_reports_after(0, 10)[-1][0])
    ledger.forget_mlflow("a")
    again = Ledger(url, "sweep")
    assert pending(again, with_checkpoints=True) == [(TRIALS, 0)]
    assert again.read_delivered_report("a") == 0
    assert again.trials.record(0).mlflow_run_id is None
    assert pending(again, "b", with_checkpoints=True) == []
    assert again.read_delivered_report("b") > 0
    again.close()


def test_a_running_trial_forgets_its_run_in_the_other_mlflow(ledger: Ledger) -> None:
    ask(ledger)
    ledger.trials.set_mlflow_run(0, "run0")
    ledger.forget_mlflow("a")
    assert ledger.trials.record(0).mlflow_run_id is None


# -- refusals ----------------------------------------------------------------------------------------------------------


def test_a_sweep_that_is_not_there_is_named(ledger: Ledger, url: str) -> None:
    with pytest.raises(MissingSweepError, match="other"):
        Ledger(url, "other")


def test_a_database_without_tables_gets_none_by_looking(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "ledger.db").execute("create table mine (x)").connection.close()
    with pytest.raises(MissingSweepError, match="sweep"):
        Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "sweep")
    held = sqlite3.connect(tmp_path / "ledger.db").execute("select name from sqlite_master").fetchall()
    assert held == [("mine",)]


def test_a_ledger_without_the_newest_columns_goes_on(ledger: Ledger, url: str, tmp_path: Path) -> None:
    ask(ledger)
    ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:
        raw.execute("alter table sweep_trials drop column metrics")
    with contextlib.closing(Ledger(url, "sweep")) as older, contextlib.closing(Ledger(url, "sweep")) as reader:
        assert reader.trials.record(0).metrics == {}
        older.add_columns()
        added, _ = ask(older)
        assert [record.number for record in reader.trials.records()] == [0, added], "opened before"
        assert [record.metrics for record in older.trials.records()] == [{}, {}]


def test_a_ledger_without_the_newest_columns_is_read(ledger: Ledger, url: str, tmp_path: Path) -> None:
    ledger.change_sweep(mlflow_run_id="run0")
    ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:
        raw.execute("alter table sweeps drop column mlflow")
    with contextlib.closing(Ledger(url, "sweep")) as older:
        assert (older.sweep().mlflow_run_id, older.sweep().mlflow) == ("run0", None)


def test_a_ledger_of_another_format_is_refused(ledger: Ledger, url: str, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "ledger.db") as raw:
        raw.execute("update sweeps set format = ?", [FORMAT + 1])
    with pytest.raises(StudyError, match=f"format {FORMAT + 1}") as refused:
        Ledger(url, "sweep")
    assert (refused.value.key, f"{FORMAT}" in refused.value.allowed) == ("sweep", True)


def test_a_disk_without_room_for_a_new_ledger_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "set_pragmas", lambda connection, _: connection.execute("pragma max_page_count=2"))
    with pytest.raises(StudyError) as refused:
        Ledger(url, "sweep", create=True)
    assert (refused.value.key, refused.value.exit_code) == ("study.storage", 75)


@pytest.mark.parametrize(
    ("problem", "exit_code"),
    [
        ("connection refused", 75),
        ("FATAL: the database system is starting up", 75),
        ('FATAL: password authentication failed for user "me"', 2),
        ('FATAL: database "rl" does not exist', 2),
    ],
)
def test_a_server_that_is_away_may_be_asked_again(problem: str, exit_code: int) -> None:
    error = OperationalError(None, None, Exception(problem))
    refused = make_storage_error("postgresql+psycopg://db.example/rl", error)
    assert (refused.key, refused.exit_code) == ("study.storage", exit_code)


def test_a_server_where_nobody_listens_may_be_asked_again() -> None:
    with pytest.raises(StudyError) as refused:
        check_storage("postgresql+psycopg://me@127.0.0.1:9/rl")
    assert refused.value.exit_code == 75


def test_a_database_that_would_round_numbers_is_refused() -> None:
    with pytest.raises(StudyError) as refused:
        Ledger("mysql+pymysql://db.example/rl", "sweep", create=True)
    assert refused.value.key == "study.storage"


SECRET = [
    "postgresql+psycopg://me:s3cret@127.0.0.1:1/rl",
    "postgresql://me:s3cret@db.example:badport/rl",
    "mysql://me:s3cret@127.0.0.1:1/rl",
    "nonsense://me:s3cret@db.example/rl",
    "postgresql+psycopg://db.example/rl?user=me&password=s3cret",
    "postgresql+psycopg://me:p@s3cret@db.example/rl",
    "://me:s3cret@db.example",
    "me:s3cret@db.example",
]


@pytest.mark.parametrize("address", SECRET)
def test_a_password_is_in_no_message(address: str) -> None:
    with pytest.raises(StudyError) as refused:
        Ledger(address, "sweep")
    for text in (refused.value.pretty(), str(refused.value), repr(refused.value)):
        assert "s3cret" not in text
        assert "me:" not in text
    assert "study.storage=" in refused.value.what
    assert refused.value.__cause__ is None, "nor in a traceback's first half"
    assert refused.value.__suppress_context__


def test_new_reports_are_read_without_going_through_old_ones(tmp_path):
    """MLflow's thread asks every few seconds: SQLite went through all reports of all trials each time."""
    ledger, statements = make_ledger(tmp_path), []
    event.listen(ledger._engine, "before_cursor_execute", lambda *about: statements.append((about[2], about[3])))
    ledger.read_reports_after(5, 10)
    ledger.close()
    with contextlib.closing(sqlite3.connect(tmp_path / "ledger.db")) as file:
        plan = " ".join(row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statements[-1][0]}", statements[-1][1]))
    assert "SEARCH reports" in plan
    assert "(rowid>?)" in plan


def test_requests_come_in_order_and_are_taken_once(ledger: Ledger, url: str) -> None:
    other = Ledger(url, "sweep")  # on another machine, perhaps
    stop, first = other.add_request(STOP, {}, "maria@host"), other.add_request(ENQUEUE, {"lr": math.inf}, "ben@host")
    assert [request.kind for request in ledger.read_requests()] == [STOP, ENQUEUE]
    (enqueued,) = ledger.read_requests(ENQUEUE)
    assert (enqueued.payload, enqueued.requested_by, enqueued.taken_s) == ({"lr": math.inf}, "ben@host", None)
    ledger.take_request(stop)
    assert [request.id for request in other.read_requests()] == [first]
    assert len(other.read_requests(waiting=False)) == 2
    assert not other.withdraw_request(stop), "it was taken"
    assert other.withdraw_request(first)
    assert [request.id for request in other.read_requests(waiting=False)] == [stop]
    other.close()


def test_a_request_never_gets_the_id_of_a_withdrawn_one(ledger: Ledger) -> None:
    withdrawn = ledger.add_request(STOP, {}, "maria@host")
    assert ledger.withdraw_request(withdrawn)
    assert ledger.add_request(STOP, {}, "maria@host") > withdrawn


def test_sweeps_of_one_database_have_requests_of_their_own(ledger: Ledger, url: str) -> None:
    other = Ledger(url, "other", create=True)
    other.trials.add({}, [1], other.add_request(ENQUEUE, {}, "maria@host"), drawn={})
    ledger.trials.add({}, [1], drawn={})
    assert ledger.read_requests(waiting=False) == []
    assert (ledger.trials.record(0).enqueued_by, other.trials.record(0).enqueued_by) == (None, "maria@host")
    other.close()


def test_what_failed_goes_on_with_all_that_it_had(ledger: Ledger) -> None:
    number, params = ask(ledger)
    add_reports(ledger, number, {100: 1.0, 200: 2.0})
    ledger.trials.end(number, "FAIL", "it broke", traceback="line 1", log="trials/0/failure.txt", cause="environment")
    before = ledger.read_pending_trials("a")[0].revision
    ledger.add_request(RETRY, {TRIALS: [0, 5], CERTIFY: []}, "maria@host")
    (again,) = ledger.reopen_failed(ledger.read_requests()[0])
    assert (again.number, again.state, again.params, list(again.reports)) == (0, "RUNNING", params, [100, 200])
    assert (again.traceback, again.log, again.cause, again.ended_s) == (None, None, None, None)
    assert ledger.read_pending_trials("a")[0].revision == before + 1, "trackers are to show it"
    add_reports(ledger, number, {300: 3.0})
    assert ledger.trials.end(number, "COMPLETE", "whole budget").scores
    assert ledger.trials.record(0).state == "COMPLETE"
