"""What a sweep's state does not hold to yet: who may write it, and what is left of it on the disk."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres
import pytest
from joined import finish, start_sweep

needs_postgres = pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())


class Database:
    """A PostgreSQL database that holds one toy sweep, read by SQL."""

    def __init__(self, address: str, name: str) -> None:
        self.url = postgres.database(address, name)
        self._address = self.url.replace("+psycopg", "", 1)

    def select(self, statement: str) -> list[Any]:
        """Return the rows of a statement."""
        import psycopg

        with psycopg.connect(self._address, autocommit=True) as connection:
            return connection.execute(statement).fetchall()

    def cut_connections(self) -> None:
        """End all connections but this one, as a restart of the server does."""
        self.select(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def count_reports(self) -> int:
        """Return how many reports the ledger has; 0 before there is one."""
        if not self.select("SELECT 1 FROM information_schema.tables WHERE table_name = 'reports'"):
            return 0
        return int(self.select("SELECT count(*) FROM rltune.reports")[0][0])

    def read_rows(self) -> list[list[Any]]:
        """Return all rows of sweep, trials and reports."""
        tables = ("sweeps", "sweep_trials", "reports")
        return [self.select(f"SELECT * FROM rltune.{table} ORDER BY id") for table in tables]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with postgres.server() as address:
        yield address


def start_driver(verb: str, folder: Path, database: Database, *words: str) -> Any:
    """Start a driver of the sweep in its own folder, as on a machine of its own: no file is shared."""
    folder.mkdir(exist_ok=True)
    address = f"study.storage={database.url!r}" if verb == "run" else f"study.storage={database.url}"
    return start_sweep(verb, folder, address, *words, XDG_STATE_HOME=str(folder.parent / "state"))


def wait_for(is_so: Callable[[], bool], driver: Any) -> None:
    """Wait while a driver lives."""
    deadline = time.monotonic() + 120
    while not is_so():
        assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def begin(folder: Path, database: Database, num_trials: int) -> Any:
    """Begin a sweep, and copy its folder to another machine once it has some reports."""
    words = ["cluster.address=null", "scheduler=none", "+space.seconds=0.5", "checkpoint.every_s=0"]
    words += [f"budget.trials={num_trials}"]
    driver = start_driver("run", folder / "one", database, *words)
    wait_for(lambda: database.count_reports() >= 4, driver)
    shutil.copytree(folder / "one" / "outputs", folder / "other" / "outputs")
    return driver


@needs_postgres
@pytest.mark.xfail(strict=True, reason="move 2: the lease is a row, which outlives the server's connections")
def test_a_restart_of_postgresql_lets_no_second_driver_in(address: str, tmp_path: Path) -> None:
    database = Database(address, "restart")
    first = begin(tmp_path, database, num_trials=500)
    database.cut_connections()
    reports = database.count_reports()
    wait_for(lambda: database.count_reports() > reports, first)  # it goes on after the restart
    second = start_driver("resume", tmp_path / "other", database)
    try:
        home = str(tmp_path / "one")
        while second.poll() is None and first.poll() is None:
            time.sleep(0.2)
            (folder,) = database.select("SELECT folder FROM rltune.sweeps")[0]
            assert folder.startswith(home), "the second driver writes, while the first one does"
        code, out = finish(second, 60)
        assert code in (2, 75), out
    finally:
        for driver in (first, second):
            driver.terminate()
            finish(driver, 60)


@needs_postgres
@pytest.mark.xfail(strict=True, reason="move 2: each write of a driver checks that the lease is its own")
def test_a_driver_that_was_replaced_writes_no_row(address: str, tmp_path: Path) -> None:
    database = Database(address, "fence")
    first = begin(tmp_path, database, num_trials=2)
    try:
        first.send_signal(signal.SIGSTOP)  # longer than any lease: a suspended machine
        database.cut_connections()
        code, out = finish(start_driver("resume", tmp_path / "other", database), 120)
        assert code == 0, out
        rows = database.read_rows()
        first.send_signal(signal.SIGCONT)
        first.wait(120)
        assert database.read_rows() == rows
    finally:
        first.kill()
        first.communicate()


def read_trials(folder: Path) -> list[tuple[int, str, str, str | None]]:
    """Return number, state, best checkpoint and what MLflow has of it, of each trial of the search."""
    with sqlite3.connect(folder / "ledger.db") as ledger:
        rows = ledger.execute("SELECT number, state, checkpoint, sent_checkpoint FROM sweep_trials").fetchall()
    return [(number, state, json.loads(best)["path"], sent) for number, state, best, sent in rows]


@pytest.mark.usefixtures("ray_cluster")
@pytest.mark.xfail(strict=True, reason="move 3: what an ended trial leaves is dropped once MLflow has its policy")
def test_ended_trials_keep_only_their_best_policy(toy_run: Callable[..., Any]) -> None:
    outcome = toy_run("scheduler=none", "checkpoint.every_s=0", "budget.trials=3")
    for number, state, best, sent in read_trials(outcome.folder):
        assert (state, bool(sent)) == ("COMPLETE", True)
        assert (outcome.folder / best / "toy.json").exists()
        if number != outcome.winner["trial"]:
            assert len(list((outcome.folder / "trials" / str(number)).rglob("toy.json"))) == 1


@pytest.mark.usefixtures("ray_cluster")
def test_nothing_is_dropped_that_mlflow_has_not_received(toy_run: Callable[..., Any]) -> None:
    outcome = toy_run("scheduler=none", "checkpoint.every_s=0", "budget.trials=3", "tracking=off")
    for _, state, best, sent in read_trials(outcome.folder):
        assert (state, sent) == ("COMPLETE", None)
        assert (outcome.folder / best / "toy.json").exists()
