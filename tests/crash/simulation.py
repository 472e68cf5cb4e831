"""Simulate several processes in one: their clocks, sleeps, pauses and kills, full disks and lost connections.

The code under test runs unchanged. Each task of a simulated process is a real thread, but only one of them runs at a
time, and it gives way only where it sleeps, waits or writes. So a run is deterministic, and a process can be stopped or
killed between any two writes. Time passes only when the test says so.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import logging
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from sqlalchemy import Engine, event
from sqlalchemy.engine.default import DefaultDialect
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import Pool

from rltune.checkpoints import store
from rltune.cluster import stale_processes
from rltune.ledger import database, lease, ledger, trial_table
from rltune.ledger.database import IDLE_S
from rltune.tracking import feed

EPOCH_S = 1_750_000_000.0
GIVE_UP_S = 60.0  # Real seconds. A task that has not given way by then hangs in a real lock or loop.
MODIFYING = ("INSERT", "UPDATE", "DELETE", "CREATE", "ALTER", "DROP", "BEGIN IMMEDIATE")


def _make_signal() -> threading.Lock:
    """Make a lock that is released to wake whoever waits for it: faster than a semaphore."""
    signal = threading.Lock()
    signal.acquire()
    return signal


class Killed(BaseException):
    """The simulated process was killed: nothing of it runs on."""


class Task:
    """One thread of a simulated process.

    Attributes:
        error: What it ended with; None while it runs, and where it returned.
        value: What it returned.
        is_done: Whether it has ended.
    """

    def __init__(self, world: World, process: Process, function: Callable[[], Any], is_main: bool) -> None:
        self.world, self.process, self.function, self.is_main = world, process, function, is_main
        self.value: Any = None
        self.error: BaseException | None = None
        self.is_done = False
        self.until: Callable[[], bool] = lambda: True
        self.deadline: float | None = None  # on the process's monotonic clock
        self.turn = _make_signal()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        self.turn.acquire()
        try:
            self._check()
            self.value = self.function()
        except BaseException as error:
            self.error = error
        self.is_done = True
        self.world.main.release()

    def _check(self) -> None:
        if self.process.is_dead:
            raise Killed

    def wait(self, until: Callable[[], bool], timeout: float | None = None) -> bool:
        """Give way until a condition holds; return False where the time ran out first."""
        self._check()
        self.until = until
        self.deadline = None if timeout is None else self.process.monotonic() + max(0.0, timeout)
        self.world.main.release()
        self.turn.acquire()
        self._check()
        return until()

    def wakes_at(self) -> float | None:
        """Return the world's time at which it may run again; None where nothing but an event can wake it."""
        if self.is_done or (self.process.is_stopped and not self.process.is_dead):
            return None
        if self.process.is_dead or self.until():
            return self.world.now
        if self.deadline is None:
            return None
        return max(self.world.now, self.world.now + self.deadline - self.process.monotonic())


class Process:
    """A simulated process of a simulated host.

    Attributes:
        fault: How many writes are left before a fault, and which.
        was_struck: Whether a fault has met it that lets it live.
        was_stopped: Whether it was ever stopped.
        full_until: Until when its disk has no room, in the world's time.
        cut_until: Until when it does not reach its database.
        connections: Those to its database.
        transactions: The statements of its transactions that have written and not ended, by their connections.
        leases: What the module of the lease remembers for this process.
    """

    def __init__(self, world: World, name: str, host: str, pid: int) -> None:
        self.world, self.name, self.host, self.pid = world, name, host, pid
        self.is_dead = self.is_stopped = self.is_suspended = False
        self.monotonic_offset, self.wall_offset = 1000.0 * pid, 0.0
        self.asleep_s = 0.0
        self.stopped_at = 0.0
        self.full_until = self.cut_until = -1.0
        self.fault: tuple[int, str] | None = None
        self.was_struck = self.was_stopped = False
        self.tasks: list[Task] = []
        self.connections: list[Any] = []
        self.transactions: dict[int, list[str]] = {}
        self.leases: set[str] = set()

    @property
    def is_idle(self) -> bool:
        """Whether it lives, runs, and has done all that it was to do."""
        return not (self.is_dead or self.is_stopped or any(task.is_main and not task.is_done for task in self.tasks))

    @property
    def was_held_up(self) -> bool:
        """Whether it is gone, or anything may have kept it from renewing a lease."""
        return self.is_dead or self.was_stopped or self.was_struck

    @property
    def holds_transaction(self) -> bool:
        """Whether it holds locks in its database."""
        return bool(self.transactions)

    # -- clocks -------------------------------------------------------------------------------------------------------

    def monotonic(self) -> float:
        """Its host's monotonic clock; that of a suspended host stands still."""
        asleep = self.asleep_s + (self.world.now - self.stopped_at if self.is_suspended else 0.0)
        return self.monotonic_offset + self.world.now - asleep

    def wall(self) -> float:
        """Its host's wall clock, which may jump."""
        return EPOCH_S + self.world.now + self.wall_offset

    # -- what happens to it -------------------------------------------------------------------------------------------

    def stop(self, *, suspends: bool = False) -> None:
        """Stop it, as SIGSTOP does; or suspend its host, whose clock stands still meanwhile."""
        self.is_stopped, self.is_suspended, self.stopped_at = True, suspends, self.world.now
        self.was_stopped = True

    def go_on(self) -> None:
        """Let it run on."""
        if self.is_suspended:
            self.asleep_s += self.world.now - self.stopped_at
        self.is_stopped = self.is_suspended = False

    def kill(self) -> None:
        """Kill it: its transactions are rolled back, and none of its code runs any more."""
        self.is_dead = True
        for connection in self.connections:
            with contextlib.suppress(Exception):
                connection.close()
        self.connections.clear()
        self.transactions.clear()

    def leave(self) -> None:
        """End it from inside; what it still has to do by itself is not done."""
        self.kill()

    def spawn(self, function: Callable[[], Any], *, is_main: bool = False) -> Task:
        """Begin a task; it runs when the world next settles."""
        task = Task(self.world, self, function, is_main)
        self.tasks.append(task)
        return task

    def run(self, function: Callable[[], Any]) -> Task:
        """Run a task until it ends, or waits for time or an event."""
        task = self.spawn(function, is_main=True)
        self.world.settle()
        return task


class World:
    """All simulated processes, and the time."""

    def __init__(self) -> None:
        self.now, self.num_writes = 0.0, 0
        self.processes: list[Process] = []
        self.running: Task | None = None
        self.main = _make_signal()
        self.on_commit: Callable[[Process, list[str]], None] = lambda process, statements: None
        self.on_delete: Callable[[Process, str], None] = lambda process, path: None
        self.on_cut: Callable[[Process], None] = lambda process: None
        self.on_idle: Callable[[Process], None] = lambda process: None

    @property
    def process(self) -> Process | None:
        """The one that runs now; None in the test itself."""
        return self.running.process if self.running else None

    def start_process(self, name: str, host: str) -> Process:
        """Start a process."""
        process = Process(self, name, host, len(self.processes) + 1)
        self.processes.append(process)
        return process

    @contextlib.contextmanager
    def observed(self) -> Iterator[None]:
        """Let the test itself read something, whichever process runs: no fault happens."""
        task, self.running = self.running, None
        try:
            yield
        finally:
            self.running = task

    def settle(self) -> None:
        """Run all that can run without time passing."""
        self.advance(0.0)

    def advance(self, seconds: float) -> None:
        """Let time pass, and run all that wakes meanwhile, in its order."""
        end = self.now + seconds
        while True:
            for process in self.processes:
                process.tasks = [task for task in process.tasks if not task.is_done]
            waking = [(wakes, task) for process in self.processes for task in process.tasks
                      if (wakes := task.wakes_at()) is not None and wakes <= end]  # fmt: skip
            for process in self.processes:
                if process.holds_transaction and process.is_stopped and self.now - process.stopped_at >= IDLE_S:
                    self.on_idle(process)
            if not waking:
                break
            wakes, task = min(waking, key=lambda pair: pair[0])
            self.now = max(self.now, wakes)
            self._switch(task)
        self.now = end

    def _switch(self, task: Task) -> None:
        self.running = task
        task.turn.release()
        if not self.main.acquire(timeout=GIVE_UP_S):
            raise AssertionError(f"{task.process.name} hangs: it waits for something that is not simulated")
        self.running = None

    def close(self) -> None:
        """End all processes and their threads."""
        for process in self.processes:
            process.kill()
        self.settle()

    # -- faults -------------------------------------------------------------------------------------------------------

    def point(self, kind: str, what: str = "", engine: str = "") -> None:
        """Let the fault happen that is due at this write: ``read``, ``write``, ``commit``, ``committed``, ``file``.

        Args:
            kind: Of the write.
            what: Statement or path, for a person who debugs.
            engine: ``sqlite`` or ``postgresql``; "" for files.
        """
        task = self.running
        if task is None:
            return
        process = task.process
        self.num_writes += kind != "read"
        if process.is_dead:
            raise Killed
        if process.fault and kind != "read":
            left, fault = process.fault
            process.fault = (left - 1, fault) if left else None
            if not left:
                self._strike(task, fault)
        if engine and self.now < process.cut_until:
            raise _make_lost_connection(engine)
        if self.now < process.full_until and kind in ("write", "commit", "file"):
            if engine == "sqlite":
                raise OperationalError(what, {}, sqlite3.OperationalError("database or disk is full"))
            if not engine:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), what)

    def _strike(self, task: Task, fault: str) -> None:
        process = task.process
        process.was_struck = fault != "kill"
        if fault == "kill":
            process.kill()
            raise Killed
        if fault in ("stop", "suspend"):
            process.stop(suspends=fault == "suspend")
            task.wait(lambda: not process.is_stopped)
        elif fault == "slow":  # The others of its tasks run on.
            task.wait(lambda: False, 10.0)
        elif fault == "full":
            process.full_until = self.now + 30.0
        elif fault == "cut":
            process.cut_until = self.now + 30.0
            self.on_cut(process)


def _make_lost_connection(engine: str) -> OperationalError:
    if engine == "sqlite":
        return OperationalError(None, None, sqlite3.OperationalError("disk I/O error"))
    import psycopg

    lost = psycopg.OperationalError("the connection is lost")
    return OperationalError(None, None, lost, connection_invalidated=True)


class SimulatedTime:
    """What a module sees instead of `time`."""

    def __init__(self, world: World) -> None:
        self._world = world

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def time(self) -> float:
        """Wall clock."""
        return self._world.process.wall() if self._world.process else EPOCH_S + self._world.now

    def monotonic(self) -> float:
        """Monotonic clock."""
        return self._world.process.monotonic() if self._world.process else self._world.now

    def sleep(self, seconds: float) -> None:
        """Sleep on the monotonic clock."""
        if self._world.running:
            self._world.running.wait(lambda: False, seconds)
        else:
            self._world.advance(seconds)


class SimulatedThreading:
    """What a module sees instead of `threading`."""

    def __init__(self, world: World) -> None:
        outer = self._world = world

        class Event:
            def __init__(self) -> None:
                self._is_set = False

            def is_set(self) -> bool:
                return self._is_set

            def set(self) -> None:
                self._is_set = True

            def clear(self) -> None:
                self._is_set = False

            def wait(self, timeout: float | None = None) -> bool:
                if outer.running is None:
                    return self._is_set
                return outer.running.wait(lambda: self._is_set, timeout)

        class Thread:
            def __init__(self, target: Any = None, args: Any = (), kwargs: Any = None, **ignored: Any) -> None:
                self._function = lambda: target(*args, **(kwargs or {}))
                self._task: Task | None = None
                self.name, self.daemon = ignored.get("name", ""), True

            def start(self) -> None:
                assert outer.process is not None
                self._task = outer.process.spawn(self._function)

            def is_alive(self) -> bool:
                return self._task is not None and not self._task.is_done

            def join(self, timeout: float | None = None) -> None:
                task = self._task
                if task is not None and outer.running is not None:
                    outer.running.wait(lambda: task.is_done, timeout)

        class Lock:
            def __init__(self) -> None:
                self._holder: Task | None = None
                self._depth = 0

            def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
                me = outer.running
                if me is not None and self._holder is not None and (self._holder is not me or not self._reenters()):
                    if not blocking:
                        return False
                    if not me.wait(lambda: self._holder is None, None if timeout < 0 else timeout):
                        return False
                self._holder, self._depth = me, self._depth + 1
                return True

            def _reenters(self) -> bool:
                return isinstance(self, RLock)

            def release(self) -> None:
                self._depth -= 1
                if not self._depth:
                    self._holder = None

            def locked(self) -> bool:
                return self._holder is not None

            def __enter__(self) -> bool:
                return self.acquire()

            def __exit__(self, *_: Any) -> None:
                self.release()

        class RLock(Lock):
            pass

        self.Event, self.Thread, self.Lock, self.RLock = Event, Thread, Lock, RLock

    def __getattr__(self, name: str) -> Any:
        return getattr(threading, name)


class SimulatedChores:
    """Runs functions later in the process that has added them, as a driver's housekeeping does."""

    def __init__(self, world: World) -> None:
        self._world, self._queue, self._task = world, list[Callable[[], None]](), None

    def add(self, function: Callable[[], None]) -> None:
        """Run a function when those before it have run."""
        self._queue.append(function)
        assert self._world.process is not None
        if self._task is None or self._task.is_done:
            self._task = self._world.process.spawn(self._work)

    def wait(self, timeout_s: float) -> None:
        """Wait until all functions have run."""
        if self._world.running and self._task:
            self._world.running.wait(lambda: self._task.is_done, timeout_s)

    def _work(self) -> None:
        while self._queue:
            self._queue.pop(0)()


# -- where faults come in ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def simulate(world: World) -> Iterator[None]:
    """Run ledger, lease and feeds in a simulated world, with a possible fault at every statement and file operation."""
    clock, threads = SimulatedTime(world), SimulatedThreading(world)
    logging.disable(logging.CRITICAL)  # To format the tracebacks of the faults takes longer than to cause them.
    with pytest.MonkeyPatch.context() as patch, _database_faults(world, patch):
        for module in (lease, ledger, database, trial_table, feed):
            for attribute, simulated in (("time", clock), ("threading", threads)):
                if hasattr(module, attribute):
                    patch.setattr(module, attribute, simulated)
        patch.setattr(
            database, "TIMEOUT_S", 0.0
        )  # The process that holds a lock runs only when this one has given way.
        patch.setattr(lease, "LOOK_S", 2.0)  # Seconds pass quickly here, and each look costs a query.
        patch.setattr(store, "NUM_THREADS", 1)  # Their order would be left to chance.
        _simulate_processes(world, patch)
        _file_faults(world, patch)
        yield
    logging.disable(logging.NOTSET)


def _simulate_processes(world: World, patch: pytest.MonkeyPatch) -> None:
    """Let the lease see the simulated processes instead of the machine's."""

    def running() -> Process:
        assert world.process is not None
        return world.process

    def mark(process: Any) -> dict[str, Any]:
        return {"boot": running().host, "pid_namespace": "", "pid": running().pid, "started": "1"}

    def find_state(mark: stale_processes.ProcessMark) -> str | None:
        process = world.processes[mark.pid - 1]
        if process.host != running().host:
            return None
        return (
            stale_processes.GONE
            if process.is_dead
            else stale_processes.STOPPED
            if process.is_stopped
            else stale_processes.RUNNING
        )

    class HeldIds:
        def __contains__(self, held: str) -> bool:
            return held in running().leases

        def add(self, held: str) -> None:
            running().leases.add(held)

        def discard(self, held: str) -> None:
            running().leases.discard(held)

    patch.setattr(lease, "mark_process", mark)
    patch.setattr(stale_processes.ProcessMark, "find_state", find_state)
    patch.setattr(lease, "_held_ids", HeldIds())
    patch.setattr(lease, "os", SimpleNamespace(getpid=lambda: running().pid))
    patch.setattr(lease, "socket", SimpleNamespace(gethostname=lambda: running().host))


@contextlib.contextmanager
def _database_faults(world: World, patch: pytest.MonkeyPatch) -> Iterator[None]:
    def before_statement(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if world.process is None:
            return
        modifies = statement.lstrip().upper().startswith(MODIFYING)
        world.point("write" if modifies else "read", statement, connection.dialect.name)
        if modifies or "pg_advisory_xact_lock" in statement:
            world.process.transactions.setdefault(id(cursor.connection), []).append(statement)

    def keep_connection(connection: Any, _: Any) -> None:
        if world.process:
            world.process.connections.append(connection)
            if hasattr(connection, "info"):  # PostgreSQL, whose locks are waited for without a limit
                with connection.cursor() as cursor:
                    cursor.execute("SET lock_timeout = 50")
                connection.commit()

    def refuse_connection(dialect: Any, *_: Any) -> None:
        if world.process and world.now < world.process.cut_until and dialect.name != "sqlite":
            raise dialect.loaded_dbapi.OperationalError("the server is out of reach")

    commit, rollback = DefaultDialect.do_commit, DefaultDialect.do_rollback

    def do_commit(dialect: Any, connection: Any) -> None:
        statements = world.process.transactions.get(id(connection.dbapi_connection), []) if world.process else []
        if statements:
            world.point("commit", "", dialect.name)
        commit(dialect, connection)
        if statements and (task := world.running):
            task.process.transactions.pop(id(connection.dbapi_connection), None)
            with world.observed():
                world.on_commit(task.process, statements)
            world.point("committed", "", dialect.name)

    def do_rollback(dialect: Any, connection: Any) -> None:
        if world.process:
            world.process.transactions.pop(id(connection.dbapi_connection), None)
        rollback(dialect, connection)

    patch.setattr(DefaultDialect, "do_commit", do_commit)
    patch.setattr(DefaultDialect, "do_rollback", do_rollback)
    listeners = [
        (Engine, "before_cursor_execute", before_statement),
        (Pool, "connect", keep_connection),
        (Engine, "do_connect", refuse_connection),
    ]
    for target, name, function in listeners:
        event.listen(target, name, function)
    try:
        yield
    finally:
        for target, name, function in listeners:
            event.remove(target, name, function)


def _file_faults(world: World, patch: pytest.MonkeyPatch) -> None:
    def guard(name: str, deletes: bool = False) -> None:
        original = getattr(os, name)

        def guarded(path: Any, *args: Any, **kwargs: Any) -> Any:
            if world.running is not None:
                world.point("file" if not deletes else "delete", str(path))
                if deletes:
                    assert world.process is not None
                    world.on_delete(world.process, str(path))
            return original(path, *args, **kwargs)

        patch.setattr(os, name, guarded)

    for name in ("rename", "replace", "mkdir", "chmod", "symlink", "fsync"):
        guard(name)
    for name in ("unlink", "remove", "rmdir"):
        guard(name, deletes=True)
    remove_tree, copy_tree = shutil.rmtree, shutil.copytree

    def rmtree(path: Any, *args: Any, **kwargs: Any) -> None:
        if world.running is not None:
            world.point("delete", str(path))
            assert world.process is not None
            world.on_delete(world.process, str(path))
        remove_tree(path, *args, **kwargs)

    def copytree(*args: Any, **kwargs: Any) -> Any:
        world.point("file", str(args[1]))
        return copy_tree(*args, **kwargs)

    patch.setattr(shutil, "rmtree", rmtree)
    patch.setattr(shutil, "copytree", copytree)
    open_file = builtins.open

    def guarded_open(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if world.running is not None and set(mode) & set("wax+"):
            world.point("file", str(file))
        return open_file(file, mode, *args, **kwargs)

    patch.setattr(builtins, "open", guarded_open)
    patch.setattr(io, "open", guarded_open)


class FaultyFileSystem:
    """A file system of pyarrow of which every operation that writes is a place for a fault.

    A file appears when it is closed, as an object in S3 does.
    """

    WRITING = ("create_dir", "move", "copy_file")
    DELETING = ("delete_file", "delete_dir", "delete_dir_contents")

    def __init__(self, world: World, filesystem: Any) -> None:
        self._world, self._filesystem = world, filesystem

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._filesystem, name)
        if name not in (*self.WRITING, *self.DELETING):
            return method

        def guarded(path: str, *args: Any, **kwargs: Any) -> Any:
            deletes = name in self.DELETING
            self._world.point("delete" if deletes else "file", path)
            if deletes and self._world.process is not None:
                self._world.on_delete(self._world.process, path)
            return method(path, *args, **kwargs)

        return guarded

    @contextlib.contextmanager
    def open_output_stream(self, path: str, **kwargs: Any) -> Iterator[io.BytesIO]:
        """Open a file to write."""
        content = io.BytesIO()
        self._world.point("file", path)
        try:
            yield content
        finally:  # Arrow's streams are closed after an error, too, and half a file appears.
            self._world.point("file", path)
            with self._filesystem.open_output_stream(path, **kwargs) as stream:
                stream.write(content.getvalue())
