"""One driver at a time holds a sweep's lease, and only it writes."""

from __future__ import annotations

import itertools
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import postgres
import pytest
from sqlalchemy import event, update
from waiting import wait_until

from rltune.errors import StudyError, UnavailableError
from rltune.ledger import lease as lease_module
from rltune.ledger.lease import DriverRecord, Lease, LeaseLostError, LeaseState, LeaseWatch, take_lease
from rltune.ledger.ledger import Ledger
from rltune.ledger.tables import LEASES
from rltune.records import Report

# A driver of its own process: it takes the lease, says so, and adds a trial whenever it is told to.
DRIVER = """
import sys
from rltune.ledger import lease
from rltune.ledger.ledger import Ledger
lease.RENEW_S = 0.05
ledger = Ledger(sys.argv[1], "mine")
taken = lease.take_lease(ledger)
print("taken", flush=True)
for line in sys.stdin:
    try:
        ledger.trials.add({}, [1])
    except Exception as error:
        print(type(error).__name__, getattr(error, "exit_code", None), flush=True)
    else:
        print("added", flush=True)
"""


ON_SERVER = [pytest.mark.slow, pytest.mark.xdist_group("servers")]


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=ON_SERVER)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'ledger.db'}"
    return postgres.database(request.getfixturevalue("postgres_server"), f"lease-{time.monotonic_ns()}")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a lease last half a second."""
    for name, seconds in {"RENEW_S": 0.05, "LEASE_S": 0.5}.items():
        monkeypatch.setattr(lease_module, name, seconds)


@pytest.fixture
def ledger(url: str) -> Ledger:
    return Ledger(url, "mine", create=True)


@pytest.fixture
def start_driver(ledger: Ledger) -> Iterator[Callable[[], subprocess.Popen[str]]]:
    """Start a driver in a process of its own, which holds the lease."""
    started: list[subprocess.Popen[str]] = []

    def start() -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, ledger.url], text=True, **pipes)
        started.append(driver)
        assert driver.stdout is not None
        assert driver.stdout.readline() == "taken\n"
        return driver

    yield start
    for driver in started:
        driver.kill()
        driver.communicate()


def add_trial(driver: subprocess.Popen[str]) -> str:
    """Have a driver's process add a trial; return what came of it."""
    assert driver.stdin is not None
    assert driver.stdout is not None
    driver.stdin.write("add\n")
    driver.stdin.flush()
    return driver.stdout.readline().strip()


def stop(driver: subprocess.Popen[str]) -> None:
    """Stop a driver's process, as a suspended machine does."""
    driver.send_signal(signal.SIGSTOP)
    os.waitpid(driver.pid, os.WUNTRACED)


def write_lease(ledger: Ledger, **values: Any) -> None:
    """Change the lease's row as another driver does."""
    with ledger.fence.engine.begin() as connection:
        connection.execute(update(LEASES).where(LEASES.c.sweep_id == ledger.sweep_id).values(**values))


def make_far_driver(**facts: Any) -> DriverRecord:
    """Describe a driver on another machine."""
    record = DriverRecord(boot="another", pid_namespace="", pid=1, started="1", id="f" * 32, host="far")
    return replace(record, **facts)


def give_to(ledger: Ledger, driver: DriverRecord) -> None:
    """Let another driver have the lease, as after this one stood still."""
    write_lease(ledger, driver_id=driver.id, driver=asdict(driver), released=False, counter=LEASES.c.counter + 1)


# -- taking and giving back --------------------------------------------------------------------------------------------


def test_a_lease_is_taken_renewed_and_given_back(ledger: Ledger) -> None:
    assert LeaseWatch(ledger.read_lease).find_driver() is None
    with take_lease(ledger) as lease:
        state = ledger.read_lease()
        assert state.driver is not None
        assert (state.driver.id, state.driver.pid) == (lease.id, os.getpid())
        assert LeaseWatch(ledger.read_lease).find_driver() == state.driver
        wait_until(lambda: ledger.read_lease().counter > state.counter)
    assert ledger.read_lease().driver is None
    assert ledger.read_lease().driver_id == lease.id
    assert LeaseWatch(ledger.read_lease).find_driver() is None
    with take_lease(ledger) as again:
        assert again.id != lease.id
        assert again.previous is None


def test_whoever_took_the_lease_and_did_not_end_is_unfinished(ledger: Ledger) -> None:
    ledger.change_sweep(status="complete")
    with take_lease(ledger) as lease:
        assert (ledger.sweep().status, lease.replaced_status) == ("running", "complete")
    assert ledger.sweep().status == "running"


def test_a_second_driver_is_refused_at_once(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "LEASE_S", 600.0)
    with take_lease(ledger):
        began = time.monotonic()
        with pytest.raises(UnavailableError) as refused:
            take_lease(Ledger(ledger.url, "mine"))
        assert (refused.value.key, refused.value.exit_code) == ("sweep", 75)
        assert time.monotonic() - began < 30


@pytest.mark.slow
def test_a_killed_driver_is_replaced_at_once(
    ledger: Ledger, start_driver: Callable[[], subprocess.Popen[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lease_module, "LEASE_S", 600.0)
    driver = start_driver()
    with pytest.raises(UnavailableError):
        take_lease(ledger)
    driver.kill()
    driver.wait()
    assert LeaseWatch(ledger.read_lease).find_driver() is None
    with take_lease(ledger) as lease:
        assert lease.previous is not None
        assert lease.previous.pid == driver.pid


@pytest.mark.slow
def test_a_stopped_driver_is_replaced_and_writes_no_more(
    ledger: Ledger, start_driver: Callable[[], subprocess.Popen[str]]
) -> None:
    driver = start_driver()
    assert add_trial(driver) == "added"
    stop(driver)
    with take_lease(ledger) as lease:
        assert lease.previous is not None
        driver.send_signal(signal.SIGCONT)
        assert add_trial(driver) == "LeaseLostError 75"
        assert len(ledger.trials.records()) == 1
        assert ledger.trials.add({}, [1]).number == 1


def test_a_writer_that_stands_still_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite lets nobody break the lock of a process that was stopped in the middle of a transaction."""
    monkeypatch.setattr("rltune.ledger.database.TIMEOUT_S", 0.1)
    ledger = Ledger(f"sqlite:///{tmp_path / 'ledger.db'}", "mine", create=True)
    with sqlite3.connect(tmp_path / "ledger.db") as writer:
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(UnavailableError) as refused:
            take_lease(ledger)
    assert (refused.value.key, refused.value.exit_code) == ("sweep", 75)


@pytest.mark.slow
def test_a_driver_that_overslept_alone_goes_on(
    ledger: Ledger, start_driver: Callable[[], subprocess.Popen[str]]
) -> None:
    driver = start_driver()
    stop(driver)
    time.sleep(1.0)
    driver.send_signal(signal.SIGCONT)
    assert add_trial(driver) == "added"


def test_of_drivers_that_start_at_once_one_has_the_lease(ledger: Ledger) -> None:
    barrier, taken, refused = threading.Barrier(4), list[Lease](), list[UnavailableError]()

    def drive() -> None:
        mine = Ledger(ledger.url, "mine")
        barrier.wait()
        try:
            taken.append(take_lease(mine))
        except UnavailableError as error:
            refused.append(error)

    threads = [threading.Thread(target=drive) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(taken), len(refused)) == (1, 3)
    taken[0].release()


def test_sweeps_made_at_once_meet_at_the_database(url: str) -> None:
    barrier, made = threading.Barrier(4), list[int]()

    def make() -> None:
        barrier.wait()
        made.append(Ledger(url, "mine", create=True).sweep_id)

    threads = [threading.Thread(target=make) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [made[0]] * 4


def test_a_begun_sweep_is_not_made_again(ledger: Ledger) -> None:
    ledger.change_sweep(config="format: 12")
    with pytest.raises(StudyError) as refused:
        Ledger(ledger.url, "mine", create=True)
    assert (refused.value.key, refused.value.exit_code) == ("name", 2)


# -- the fence ---------------------------------------------------------------------------------------------------------

WRITES: dict[str, Callable[[Ledger], Any]] = {
    "a sweep's fact": lambda ledger: ledger.change_sweep(wall_s=1.0),
    "a taken request": lambda ledger: ledger.take_request(1),
    "a retry": lambda ledger: ledger.reopen_failed(ledger.read_requests("retry")[0]),
    "delivered reports": lambda ledger: ledger.mark_reports("a", 7),
    "forgotten marks": lambda ledger: ledger.forget_mlflow("a"),
    "a trial": lambda ledger: ledger.trials.add({}, [1]),
    "a report": lambda ledger: ledger.trials.add_report(Report(0, 100, 1.0, {})),
    "a cost": lambda ledger: ledger.trials.change(0, train_s=1.0),
    "a start": lambda ledger: ledger.trials.start(0),
    "an end": lambda ledger: ledger.trials.end(0, "COMPLETE", "whole budget"),
    "a delivered trial": lambda ledger: ledger.mark_trial("a", "trials", 0, revision=1),
    "a run of MLflow": lambda ledger: ledger.trials.set_mlflow_run(0, "run0"),
}


def read_rows(ledger: Ledger) -> list[Any]:
    other = Ledger(ledger.url, "mine")
    try:
        return [
            other.sweep(),
            other.trials.records(),
            other.read_requests(waiting=False),
            other.read_delivered_report("a"),
        ]
    finally:
        other.close()


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
def test_a_driver_without_its_lease_writes_no_row(ledger: Ledger, write: Callable[[Ledger], Any]) -> None:
    lost = threading.Event()
    with take_lease(ledger) as lease:
        lease.on_lost = lost.set
        ledger.trials.add({}, [1])
        ledger.add_request("retry", {"search": [0]}, "me")
        give_to(ledger, make_far_driver())
        before = read_rows(ledger)
        with pytest.raises(LeaseLostError) as refused:
            write(ledger)
        assert (refused.value.key, refused.value.exit_code) == ("sweep", 75)
        assert lost.is_set()
        assert lease.is_lost
        with pytest.raises(LeaseLostError):
            lease.check()
        ledger.add_request("stop", {}, "me")  # a request is nobody's write
    state = ledger.read_lease()
    assert state.driver == make_far_driver(), "what is lost is not given back"
    assert read_rows(ledger)[:2] == before[:2]


def test_a_driver_that_writes_nothing_learns_of_its_loss(ledger: Ledger) -> None:
    lost = threading.Event()
    with take_lease(ledger) as lease:
        lease.on_lost = lost.set
        give_to(ledger, make_far_driver())
        assert lost.wait(60)


def test_a_database_that_is_away_loses_no_lease(ledger: Ledger) -> None:
    is_away, refusals = threading.Event(), itertools.count()

    def refuse(*_: Any) -> None:
        if is_away.is_set():
            next(refusals)
            raise OSError("No space left on device")

    with take_lease(ledger) as lease:
        event.listen(lease._engine, "before_cursor_execute", refuse)
        is_away.set()
        wait_until(lambda: next(refusals) > 5)
        is_away.clear()
        counter = ledger.read_lease().counter
        wait_until(lambda: ledger.read_lease().counter > counter)
        assert not lease.is_lost
        ledger.trials.add({}, [1])


def test_the_sessions_of_a_driver_are_kept_for_its_successor(ledger: Ledger) -> None:
    with take_lease(ledger) as lease:
        session = make_far_driver()
        mark = lease_module.ProcessMark(session.boot, session.pid_namespace, 7, "12")
        lease.note_sessions((mark,))
        state = ledger.read_lease()
        assert state.driver is not None
        assert state.driver.sessions == (mark,)


def test_a_killed_successor_leaves_what_it_had_to_end(ledger: Ledger) -> None:
    session = lease_module.ProcessMark("another", "", 7, "12")
    give_to(ledger, make_far_driver(sessions=(session,)))
    with take_lease(ledger) as lease:
        assert lease.previous is not None
        assert lease.previous.sessions == (session,)
        state = ledger.read_lease()
        assert state.driver is not None
        assert state.driver.sessions == (session,), "its own successor ends them if it is killed before it could"


def test_a_lease_is_given_back_once_the_database_is_back(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process may live on for days, as a notebook does, and would keep other processes out."""
    monkeypatch.setattr(lease_module, "END_S", 0.1)
    is_away = threading.Event()

    def refuse(*_: Any) -> None:
        if is_away.is_set():
            raise OSError("the database is away")

    lease = take_lease(ledger)
    event.listen(lease._engine, "before_cursor_execute", refuse)
    is_away.set()
    lease.release()
    is_away.clear()
    wait_until(lambda: ledger.read_lease().driver is None)
    assert not lease.is_lost


# -- observing ---------------------------------------------------------------------------------------------------------


class Clock:
    """A clock that is set by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(lease_module.time, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(lease_module, "LEASE_S", 20.0)
    return Clock(monkeypatch)


def test_a_counter_that_moves_is_held_and_one_that_stands_expires(clock: Clock) -> None:
    state = LeaseState(make_far_driver(), 1)
    watch = LeaseWatch(lambda: state)
    assert watch.look() is None
    clock.now += 1
    assert watch.look() is None
    state = LeaseState(make_far_driver(), 2)
    assert watch.look() is True
    for _ in range(19):
        clock.now += 1
        assert watch.look() is True
    clock.now += 1
    assert watch.look() is False
    state = LeaseState(make_far_driver(), 3)
    assert watch.look() is True


@pytest.mark.parametrize("jump_s", [600.0, 86400.0])
def test_a_jump_of_the_observers_clock_ends_no_lease(clock: Clock, jump_s: float) -> None:
    watch = LeaseWatch(lambda: LeaseState(make_far_driver(), 1))
    assert watch.look() is None
    clock.now += jump_s  # it was suspended, perhaps together with the driver's machine
    assert watch.look() is None


def test_another_driver_is_watched_anew(clock: Clock) -> None:
    state = LeaseState(make_far_driver(), 1)
    watch = LeaseWatch(lambda: state)
    watch.look()
    for _ in range(15):
        clock.now += 1
        watch.look()
    state = LeaseState(make_far_driver(id="e" * 32), 2)
    for _ in range(15):
        clock.now += 1
        assert watch.look() is None
    state = LeaseState(None, 3)
    assert watch.look() is False


def test_an_expired_lease_of_another_machine_is_taken(ledger: Ledger) -> None:
    give_to(ledger, make_far_driver())
    began = time.monotonic()
    with take_lease(ledger) as lease:
        assert time.monotonic() - began >= 0.5, "clocks differ: it has to be watched"
        assert lease.previous == make_far_driver()


def test_a_lease_that_is_renewed_meanwhile_is_not_taken(ledger: Ledger) -> None:
    give_to(ledger, make_far_driver())
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(0.05):
            write_lease(ledger, counter=LEASES.c.counter + 1)

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        with pytest.raises(UnavailableError):
            take_lease(ledger)
        assert " far " in LeaseWatch(ledger.read_lease).find_driver().describe()
    finally:
        ended.set()
        thread.join()


def test_a_process_of_another_container_is_watched_not_asked() -> None:
    import psutil

    mark = lease_module.mark_process(psutil.Process())
    ours = DriverRecord(id="0" * 32, host="here", **mark)
    assert ours.is_alive() is False, "this process does not hold it"
    assert replace(ours, pid_namespace="pid:[1]").is_alive() is None
    assert replace(ours, boot="another").is_alive() is None
    assert replace(ours, started="1").is_alive() is False, "a later process has its number"


@pytest.mark.slow
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
def test_an_idle_transaction_of_a_stopped_driver_is_ended(
    postgres_server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rltune.ledger import database

    monkeypatch.setattr(database, "IDLE_S", 1.0)
    held = Ledger(postgres.database(postgres_server, "idle"), "mine", create=True)
    give_to(held, make_far_driver())
    connection = held.fence.engine.connect()
    connection.execute(update(LEASES).values(counter=LEASES.c.counter))
    began = time.monotonic()
    with take_lease(Ledger(held.url, "mine")):
        assert time.monotonic() - began < 30
    connection.invalidate()
