"""One driver at a time writes a sweep, whatever happens to it, to its machine and to the database.

What a stopped driver may still write to its ledger is asked in `tests/ledger/test_lease.py`, without a sweep.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import postgres
import psutil
import pytest
from joined import finish, start_sweep

pytestmark = pytest.mark.slow
needs_postgres = pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
APART = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")  # a container: it cannot see other processes
needs_namespaces = pytest.mark.skipif(
    subprocess.run([*APART, "true"], capture_output=True).returncode != 0, reason="namespaces need root"
)
LEASE_S = 6.0
SHORT_LEASE_S = 3.0
WORDS = ("cluster.address=null", "scheduler=none", "checkpoint.every_s=0")
TABLES = ("sweeps", "sweep_trials", "reports")


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
        """End all connections but this one."""
        self.select(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )

    def restart(self) -> None:
        """Start the server again, as after a crash."""
        data = self.select("SHOW data_directory")[0][0]
        owner = pwd.getpwuid(os.stat(data).st_uid)
        command = [postgres.binaries() / "pg_ctl", "-D", data, "-m", "immediate", "-w", "-l", "/dev/null", "restart"]
        as_owner = {"user": owner.pw_uid, "group": owner.pw_gid, "extra_groups": []} if os.getuid() == 0 else {}
        subprocess.run(command, check=True, cwd="/tmp", stdout=subprocess.DEVNULL, **as_owner)

    def count_reports(self) -> int:
        """Return how many reports the ledger has; 0 before there is one."""
        if not self.select("SELECT 1 FROM information_schema.tables WHERE table_name = 'reports'"):
            return 0
        return int(self.select("SELECT count(*) FROM rltune.reports")[0][0])

    def read_rows(self) -> list[list[Any]]:
        """Return all rows of sweep, trials and reports."""
        return [self.select(f"SELECT * FROM rltune.{table} ORDER BY id") for table in TABLES]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with postgres.server() as address:
        yield address


def start_driver(
    verb: str, folder: Path, database: Database | None, *words: str, before: Any = (), lease_s: float = LEASE_S
) -> Any:
    """Start a driver of the sweep in a folder; another folder is another machine: no file is shared."""
    folder.mkdir(exist_ok=True)
    if database:
        address = f"study.storage={database.url!r}" if verb == "run" else f"study.storage={database.url}"
        words = (address, *words)
    home = {"XDG_STATE_HOME": str(folder.parent / "state"), "RLTUNE_TESTS_LEASE_S": str(lease_s)}
    return start_sweep(verb, folder, *words, before=before, **home)


def wait_for(is_so: Callable[[], bool], *drivers: Any) -> None:
    """Wait while all drivers live."""
    deadline = time.monotonic() + 120
    while not is_so():
        for driver in drivers:
            assert driver.poll() is None, driver.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def signal_all(number: signal.Signals, *drivers: Any) -> None:
    """Send a signal to drivers and to what has become of them: `unshare` waits for a child."""
    for driver in drivers:
        process = psutil.Process(driver.pid)
        wrapped = process.children() if "unshare" in process.name() else []
        for each in (process, *wrapped):
            each.send_signal(number)


def begin(folder: Path, database: Database, num_trials: int) -> Any:
    """Begin a sweep, and copy its folder to another machine once it has some reports."""
    driver = start_driver("run", folder / "one", database, *WORDS, "+space.seconds=0.5", f"budget.trials={num_trials}")
    wait_for(lambda: database.count_reports() >= 4, driver)
    copy_folder(folder / "one" / "outputs", folder / "other" / "outputs")
    return driver


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder in which a driver is at work, and begin anew where something went before it was copied."""
    for _ in range(100):
        with contextlib.suppress(shutil.Error, FileNotFoundError):
            shutil.copytree(source, target)
            return
        shutil.rmtree(target, ignore_errors=True)
    raise AssertionError(f"{source} does not stand still")


def read_file(folder: Path) -> list[list[Any]]:
    """Return all rows of sweep, trials and reports of the sweep in a folder; empty before it has a ledger."""
    file = folder / "outputs" / "toy" / "ledger.db"
    if not file.exists():
        return []
    try:
        with closing(sqlite3.connect(file)) as ledger:
            return [ledger.execute(f"SELECT * FROM {table} ORDER BY id").fetchall() for table in TABLES]
    except sqlite3.OperationalError:
        return []


def list_files(folder: Path) -> dict[Path, int]:
    """List what a sweep's trials have written, and when."""
    return {path: path.stat().st_mtime_ns for path in sorted(folder.rglob("trials/*/**/*"))}


def end(*drivers: Any) -> None:
    """Leave no driver behind."""
    for driver in drivers:
        driver.send_signal(signal.SIGCONT)
        driver.terminate()
        try:
            finish(driver, 60)
        except subprocess.TimeoutExpired:
            driver.communicate()


@pytest.mark.nightly
@needs_postgres
def test_a_restart_of_postgresql_lets_no_second_driver_in(address: str, tmp_path: Path) -> None:
    database = Database(address, "restart")
    first = begin(tmp_path, database, num_trials=500)
    database.cut_connections()
    reports = database.count_reports()
    wait_for(lambda: database.count_reports() > reports, first)  # it goes on after the restart
    second = start_driver("resume", tmp_path / "other", database)
    try:
        code, out = finish(second, 120)
        assert code == 75, out
        assert first.poll() is None
        (folder,) = database.select("SELECT folder FROM rltune.sweeps")[0]
        assert folder.startswith(str(tmp_path / "one"))
    finally:
        end(first, second)


@pytest.mark.nightly
@needs_postgres
def test_three_restarts_of_postgresql_lose_no_report(address: str, tmp_path: Path) -> None:
    database = Database(address, "thrice")
    first = begin(tmp_path, database, num_trials=6)
    try:
        for _ in range(3):
            database.restart()
            reports = database.count_reports()
            wait_for(lambda: database.count_reports() > reports + 3, first)  # noqa: B023
        code, out = finish(first, 300)
        assert code == 0, out
        counts = database.select("SELECT count(*) FROM rltune.reports GROUP BY trial_id")
        assert len(counts) == 6
        assert len(set(counts)) == 1
    finally:
        end(first)


@pytest.mark.nightly
@needs_postgres
def test_a_driver_that_was_replaced_writes_nothing(address: str, tmp_path: Path) -> None:
    database = Database(address, "fence")
    first = begin(tmp_path, database, num_trials=2)
    try:
        first.send_signal(signal.SIGSTOP)  # longer than any lease: a suspended machine
        code, out = finish(start_driver("resume", tmp_path / "other", database), 120)
        assert code == 0, out
        rows, files = database.read_rows(), list_files(tmp_path / "one")
        first.send_signal(signal.SIGCONT)
        code, out = finish(first, 120)
        assert code == 75, out
        assert database.read_rows() == rows
        assert list_files(tmp_path / "one") == files
    finally:
        end(first)


@pytest.mark.nightly
def test_in_one_folder_a_replaced_driver_writes_nothing(tmp_path: Path) -> None:
    words = ("+space.seconds=0.2", "budget.trials=1", "resources.max_concurrent=1")
    first = start_driver("run", tmp_path / "one", None, *WORDS, *words, lease_s=SHORT_LEASE_S)
    try:
        wait_for(lambda: len((read_file(tmp_path / "one") or [[], [], []])[2]) >= 2, first)
        first.send_signal(signal.SIGSTOP)
        code, out = finish(start_driver("resume", tmp_path / "one", None, lease_s=SHORT_LEASE_S), 180)
        assert code == 0, out
        rows, files = read_file(tmp_path / "one"), list_files(tmp_path / "one")
        summary = (tmp_path / "one/outputs/toy/summary.json").read_bytes()
        first.send_signal(signal.SIGCONT)
        code, out = finish(first, 120)
        assert code == 75, out
        assert read_file(tmp_path / "one") == rows
        assert list_files(tmp_path / "one") == files
        assert (tmp_path / "one/outputs/toy/summary.json").read_bytes() == summary
    finally:
        end(first)


@pytest.mark.nightly
def test_a_driver_whose_machine_slept_goes_on(tmp_path: Path) -> None:
    words = ("+space.seconds=0.2", "budget.trials=2")
    first = start_driver("run", tmp_path / "one", None, *WORDS, *words)
    try:
        wait_for(lambda: len((read_file(tmp_path / "one") or [[], [], []])[2]) >= 4, first)
        first.send_signal(signal.SIGSTOP)
        time.sleep(2 * LEASE_S)
        first.send_signal(signal.SIGCONT)
        code, out = finish(first, 180)
        assert code == 0, out
    finally:
        end(first)


@pytest.mark.nightly
@needs_namespaces
def test_an_observer_that_slept_as_well_takes_nothing_over(tmp_path: Path) -> None:
    first = start_driver("run", tmp_path / "one", None, *WORDS, "+space.seconds=0.5", "budget.trials=500")
    second = None
    try:
        wait_for(lambda: len((read_file(tmp_path / "one") or [[], [], []])[2]) >= 4, first)
        second = start_driver("resume", tmp_path / "one", None, before=APART)
        time.sleep(LEASE_S / 2)
        signal_all(signal.SIGSTOP, first, second)
        time.sleep(2 * LEASE_S)
        signal_all(signal.SIGCONT, first, second)
        code, out = finish(second, 120)
        assert code == 75, out
        assert first.poll() is None
    finally:
        end(first, *([second] if second else []))


@pytest.mark.nightly
def test_of_two_drivers_that_start_at_once_one_is_refused(tmp_path: Path) -> None:
    (tmp_path / "one" / "outputs" / "toy").mkdir(parents=True)  # half made: the ledger decides
    words = ("+space.seconds=0.1", "budget.trials=4")
    drivers = [start_driver("run", tmp_path / "one", None, *WORDS, *words) for _ in range(2)]
    ends = sorted((finish(driver, 240) for driver in drivers), key=lambda end: end[0])
    assert ends[0][0] == 0, ends
    assert ends[1][0] in (2, 75), ends  # 2 where the other one had begun already
    assert len(read_file(tmp_path / "one")[1]) == 4


@pytest.mark.nightly
@needs_postgres
@needs_namespaces
def test_of_two_hosts_that_start_at_once_one_is_refused(address: str, tmp_path: Path) -> None:
    database = Database(address, "twice")
    words = ("+space.seconds=0.1", "budget.trials=4")
    places = (tmp_path / "one", tmp_path / "other")
    drivers = [start_driver("run", place, database, *WORDS, *words, before=APART) for place in places]
    ends = sorted((finish(driver, 240) for driver in drivers), key=lambda end: end[0])
    assert ends[0][0] == 0, ends
    assert ends[1][0] in (2, 75), ends
    assert len(database.read_rows()[1]) == 4
