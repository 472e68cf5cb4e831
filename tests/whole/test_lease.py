"""One driver at a time writes a sweep, whatever happens to it, to its machine and to the database."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import postgres
import pytest
from joined import finish, start_sweep

pytestmark = pytest.mark.slow
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


def list_files(folder: Path) -> list[Path]:
    """List what a sweep's trials have written."""
    return sorted(folder.rglob("trials/*/**/*"))


def begin(folder: Path, database: Database, num_trials: int) -> Any:
    """Begin a sweep, and copy its folder to another machine once it has some reports."""
    words = ["cluster.address=null", "scheduler=none", "+space.seconds=0.5", "checkpoint.every_s=0"]
    words += [f"budget.trials={num_trials}"]
    driver = start_driver("run", folder / "one", database, *words)
    wait_for(lambda: database.count_reports() >= 4, driver)
    shutil.copytree(folder / "one" / "outputs", folder / "other" / "outputs")
    return driver


@needs_postgres
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
def test_a_driver_that_was_replaced_writes_no_row(address: str, tmp_path: Path) -> None:
    database = Database(address, "fence")
    first = begin(tmp_path, database, num_trials=2)
    try:
        first.send_signal(signal.SIGSTOP)  # longer than any lease: a suspended machine
        database.cut_connections()
        code, out = finish(start_driver("resume", tmp_path / "other", database), 120)
        assert code == 0, out
        rows = database.read_rows()
        files = list_files(tmp_path / "one")
        first.send_signal(signal.SIGCONT)
        code, out = finish(first, 120)
        assert code == 75, out
        assert database.read_rows() == rows
        assert list_files(tmp_path / "one") == files
    finally:
        first.kill()
        first.communicate()
