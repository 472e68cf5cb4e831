"""The ledger's tables in a file and in PostgreSQL: beside Optuna's, made by several drivers at once."""

from __future__ import annotations

import math
import sqlite3
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import optuna
import postgres
import pytest
from ledger import add_reports, ask, make_ledger
from sqlalchemy import create_engine, inspect, make_url, text
from sqlalchemy.exc import OperationalError

from rltune.errors import StudyError
from rltune.ledger import database
from rltune.ledger.ledger import Ledger, MissingSweepError

NUM_DRIVERS = 4
# A statement of the ledger while a thread imports SQLAlchemy's ORM slowly, as on a busy machine.
IMPORTS_SLOWLY = """
import importlib.abc, sys, threading, time
from sqlalchemy import select
from rltune.ledger import tables

class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.startswith("sqlalchemy."):
            time.sleep(0.05)

sys.meta_path.insert(0, Slow())
importing = threading.Thread(target=__import__, args=("sqlalchemy.orm",))
importing.start()
while importing.is_alive():
    select(tables.SWEEP_TRIALS).where(tables.SWEEP_TRIALS.c.number.in_(set()))
    time.sleep(0.01)
"""


def test_marks_of_reports_only_grow(tmp_path: Path) -> None:
    with closing(make_ledger(tmp_path)) as ledger:
        add_reports(ledger, ask(ledger)[0], {100: 1.0, 200: 2.0})
        last = ledger.read_reports_after(0, 10)[-1][0]
        with sqlite3.connect(tmp_path / "ledger.db") as raw:
            raw.execute("delete from reports")
        add_reports(ledger, 0, {300: 3.0})
        assert ledger.read_reports_after(last, 10), "an id that was used once would be taken for sent"


LATER = {
    "cause": "environment",
    "parent": {"trial": 3, "checkpoint": "trials/3/first/best-000000002048"},
    "schedule": {"lr": {"0": 1e-3, "5000": 1e-4}},
}  # Columns of this format that no version fills yet.


def test_what_later_versions_record_is_read_back(tmp_path: Path) -> None:
    with closing(make_ledger(tmp_path)) as ledger:
        number, _ = ask(ledger)
        (record,) = ledger.trials.records()
        assert all(getattr(record, name) is None for name in LATER)
        ledger.trials.end(number, "FAIL", "the pole broke", **LATER)
        (record,) = ledger.trials.records()
        assert {name: getattr(record, name) for name in LATER} == LATER


def test_a_ledger_without_the_newest_columns_is_read(tmp_path: Path) -> None:
    with closing(make_ledger(tmp_path)) as ledger:
        ledger.trials.end(ask(ledger)[0], "FAIL", "the pole broke", **LATER)
        url, name = ledger.url, ledger.name
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw:
        for column in LATER:
            raw.execute(f"alter table sweep_trials drop column {column}")
    with closing(Ledger(url, name)) as ledger:
        (record,) = ledger.trials.records()
        assert (record.stop_reason, record.cause, record.parent) == ("the pole broke", None, None)


def test_statements_work_while_a_thread_imports_the_orm() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS_SLOWLY], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


# -- PostgreSQL ----------------------------------------------------------------------------------------------------

needs_server = pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())


@pytest.fixture
def address(postgres_server: str) -> str:
    return postgres_server


@needs_server
@pytest.mark.slow
def test_ours_stand_beside_optunas_and_a_users_tables(address: str) -> None:
    url = postgres.database(address, "beside")
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("create table reports (mine integer)"))
        connection.execute(text("create table sweeps (mine integer)"))
    ledger = Ledger(url, "sweep", create=True)
    number, params = ask(ledger)
    add_reports(ledger, number, {100: 1.0})
    ledger.trials.end(number, "COMPLETE", "whole budget")
    optuna.create_study(study_name="sweep", storage=url).add_trial(optuna.trial.create_trial(value=1.0))
    tables = {schema: set(inspect(engine).get_table_names(schema)) for schema in ("public", "rltune")}
    assert tables["rltune"] == {
            "sweeps", "leases", "sweep_trials", "reports", "requests", "deliveries", "trial_deliveries",
        }  # fmt: skip
    assert {"reports", "sweeps", "trials", "studies"} <= tables["public"]
    assert [column["name"] for column in inspect(engine).get_columns("reports", "public")] == ["mine"]
    assert optuna.load_study(study_name="sweep", storage=url).best_value == 1.0
    again = Ledger(url, "sweep")
    (trial,) = again.trials.records()
    assert (trial.state, dict(trial.params), dict(trial.reports)) == ("COMPLETE", params, {100: 1.0})
    for one in (ledger, again):
        one.close()
    engine.dispose()


@needs_server
@pytest.mark.slow
def test_tables_of_an_earlier_version_get_the_newest_columns(address: str) -> None:
    url = postgres.database(address, "earlier")
    Ledger(url, "first", create=True).close()
    engine = create_engine(url)
    with engine.begin() as connection:
        for column in LATER:
            connection.execute(text(f"alter table rltune.sweep_trials drop column {column}"))
    with closing(Ledger(url, "second", create=True)) as ledger:
        ledger.trials.end(ask(ledger)[0], "FAIL", "the pole broke", **LATER)
        assert ledger.trials.records()[0].parent == LATER["parent"]
    engine.dispose()


@needs_server
@pytest.mark.slow
def test_looking_into_a_database_makes_nothing(address: str) -> None:
    url = postgres.database(address, "looked-into")
    with pytest.raises(MissingSweepError, match="sweep"):
        Ledger(url, "sweep")
    engine = create_engine(url)
    assert "rltune" not in inspect(engine).get_schema_names()
    engine.dispose()


@needs_server
@pytest.mark.slow
def test_sweeps_that_start_together_keep_every_report(address: str) -> None:
    url = postgres.database(address, "together")

    line = threading.Barrier(NUM_DRIVERS, timeout=60)

    def drive(sweep: int) -> None:
        line.wait()
        with closing(Ledger(url, f"sweep-{sweep}", create=True)) as ledger:
            for _ in range(2):
                number, _ = ask(ledger)
                add_reports(ledger, number, {step: float(step + sweep) for step in range(100, 600, 100)})
                ledger.trials.end(number, "COMPLETE", "whole budget")

    with ThreadPoolExecutor(NUM_DRIVERS) as pool:
        list(pool.map(drive, range(NUM_DRIVERS)))
    for sweep in range(NUM_DRIVERS):
        with closing(Ledger(url, f"sweep-{sweep}")) as ledger:
            curve = {step: float(step + sweep) for step in range(100, 600, 100)}
            assert [dict(record.reports) for record in ledger.trials.records()] == [curve] * 2
            marks = [mark for mark, _, _ in ledger.read_reports_after(0, 100)]
            assert len(marks) == 10
            assert marks == sorted(marks)


@needs_server
@pytest.mark.slow
def test_postgresql_takes_what_a_file_takes(address: str) -> None:
    url = postgres.database(address, "rare")
    ledger = Ledger(url, "sweep", create=True)
    ledger.trials.add({"grad_clip": math.inf, "name": "a\0b"}, [2**62], drawn=None)
    add_reports(ledger, 0, {2**40: math.inf, 2**41: math.nan})
    ledger.trials.end(0, "FAIL", "a byte \0", traceback="caf\udce9 " * 10_000, train_s=1e12)
    ledger.change_sweep(winner={"objective": math.nan})
    with closing(Ledger(url, "sweep")) as again:
        (trial,) = again.trials.records()
        assert (trial.params, trial.seeds, trial.drawn) == ({"grad_clip": math.inf, "name": "a\0b"}, (2**62,), None)
        assert repr(dict(trial.reports)) == repr({2**40: math.inf, 2**41: math.nan})
        assert (trial.stop_reason, trial.train_s, trial.env_steps) == (r"a byte \0", 1e12, 2**41)
    ledger.close()


@needs_server
@pytest.mark.slow
def test_a_refused_login_tells_no_password(address: str) -> None:
    wrong = f"postgresql+psycopg://{address}postgres".replace(postgres.SPELT, "s3cret-word")
    with pytest.raises(StudyError, match=r"study\.storage=") as refused:
        Ledger(wrong, "sweep")
    assert "s3cret" not in refused.value.pretty()


@needs_server
@pytest.mark.slow
def test_a_role_that_may_make_no_schema_uses_one(address: str) -> None:
    url = postgres.database(address, "prepared")
    Ledger(url, "first", create=True).close()
    with create_engine(url).begin() as connection:
        connection.execute(text("create role guest login password 'guest-word'"))
        connection.execute(text("grant usage on schema rltune to guest"))
        for what in ("tables", "sequences"):
            connection.execute(text(f"grant all on all {what} in schema rltune to guest"))
    guest = make_url(url).set(username="guest", password="guest-word").render_as_string(hide_password=False)
    with closing(Ledger(guest, "second", create=True)) as ledger:
        assert ledger.sweep().name == "second"


@needs_server
@pytest.mark.slow
def test_a_server_that_starts_again_is_waited_for(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second without one would lose the reports of that second, and end the sweep at its next proposal."""
    import psycopg

    url = postgres.database(address, "restart")
    ledger = Ledger(url, "sweep", create=True)
    engine = ledger._engine
    engine.dispose()
    connect, refusals = database._connect, [psycopg.OperationalError("refused")] * 3

    def refuse(*args: Any, **options: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return connect(*args, **options)

    monkeypatch.setattr(database, "_connect", refuse)
    assert ledger.sweep().name == "sweep"
    assert refusals == []
    monkeypatch.setattr(database, "RESTART_S", 0.0)
    engine.dispose()
    refusals.append(psycopg.OperationalError("refused"))
    with pytest.raises(OperationalError):  # A server that stays away is not waited for without end.
        ledger.sweep()
    ledger.close()
