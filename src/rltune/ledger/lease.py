"""Hold the lease of a sweep, which is the exclusive right to write its ledger.

The holder increments a counter in that row every few seconds. Whoever wants to know whether a driver lives asks its
process where that can be known, and watches the counter where it cannot. No clocks are compared: a lease has expired
when its counter has stood still for `LEASE_S` on the observer's own monotonic clock. Every transaction of a driver
checks in the same transaction that the row still names that driver (the fence), so a driver that was replaced while
it stood still writes nothing. Holding a lease is for drivers; observing one runs anywhere.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil
from sqlalchemy import Connection, Engine, Executable, or_, select, update
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from rltune.cluster.stale_processes import GONE, RUNNING, ProcessMark, mark_process
from rltune.errors import StudyUnavailableError
from rltune.ledger.database import connect_ledger, file_of, make_storage_error
from rltune.ledger.tables import LEASES, SWEEPS

if TYPE_CHECKING:
    from rltune.ledger.ledger import Ledger

RENEW_S = 3.0  # The holder of a lease increments its counter this often.
LEASE_S = 20.0  # A lease is free if its counter stands still this long on the observer's monotonic clock.
# One read adds at most this much to the time of standing still, because the observer may have been suspended.
MAX_STEP_S = 2.0
LOOK_S = 0.5  # A waiting observer reads the counter at this interval.
END_S = 5.0  # The driver waits at most this long to release its lease, because the database server may be unreachable.
# These statements are plain SQL, because SQLAlchemy would take longer to build one than SQLite takes to execute it.
_CHECKS = {
    "sqlite": "UPDATE leases SET counter = counter WHERE sweep_id = ? AND driver_id = ?",
    "postgresql": "UPDATE rltune.leases SET counter = counter WHERE sweep_id = %s AND driver_id = %s",
}
_held_ids: set[str] = set()  # The driver ids of the leases that this process holds.
logger = logging.getLogger(__name__)


class LeaseLostError(StudyUnavailableError):
    """Another driver holds the sweep's lease now, so this driver must stop writing."""


@dataclass(frozen=True)
class DriverRecord(ProcessMark):
    """The driver that holds a lease, as the lease's row describes it.

    Attributes:
        id: Random, and new for each lease: the fence compares it.
        host: The machine's name, for people.
        sessions: The process sessions of its Ray, which its successor ends if the driver was killed.
    """

    id: str
    host: str
    sessions: tuple[ProcessMark, ...] = ()

    def is_alive(self) -> bool | None:
        """Return whether the driver's process runs; None if that cannot be seen from here, as on another machine.

        A process on another machine or in another container cannot be seen, and a stopped one may be continued.
        """
        state = self.find_state()
        if state == RUNNING and self.pid == os.getpid():
            return self.id in _held_ids
        return {RUNNING: True, GONE: False}.get(state or "")

    def describe(self) -> str:
        """Describe for messages on which host and in which process the driver runs."""
        return f"on {self.host} (process {self.pid})"


@dataclass(frozen=True)
class LeaseState:
    """The content of a lease's row at one moment.

    Attributes:
        driver: Who holds the lease; None if it was given back, or was never taken.
        counter: Grows while the holder lives.
        driver_id: The last holder's, kept after the lease was given back; None before the first.
    """

    driver: DriverRecord | None
    counter: int
    driver_id: str | None = None

    @classmethod
    def from_row(cls, row: Any) -> LeaseState:
        """Make the state from the columns of `LEASES`, all of which are None for a sweep that never had a lease."""
        driver = None if row.released or row.driver is None else _make_record(row.driver)
        return cls(driver, row.counter or 0, row.driver_id)

    def is_abandoned(self) -> bool:
        """Return whether the lease was released or its driver's process, on this machine, is dead."""
        return self.driver_id is not None and (self.driver is None or self.driver.is_alive() is False)


def read_lease(engine: Engine, sweep_id: int) -> LeaseState:
    """Read the row of a sweep's lease.

    Args:
        engine: The ledger's.
        sweep_id: The sweep's row.
    """
    with engine.connect() as connection:
        return LeaseState.from_row(connection.execute(select(LEASES).where(LEASES.c.sweep_id == sweep_id)).one())


def _make_record(content: dict[str, Any]) -> DriverRecord:
    sessions = tuple(ProcessMark(**session) for session in content["sessions"])
    return DriverRecord(**{**content, "sessions": sessions})


class LeaseWatch:
    """Observes one lease without blocking: `look` reads it once, and several looks tell whether its driver is alive.

    Args:
        read: Reads the lease. What it raises leaves `look`.

    Attributes:
        state: What the last look has read; None before the first one.
    """

    def __init__(self, read: Callable[[], LeaseState]) -> None:
        self._read = read
        self.state: LeaseState | None = None
        self._looked, self._still_s = 0.0, 0.0
        self._verdict: bool | None = None

    @property
    def driver(self) -> DriverRecord | None:
        """The driver that held the lease at the last look; None if it was free."""
        return self.state.driver if self.state else None

    def look(self) -> bool | None:
        """Read the lease and return whether a live driver holds it; None if more looks are needed to know.

        Call it every second or two: however long the last look is ago, at most `MAX_STEP_S` of it counts, since the
        observer itself may have been suspended.
        """
        before, self.state, now = self.state, self._read(), time.monotonic()
        driver, elapsed_s, self._looked = self.state.driver, now - self._looked, now
        alive = driver.is_alive() if driver else False
        if driver is None or alive is not None:
            self._still_s, self._verdict = 0.0, alive
        elif before is None or before.driver is None or before.driver.id != driver.id:
            self._still_s, self._verdict = 0.0, None
        elif before.counter != self.state.counter:
            self._still_s, self._verdict = 0.0, True
        else:
            self._still_s += min(elapsed_s, MAX_STEP_S)
            if self._still_s >= LEASE_S:
                self._verdict = False
        return self._verdict

    def wait(self) -> bool:
        """Call `look` until it tells whether a live driver holds the lease, for little longer than `LEASE_S`."""
        while (held := self.look()) is None:
            time.sleep(min(LOOK_S, LEASE_S / 10))
        return held

    def find_driver(self) -> DriverRecord | None:
        """Return the live driver that holds the lease, waiting as `wait` does; None if there is none."""
        return self.driver if self.wait() else None


class Lease:
    """The right to write a sweep's ledger, renewed by a thread of its own until it is released or lost.

    `take_lease` makes one. As a context manager it releases itself at the end.

    Args:
        ledger: The sweep's.
        driver: This driver.
        previous: The driver that did not give the lease back; None where nothing of another driver is left.
        replaced_status: See below.

    Attributes:
        id: This driver's, by which the fence knows it.
        previous: See above.
        replaced_status: The sweep's status when this driver took the lease, to which a start that fails sets it back;
            '' if there is nothing to set back.
        on_lost: Called once when the lease is lost, from any thread; whoever needs it sets it.
        find_successor: Returns the machine whose driver has taken the sweep over in the bucket, where another ledger
            is; None if this driver is the last one there. Whoever records the driver in the bucket sets it.
    """

    def __init__(
        self, ledger: Ledger, driver: DriverRecord, previous: DriverRecord | None, replaced_status: str = ""
    ) -> None:
        self.id, self.previous, self.replaced_status = driver.id, previous, replaced_status
        self.on_lost: Callable[[], None] = lambda: None
        self.find_successor: Callable[[], str | None] = lambda: None
        self._driver, self._name, self._sweep_id, self._file = driver, ledger.name, ledger.sweep_id, file_of(ledger.url)
        # The lease has its own connection, so that a long transaction of the driver cannot hold up the renewal.
        self._engine = connect_ledger(ledger.url)
        self._lost: LeaseLostError | None = None
        self._losing = threading.Lock()
        self._renewed_s = time.monotonic()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    @property
    def is_lost(self) -> bool:
        """Whether this process has noticed that another driver has taken the sweep over."""
        return self._lost is not None

    def check(self) -> None:
        """Raise an error if this process has noticed that another driver has taken the lease.

        Raises:
            LeaseLostError: Another driver has taken the sweep over.
        """
        if self._lost:
            raise self._lost

    def check_bucket(self) -> None:
        """Raise an error if the bucket names another driver as the last one of the sweep; the lease is lost then.

        Raises:
            LeaseLostError: Another driver has taken the sweep over.
            StoreError: The bucket cannot be used.
        """
        if machine := self.find_successor():
            raise self._lose(f", on {machine}")

    def is_held(self) -> bool:
        """Return whether this driver still holds the lease; if necessary, this is read from the database.

        The row is read only if the last renewal is so long ago that another driver may have taken the lease meanwhile,
        as after this process was stopped.
        """
        if not self.is_lost and time.monotonic() - self._renewed_s > LEASE_S:
            self._write({"counter": LEASES.c.counter + 1})
        return not self.is_lost

    def lose(self, connection: Connection) -> LeaseLostError:
        """Record that another driver has taken the lease, and return the error to raise.

        Args:
            connection: Reads who the other driver is.
        """
        row = connection.execute(select(LEASES.c.driver).where(LEASES.c.sweep_id == self._sweep_id)).first()
        return self._lose(f", {_make_record(row.driver).describe()}" if row and row.driver else "")

    def _lose(self, location: str) -> LeaseLostError:
        with self._losing:
            is_first = self._lost is None
            if self._lost is None:
                self._lost = LeaseLostError(
                    f": another driver has taken it over{location}",
                    "one driver at a time",
                    "nothing: the other driver continues the sweep",
                    key="sweep",
                    value=self._name,
                )
                _held_ids.discard(self.id)
                self._ended.set()
        if is_first:
            self.on_lost()
        return self._lost

    def note_sessions(self, sessions: tuple[ProcessMark, ...]) -> None:
        """Record the process sessions of this driver's Ray, so that the next driver can end them if this one is killed.

        Raises:
            LeaseLostError: Another driver has taken the sweep over.
        """
        self._driver = replace(self._driver, sessions=sessions)
        with self._engine.begin() as connection:
            if not connection.execute(self._of_mine().values(driver=asdict(self._driver))).rowcount:
                raise self.lose(connection)

    def release(self) -> None:
        """Release the lease, so that the next driver need not wait; no effect on a released or lost lease."""
        self._ended.set()
        self._thread.join(END_S)

    def __enter__(self) -> Lease:
        """Return the lease itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release it."""
        self.release()

    def _of_mine(self) -> Any:
        return update(LEASES).where(LEASES.c.sweep_id == self._sweep_id, LEASES.c.driver_id == self.id)

    def _renew(self) -> None:
        """Increment the lease's counter until the driver ends, then release the lease."""
        while not self._ended.wait(RENEW_S):
            # A renewal that fails, for example during a database restart, does no harm: the lease stays this driver's
            # until another driver has seen the counter unchanged for `LEASE_S`.
            self._write({"counter": LEASES.c.counter + 1})
        # The lease must be released even if the process lives on, as in a notebook: other drivers see a live process
        # and would be refused for ever. So the release is repeated until the database answers.
        while not (self.is_lost or self._write({"released": True})):
            _held_ids.discard(self.id)
            time.sleep(RENEW_S)
        _held_ids.discard(self.id)
        self._engine.dispose()

    def _write(self, values: dict[str, Any]) -> bool:
        """Update the lease's row if it names this driver; return False if the database did not answer."""
        # If the ledger's file was deleted, connecting would create an empty one.
        if self._file and not self._file.exists():
            return True
        try:
            with self._engine.begin() as connection:
                if connection.execute(self._of_mine().values(**values)).rowcount:
                    self._renewed_s = time.monotonic()
                    return True
                mine = select(LEASES.c.driver_id).where(LEASES.c.sweep_id == self._sweep_id)
                if connection.execute(mine).first():
                    self.lose(connection)
        except Exception as error:
            logger.debug("the lease could not be written", exc_info=error)
            return False
        return True


def take_lease(ledger: Ledger, new_key: str | None = None) -> Lease:
    """Take the lease of a sweep for this process, as soon as it is known that no other driver has it.

    A live process of this machine is refused at once and a dead one replaced at once; anything else is watched for
    `LEASE_S`. From now on the ledger writes only while it has the lease. The transaction that takes the lease also sets
    the sweep's status to running: whatever happens to this driver, a sweep that it has not ended is unfinished.

    Args:
        ledger: The sweep's.
        new_key: Replaces the sweep's key: what had the earlier key is another sweep, or none.

    Raises:
        StudyUnavailableError: Another driver has it.
        StudyError: The ledger cannot be written, or another sweep has its row meanwhile.
    """
    watch = LeaseWatch(ledger.read_lease)
    driver = DriverRecord(id=secrets.token_hex(16), host=socket.gethostname(), **mark_process(psutil.Process()))
    # The id is added before the database has it, because another thread that reads the lease looks it up here.
    _held_ids.add(driver.id)
    while True:
        try:
            if watch.wait():
                raise _make_held_error(ledger, watch)
            assert watch.state is not None
            # This driver inherits the sessions of the previous one and is going to end them. If it is killed before
            # that, then the next driver finds them in the lease's row.
            driver = replace(driver, sessions=watch.driver.sessions if watch.driver else ())
            if (status := _take(ledger, driver, watch.state, new_key)) is not None:
                break
        except Exception as error:
            _held_ids.discard(driver.id)
            if isinstance(error, OperationalError) and "database is locked" in str(error):
                # Another driver was suspended in the middle of a transaction and still has the file locked.
                raise _make_held_error(ledger, watch) from None
            if isinstance(error, SQLAlchemyError):
                raise make_storage_error(ledger.url, error) from None
            raise
    ledger.fence.lease = lease = Lease(ledger, driver, watch.driver, status)
    for table in (ledger.trials, ledger.runs):
        table.clear_cache()  # Until the lease was taken, the previous driver may have changed these tables.
    return lease


def _make_held_error(ledger: Ledger, watch: LeaseWatch) -> StudyUnavailableError:
    """Make the error that another driver is working on the sweep, and say on which host."""
    location = f", {watch.driver.describe()}" if watch.driver else ""
    return StudyUnavailableError(
        f": another driver is working on it{location}",
        "one driver at a time",
        "wait for it, or end it with Ctrl-C where it runs",
        key="sweep",
        value=ledger.name,
    )


def _take(ledger: Ledger, driver: DriverRecord, seen: LeaseState, new_key: str | None) -> str | None:
    """Take the lease, and set the sweep's status to running, in one transaction.

    Returns:
        The earlier status, '' for none; None if the lease is not released and has changed since `seen` was read.

    Raises:
        StudyError: The row has another key than when the ledger was opened.
    """
    unchanged = (LEASES.c.driver_id == seen.driver_id) & (LEASES.c.counter == seen.counter)
    free = update(LEASES).where(LEASES.c.sweep_id == ledger.sweep_id, or_(LEASES.c.released, unchanged))
    mine = {"driver_id": driver.id, "driver": asdict(driver), "released": False, "counter": LEASES.c.counter + 1}
    with ledger.fence.engine.begin() as connection:
        if not connection.execute(free.values(**mine)).rowcount:
            return None
        is_sweep = SWEEPS.c.id == ledger.sweep_id
        status, key = connection.execute(select(SWEEPS.c.status, SWEEPS.c.key).where(is_sweep)).one()
        if key != ledger.key:
            raise ledger.make_other_sweep_error()
        connection.execute(update(SWEEPS).where(is_sweep).values(status="running", key=new_key or key))
    ledger.key = new_key or key
    return status or ""


class Fence:
    """Begins the transactions that write a sweep's rows, and refuses those of a driver that has lost its lease.

    Args:
        engine: The ledger's.
        sweep_id: The sweep's row.

    Attributes:
        engine: See above.
        sweep_id: See above.
        lease: This driver's; None for commands and readers, whose transactions are not checked.
    """

    def __init__(self, engine: Engine, sweep_id: int) -> None:
        self.engine, self.sweep_id = engine, sweep_id
        self.lease: Lease | None = None
        self._check = _CHECKS[engine.dialect.name]

    def read(self, statement: Executable) -> Sequence[Any]:
        """Execute a query; reading needs no lease."""
        with self.engine.connect() as connection:
            return connection.execute(statement).all()

    @contextlib.contextmanager
    def begin(self) -> Iterator[Connection]:
        """Begin a write transaction; its first statement locks the lease's row and checks whose lease it is.

        In SQLite this takes the write lock before anything is read.

        Raises:
            LeaseLostError: Another driver has taken the sweep over; nothing is written.
        """
        with self.engine.begin() as connection:
            if self.lease is not None:
                self.lease.check()  # A driver that was taken over in the bucket still has its own row.
                checked = connection.exec_driver_sql(self._check, (self.sweep_id, self.lease.id))
                if not checked.rowcount:
                    raise self.lease.lose(connection)
            yield connection
