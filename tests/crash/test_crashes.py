"""Break a sweep's ledger, lease, checkpoints and feeds at every write, and check that nothing is ever lost.

A stateful model of Hypothesis: drivers, workers and commands on several hosts run the package's own code in a simulated
world (`simulation.py`). There each of them can be killed, stopped, suspended, cut off from its database or left without
room on its disk between any two writes, and time passes as the model says. ``RLTUNE_CRASH_S`` is the number of seconds
that these tests search for a failure together, ``RLTUNE_CRASH_SEED`` the seed that they begin with.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import hypothesis.strategies as st
import postgres
import pytest
from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError

from rltune.checkpoints.clients import Client, StoreUnavailableError
from rltune.checkpoints.retention import Retention
from rltune.checkpoints.store import Store
from rltune.config.settings_file import read_identity, write_settings
from rltune.errors import RltuneError, StudyUnavailableError
from rltune.ledger.handover import HISTORY, find_successor, take
from rltune.ledger.lease import LEASE_S, RENEW_S, LeaseLostError, take_lease
from rltune.ledger.ledger import Ledger, MissingSweepError, make_key
from rltune.ledger.storage import copy_ledger
from rltune.ledger.sweep_folder import find_original
from rltune.records import ENQUEUE, CheckpointRecord, Report, TrialRecord
from rltune.tracking.feed import Feeds
from rltune.tracking.tracker import SweepDescription, Tracker
from tests.crash.simulation import FaultyFileSystem, Process, SimulatedChores, World, simulate

MARKS = (100, 200, 300)  # The steps at which a trial reports. It ends at the last one.
MAX_DRIVERS, MAX_TRIALS = 5, 4
HOSTS = ("left", "right")
HOST = st.sampled_from(HOSTS)
INDEX = st.integers(0, 3)
SAVES = st.sampled_from([("best", "latest"), ("latest",), ("best",), ()])
FIELDS = {"best": "checkpoint", "latest": "latest"}  # What the ledger calls the checkpoints.
# How many writes are left before a fault meets a process, and which.
FAULT = st.none() | st.tuples(st.integers(0, 20), st.sampled_from(["kill", "stop", "suspend", "full", "cut", "slow"]))
STOP = st.sampled_from(["stop", "suspend"])
Fault = tuple[int, str] | None
SETTINGS = settings(
    max_examples=10,  # With one seed: between two seeds it is seen whether the time is over.
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
CRASH_S = float(os.environ.get("RLTUNE_CRASH_S", "6"))
SEED = int(os.environ.get("RLTUNE_CRASH_SEED", "0"))
ROOM = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass(eq=False)
class Worker:
    """One attempt of one trial.

    Attributes:
        steps: The environment steps that it has trained.
        messages: What it has reported and its driver has not recorded yet.
    """

    process: Process
    number: int
    attempt: str
    steps: int
    messages: list[tuple[Report | None, dict[str, CheckpointRecord]]] = field(default_factory=list)


@dataclass
class Screen:
    """What a tracker's server has, which outlives all drivers.

    Attributes:
        curves: The values of the delivered reports by their marks, by trial.
        states: The last state that was delivered of each trial.
    """

    curves: dict[int, dict[int, float]] = field(default_factory=dict)
    states: dict[int, str] = field(default_factory=dict)


class ScreenTracker(Tracker):
    """Writes to a screen; a fault may come before or after each write, and a driver that is cut off reaches none."""

    def __init__(self, sweep: SweepDescription, world: World, name: str, screen: Screen) -> None:
        super().__init__(sweep)
        self.world, self.name, self.screen = world, name, screen

    def _reach(self) -> None:
        self.world.point("file", self.name)
        assert self.world.process is not None
        if self.world.now < self.world.process.cut_until:
            raise ConnectionError(self.name)

    def write(self, trial: TrialRecord, reports: Sequence[Report]) -> None:
        for report in reports:
            self._reach()
            self.screen.curves.setdefault(trial.number, {})[report.nominal_steps] = report.score
        self._reach()
        self.screen.states[trial.number] = trial.state
        self._reach()


@dataclass(eq=False)
class Driver:
    """A driver of the sweep.

    Attributes:
        id: Its lease's, which the ledger's row names while it may write; "" before it has one.
        wish: What it has written into the sweep's settings.
        away_until: Until when it does not reach the bucket, in the world's time.
        superseded_at: When it could first see that another machine has taken the sweep over in the bucket.
        workers: Those that train for it, by their trials' numbers.
    """

    process: Process
    ledger: Any = None
    store: Any = None
    retention: Any = None
    chores: Any = None
    lease: Any = None
    feeds: Any = None
    id: str = ""
    wish: int = 0
    away_until: float = -1.0
    superseded_at: float = math.inf
    workers: dict[int, Worker] = field(default_factory=dict)

    @property
    def is_idle(self) -> bool:
        """Whether it has the lease, as far as it knows, and nothing to do."""
        return bool(self.id) and self.process.is_idle


class Crashes(RuleBasedStateMachine):
    """One sweep with its drivers, their workers, and commands that leave requests.

    Attributes:
        acknowledged: The values of the reports that a driver knows to be kept, by trial and mark.
        attempted: The values that drivers have tried to write, by trial and mark.
        saved: The files of each checkpoint that a worker has tried to save, by path.
        screens: What each tracker's server has.
        violations: What should not have happened, noted at the moment when it did.
    """

    has_remote_store: ClassVar[bool] = False

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.stack = contextlib.ExitStack()
        self.folder = Path(self.stack.enter_context(tempfile.TemporaryDirectory(dir=ROOM, prefix="rltune-crash-")))
        self.name, self.url = self.choose_database()
        self.stack.enter_context(simulate(self.world))
        self.oracle = Oracle(self.world, self.url, self.name)
        self.stack.callback(self.oracle.close)
        self.stack.callback(self.world.close)
        self.world.on_commit, self.world.on_delete, self.world.on_cut = self.check_commit, self.check_delete, self.cut
        if self.has_remote_store:
            self.filesystem, self.root = PyFileSystem(FSSpecHandler(_make_memory())), f"/{self.folder.name}"
            self.filesystem.create_dir(self.root)
            self.stack.callback(self.filesystem.delete_dir, self.root)
        else:
            self.filesystem, self.root = LocalFileSystem(), str(self.folder / "sweep")
        self.drivers: list[Driver] = []
        self.workers: list[Worker] = []
        self.count = itertools.count(1)
        self.acknowledged: dict[tuple[int, int], float] = {}
        self.attempted: dict[tuple[int, int], set[float]] = {}
        self.requested: dict[int, bool] = {}
        self.saved: dict[str, dict[str, bytes]] = {}
        self.screens = {name: Screen() for name in ("left", "right")}
        self.violations: list[str] = []
        self.dropped: set[str] = set()
        self._num_checked, self._has_failed = 0, False
        self._holder: Process | None = None
        self._holder_id: str | None = None

    def choose_database(self) -> tuple[str, str]:
        """Return the sweep's name and the ledger's address."""
        return "sweep", f"sqlite:///{self.folder / 'ledger.db'}"

    def open_store(self, process: Process) -> Store:
        """Open the sweep's checkpoints in a process."""
        cache = self.folder / process.name if self.has_remote_store else None
        address = "memory://crashes" if self.has_remote_store else None
        return Store(Client(lambda: FaultyFileSystem(self.world, self.filesystem)), self.root, cache, address=address)

    def cut(self, process: Process) -> None:
        """Cut a process off from the database; a file of SQLite has no connections."""

    # -- what the processes do ----------------------------------------------------------------------------------------

    def perform(self, driver: Driver, function: Callable[[], None]) -> None:
        """Let a driver do something, and note an error that no fault explains."""

        def guarded() -> None:
            try:
                function()
            except LeaseLostError:
                # A driver that stood still before it wrote into the bucket may do so when its successor has the lease.
                # Both end then, and the next one goes on.
                if self.holds_lease(driver) and not self.is_superseded(driver):
                    self.violations.append(f"{driver.process.name} lost a lease that nobody took")
                driver.process.leave()
            except StudyUnavailableError:
                driver.process.leave()  # Another driver has the lease, or its database does not answer.
            except (SQLAlchemyError, RltuneError, OSError) as error:
                if not driver.process.was_struck and "lock" not in str(error):
                    self.violations.append(f"{driver.process.name}: {error!r}")

        driver.process.run(guarded)

    def holds_lease(self, driver: Driver) -> bool:
        """Return whether the ledger's row names a driver."""
        return driver.lease is None or self.oracle.read_holder() == driver.lease.id

    def begin(self, driver: Driver) -> None:
        """Open the ledger, take the lease, and go on with all unfinished trials."""
        driver.store = self.open_store(driver.process)
        try:
            ledger = Ledger(self.url, self.name)
        except MissingSweepError:
            ledger = Ledger(self.url, self.name, create=True)
        lease = driver.lease = take_lease(ledger)
        driver.wish = next(self.count)
        write_settings(self.folder, {"wish": driver.wish}, ledger.key)
        if driver.store.address:
            driver.store.folder.mkdir(exist_ok=True)
            take(driver.store, lease.id)
            lease.find_successor = lambda: self.find_successor(driver)
            driver.process.spawn(lambda: self.watch(driver))
        ledger.change_sweep(folder=str(self.folder))
        driver.ledger, driver.id = ledger, lease.id
        driver.chores = SimulatedChores(self.world)
        driver.retention = Retention(driver.store, ledger.require_ownership)
        sweep = SweepDescription(self.name, ledger.sweep().key, Path(), ledger, "")
        trackers = [ScreenTracker(sweep, self.world, name, screen) for name, screen in self.screens.items()]
        driver.feeds = Feeds(ledger, driver.store, trackers)
        driver.retention.drop_unnamed(ledger.trials.records())
        driver.chores.add(driver.retention.drop_pending)
        for record in ledger.trials.records():
            if record.state == "RUNNING":
                self.begin_attempt(driver, record.number)

    def find_successor(self, driver: Driver) -> str | None:
        """Ask the bucket who drives the sweep, if a driver reaches it."""
        if self.world.now < driver.away_until:
            raise StoreUnavailableError("does not answer", "", "")
        return find_successor(driver.store, driver.lease.id)

    def is_superseded(self, driver: Driver) -> bool:
        """Return whether the bucket names another driver as the last one."""
        with self.world.observed():
            stored = self.read_file(HISTORY) if driver.store and driver.store.address else None
        return bool(stored) and stored.decode().split()[0] != driver.lease.id

    def watch(self, driver: Driver) -> None:
        """Ask every few seconds whether a driver still owns the sweep, as its housekeeping does."""
        while not (driver.id and driver.ledger.has_lost_ownership()):
            assert self.world.running is not None
            self.world.running.wait(lambda: False, RENEW_S)
        driver.process.leave()

    def begin_attempt(self, driver: Driver, number: int) -> None:
        """Start a worker that goes on with a trial from its newest checkpoint."""
        record = driver.ledger.trials.start(number)
        attempt = f"{next(self.count):04d}"
        driver.retention.drop_unnamed([record])
        driver.chores.add(driver.retention.drop_pending)
        whole = [named for named in (record.latest, record.checkpoint) if driver.store.has_all_files(named)]
        newest = max(whole, key=lambda named: named.sequence, default=None)
        process = self.world.start_process(f"worker-{number}-{attempt}", driver.process.host)
        worker = driver.workers[number] = Worker(process, number, attempt, newest.env_steps if newest else 0)
        self.workers.append(worker)

    def save(self, worker: Worker, kind: str, value: float) -> CheckpointRecord:
        """Save a checkpoint, as a worker does."""
        store, path = self.open_store(worker.process), f"trials/{worker.number}/{worker.attempt}/{kind}-{worker.steps}"
        files = {"state.json": json.dumps({"env_steps": worker.steps}).encode(), "policy/weights": b"%f" % value}
        with store.make_draft(path) as draft:
            for name, content in files.items():
                (draft / name).parent.mkdir(exist_ok=True)
                (draft / name).write_bytes(content)
            self.saved[path] = files
            digest = store.save(draft, path)
        return CheckpointRecord(path, worker.steps, value, digest)

    def train(self, worker: Worker, saves: Collection[str], is_brief: bool) -> None:
        """Train for a while, save checkpoints, and report where a mark is reached."""
        worker.steps += 50 if is_brief or worker.steps % 100 else 100
        value = float(next(self.count))
        records = {FIELDS[kind]: self.save(worker, kind, value) for kind in saves}
        is_report = worker.steps in MARKS
        if is_report or records:
            report = Report(worker.number, worker.steps, value, {"score": value}) if is_report else None
            worker.messages.append((report, records))

    def record(self, driver: Driver, worker: Worker) -> None:
        """Record what a worker has reported, and drop the checkpoints that it replaces."""
        (report, named), trials = worker.messages.pop(0), driver.ledger.trials
        before = trials.record(worker.number)
        sequence = 1 + max((old.sequence for old in (before.checkpoint, before.latest) if old), default=0)
        named = {name: replace(new, sequence=sequence) for name, new in named.items()}
        if report is None:
            trials.change(worker.number, **named)
        else:
            place = (report.number, report.nominal_steps)
            self.attempted.setdefault(place, set()).add(report.score)
            if trials.add_report(report, named):
                self.acknowledged[place] = report.score
        driver.feeds.wake()
        now = trials.record(worker.number)
        driver.retention.drop((before.checkpoint, before.latest), keep=(now.checkpoint, now.latest))
        driver.chores.add(driver.retention.drop_pending)

    def end(self, driver: Driver, number: int) -> None:
        """End a trial, and drop the checkpoints that nobody needs any more."""
        worker = driver.workers.pop(number)
        worker.process.kill()
        ended = driver.ledger.trials.end(number, "COMPLETE" if worker.steps >= MARKS[-1] else "PRUNED", "done")
        driver.feeds.wake()
        driver.retention.drop_unnamed([ended])
        driver.chores.add(driver.retention.drop_pending)

    def propose(self, driver: Driver) -> None:
        """Begin a trial, of a request where one waits."""
        trials, (request, *_) = driver.ledger.trials, [*driver.ledger.read_requests(ENQUEUE), None]
        params = {"request": request.id} if request else {}
        try:
            record = trials.add(params, [1], request.id if request else None, drawn={})
        except (SQLAlchemyError, OSError):
            driver.process.leave()  # A proposal that cannot be written ends the driver.
            raise
        self.begin_attempt(driver, record.number)

    def leave(self, driver: Driver) -> None:
        """End a driver in good order: it gives the lease back."""
        for worker in driver.workers.values():
            worker.process.kill()
        driver.chores.wait(10.0)
        driver.feeds.close("KILLED", 10.0)
        driver.lease.release()
        driver.process.leave()

    # -- rules --------------------------------------------------------------------------------------------------------

    @initialize(host=HOST, fault=FAULT, num_reports=st.integers(0, 4))
    def begin_sweep(self, host: str, fault: Fault, num_reports: int) -> None:
        """Start the first driver, which makes the ledger, and let its trials report for a while."""
        self.start_driver(host, fault)
        for number in range(num_reports):
            if number == 2:
                self.let_driver_propose(0, None)
            self.let_driver_work(0, number // 2, ("best", "latest"), False, None, None)

    @rule(host=HOST, fault=FAULT)
    def start_driver(self, host: str, fault: Fault) -> None:
        """Start a driver, which waits for the lease and then goes on with all trials."""
        if sum(not driver.process.is_dead for driver in self.drivers) < MAX_DRIVERS:
            driver = Driver(self.world.start_process(f"driver-{len(self.drivers)}", host))
            self.drivers.append(driver)
            driver.process.fault = fault
            self.perform(driver, lambda: self.begin(driver))

    def choose(self, index: int, fault: Fault = None) -> Driver | None:
        """Choose one of the drivers that can do something, and let a fault meet it; start one where there is none.

        A driver that has lost its lease without noticing is one of them.
        """
        if not any(driver.is_idle for driver in self.drivers):
            self.start_driver(HOSTS[index % 2], None)
            self.world.advance(LEASE_S + 5.0)
        idle = [driver for driver in self.drivers if driver.is_idle]
        if not idle:
            return None
        driver = idle[index % len(idle)]
        driver.process.fault = fault
        return driver

    @rule(index=INDEX, fault=FAULT)
    def let_driver_propose(self, index: int, fault: Fault) -> None:
        """Begin a trial."""
        if (driver := self.choose(index, fault)) and len(driver.workers) < MAX_TRIALS:
            self.perform(driver, lambda: self.propose(driver))

    @rule(index=INDEX, which=INDEX, saves=SAVES, is_brief=st.booleans(), fault=FAULT, worker_fault=FAULT)
    def let_driver_work(
        self, index: int, which: int, saves: Collection[str], is_brief: bool, fault: Fault, worker_fault: Fault
    ) -> None:
        """Let one of a driver's workers train, and record what it reports; begin and end trials for that."""
        driver = self.choose(index)
        for worker in list(driver.workers.values()) if driver else ():
            if worker.steps >= MARKS[-1] and not worker.messages and driver.is_idle:
                self.perform(driver, lambda worker=worker: self.end(driver, worker.number))
        if driver and not driver.workers and driver.is_idle:
            self.perform(driver, lambda: self.propose(driver))
        if driver and driver.workers and driver.is_idle:
            worker = sorted(driver.workers.values(), key=lambda worker: worker.number)[which % len(driver.workers)]
            driver.process.fault, worker.process.fault = fault, worker_fault
            self.let_train(worker, saves, is_brief)
            while worker.messages and driver.is_idle:
                self.perform(driver, lambda: self.record(driver, worker))

    @rule(index=INDEX, saves=SAVES, is_brief=st.booleans())
    def let_worker_train(self, index: int, saves: Collection[str], is_brief: bool) -> None:
        """Let a worker train of which nothing is recorded yet, or whose driver has gone."""
        if self.workers:
            self.let_train(self.workers[-1 - index % len(self.workers)], saves, is_brief)

    def let_train(self, worker: Worker, saves: Collection[str], is_brief: bool) -> None:
        """Let a worker train if it can."""
        if worker.process.is_idle and worker.steps < MARKS[-1]:

            def guarded() -> None:
                # A full disk fails the trial. A worker whose driver has gone finds its folder removed.
                with contextlib.suppress(OSError):
                    self.train(worker, saves, is_brief)

            worker.process.run(guarded)

    @rule(index=INDEX, which=INDEX, ends=st.booleans(), fault=FAULT)
    def let_driver_end_attempt(self, index: int, which: int, ends: bool, fault: Fault) -> None:
        """End a trial of which every message is recorded, or begin another attempt, whose worker may live on."""
        if driver := self.choose(index, fault):
            workers = [worker for worker in driver.workers.values() if worker.steps and not worker.messages]
            if workers:
                act, number = self.end if ends else self.begin_attempt, workers[which % len(workers)].number
                self.perform(driver, lambda: act(driver, number))

    @rule(host=HOST, fault=FAULT)
    def leave_request(self, host: str, fault: Fault) -> None:
        """Leave a request, as the command does."""
        process = self.world.start_process("command", host)
        process.fault = fault

        def ask() -> None:
            with contextlib.suppress(RltuneError, SQLAlchemyError):
                ledger = Ledger(self.url, self.name)
                self.requested[ledger.add_request(ENQUEUE, {}, "maria@host")] = True
                ledger.close()
            process.leave()

        process.run(ask)

    @rule(index=INDEX, fault=FAULT)
    def end_sweep(self, index: int, fault: Fault) -> None:
        """End the sweep as a driver has settled it; a later driver extends it."""
        if driver := self.choose(index, fault):
            self.perform(driver, lambda: driver.ledger.change_sweep(status="complete", command=str(driver.wish)))
            if driver.is_idle:
                self.perform(driver, lambda: self.leave(driver))

    @rule(seconds=st.sampled_from([1.0, 4.0, 12.0, 30.0]))
    def pass_time(self, seconds: float) -> None:
        """Let time pass; drivers renew their leases meanwhile."""
        self.world.advance(seconds)

    def choose_process(self, index: int) -> Process | None:
        """Choose one of the processes that live, the newest first."""
        living = [process for process in reversed(self.world.processes) if not process.is_dead]
        return living[index % len(living)] if living else None

    @rule(index=INDEX, act=st.sampled_from(["continue", "stop", "suspend", "jump back", "jump ahead", "leave", "kill"]))
    def interfere(self, index: int, act: str) -> None:
        """Kill, stop or continue a process between two of its writes, set its clock, or let it end by itself."""
        process = self.choose_process(index)
        driver = next((driver for driver in self.drivers if driver.process is process), None)
        if process is None:
            return
        if act == "kill":
            process.kill()
        elif act == "continue":
            process.go_on()
        elif act.startswith("jump"):
            process.wall_offset += -600.0 if act == "jump back" else 600.0
        elif act == "leave" and driver and driver.is_idle:
            self.perform(driver, lambda: self.leave(driver))
        elif not process.is_stopped:
            process.stop(suspends=act == "suspend")
        self.world.settle()

    @rule(
        index=INDEX,
        host=HOST,
        writes=st.integers(0, 9),
        fault=st.sampled_from(["stop", "suspend"]),
        rivals=st.booleans(),
    )
    def replace_driver(self, index: int, host: str, writes: int, fault: str, rivals: bool) -> None:
        """Stop the holder of the lease, in the middle of its work or before; another one takes over; it goes on."""
        if (driver := self.choose(index)) is None:
            return
        if driver.workers and writes:
            driver.process.fault = (writes - 1, fault)
            self.perform(driver, lambda: self.begin_attempt(driver, min(driver.workers)))
        if not driver.process.is_stopped:
            driver.process.stop(suspends=fault == "suspend")
        self.start_driver(host, None)
        if rivals:
            self.start_driver(host, (0, "slow"))
        self.world.advance(LEASE_S + 15.0)
        for _ in range(2):
            self.let_driver_work(0, 0, ("best", "latest"), False, None, None)
        driver.process.go_on()
        self.world.settle()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check_commit(self, process: Process, statements: list[str]) -> None:
        """Note a transaction of a driver that has lost its lease."""
        driver = next((driver for driver in self.drivers if driver.process is process), None)
        words = [statement.replace("rltune.", "").split() for statement in statements]
        tables = {"sweep_trials", "reports", "deliveries", "trial_deliveries"}
        writes = [part for part in words if part[0] != "CREATE" and tables & set(part[1:3])]
        holder_id = self.oracle.read_holder()
        if holder_id != self._holder_id:
            previous, self._holder, self._holder_id = self._holder, process, holder_id
            is_locked = any(other.holds_transaction for other in self.world.processes if other is not process)
            if previous and not (is_locked or previous.was_held_up):
                self.violations.append(f"{process.name} took the lease that {previous.name} renews")
        if driver and writes and not driver.process.was_held_up and self.world.now > driver.superseded_at + 2 * RENEW_S:
            self.violations.append(f"{process.name} went on after another machine took the sweep over: {writes[0]}")
        if driver and writes and self.oracle.read_holder() != driver.id:
            self.violations.append(f"{process.name} wrote without the lease: {writes[0]}")

    def check_delete(self, process: Process, path: str) -> None:
        """Note a checkpoint that is dropped, which a worker must not do."""
        self.dropped |= {name for name in self.saved if path == f"{self.root}/{name}"}
        if process.name.startswith("worker") and path in (f"{self.root}/{name}" for name in self.saved):
            self.violations.append(f"{process.name} dropped {path}")

    @invariant()
    def nothing_is_lost(self) -> None:
        """Hold all that must hold at any time, where anything was written since the last time."""
        if self.world.num_writes != self._num_checked:
            self._num_checked, self._has_failed = self.world.num_writes, True
            self.check_all()
            self._has_failed = False

    def check_all(self) -> None:
        """Hold all that must hold at any time."""
        self.nothing_was_done_that_should_not()
        self.every_report_is_kept_once()
        self.every_checkpoint_is_whole()
        self.every_request_is_seen_to_once()
        self.no_curve_has_a_gap()
        self.no_wish_is_forgotten()

    def nothing_was_done_that_should_not(self) -> None:
        """Hold what was seen as it happened."""
        assert not self.violations, self.violations

    def every_report_is_kept_once(self) -> None:
        """Hold that acknowledged reports are in the ledger, and no others than drivers wrote."""
        reports = self.oracle.read_reports()
        assert len(reports) == len(set(reports)), "a report is there twice"
        values = {(number, mark): value for number, mark, value in reports}
        lost = {place: value for place, value in self.acknowledged.items() if values.get(place) != value}
        assert not lost, f"lost or changed: {lost}"
        foreign = {place: value for place, value in values.items() if value not in self.attempted.get(place, ())}
        assert not foreign, f"nobody wrote {foreign}"

    def every_checkpoint_is_whole(self) -> None:
        """Hold that the store has each checkpoint that the ledger names, and nothing that only looks like one."""
        named = self.oracle.read_checkpoints()
        for path, saved in self.saved.items():
            # A worker that was given up may still write a manifest where its files were dropped; nobody names it.
            if path in named or (path not in self.dropped and self.read_file(f"{path}/manifest.json") is not None):
                files = {name: self.read_file(f"{path}/{name}") for name in saved}
                assert files == saved, f"{path} is not whole: {files}"
        for path in named:
            assert self.read_file(f"{path}/manifest.json") is not None, f"{path} has no manifest"

    def every_request_is_seen_to_once(self) -> None:
        """Hold that a request that was left is there, and is taken with exactly one trial."""
        taken = self.oracle.read_requests()
        assert set(self.requested) <= set(taken), "a request is lost"
        trials = self.oracle.read_enqueued()
        assert sorted(trials) == sorted(request for request, is_taken in taken.items() if is_taken)

    def no_curve_has_a_gap(self, is_whole: bool = False) -> None:
        """Hold that every tracker has the beginning of each curve of the ledger; or all of it, and each trial's end."""
        curves: dict[int, dict[int, float]] = {}
        for number, mark, value in sorted(self.oracle.read_reports()):
            curves.setdefault(number, {})[mark] = value
        for name, screen in self.screens.items():
            for number, curve in screen.curves.items():
                first = dict(list(curves[number].items())[: len(curve)])
                assert curve == first, f"{name} has {curve} of trial {number}: {curves[number]}"
            if is_whole:
                assert screen.curves == curves, f"{name} lacks reports"
                assert set(screen.states) >= set(curves), f"{name} lacks trials"
                assert "RUNNING" not in screen.states.values(), f"{name} lacks ends: {screen.states}"

    def no_wish_is_forgotten(self) -> None:
        """Hold that a sweep counts as ended only if it has done what its settings say."""
        for status, command in self.oracle.read_status():
            if status == "complete":
                assert f"wish: {command}\n" in (self.folder / "config.yaml").read_text(), "an extension is forgotten"

    def read_file(self, name: str) -> bytes | None:
        """Read a file of the store, without the store."""
        try:
            with self.filesystem.open_input_stream(f"{self.root}/{name}") as stream:
                return bytes(stream.read())
        except FileNotFoundError:
            return None

    def teardown(self) -> None:
        """Hold that a new driver can finish the sweep, and that those who come back late change nothing."""
        try:
            if not self._has_failed:
                self.finish()
        finally:
            self.stack.close()

    def finish(self) -> None:
        """End all drivers but the stopped ones, and let a new one finish every trial."""
        for process in self.world.processes:
            process.fault, process.full_until, process.cut_until = None, -1.0, -1.0
            if not process.is_stopped or process.holds_transaction:
                process.kill()
        self.world.settle()
        last = Driver(self.world.start_process("last", "elsewhere"))
        self.drivers.append(last)
        self.perform(last, lambda: self.begin(last))
        self.world.advance(3 * LEASE_S)
        assert last.is_idle, "no driver can take the sweep over"
        for number, worker in list(last.workers.items()):
            while worker.steps < MARKS[-1]:
                self.let_train(worker, ("best", "latest"), False)
                self.perform(last, lambda worker=worker: self.record(last, worker))
            self.perform(last, lambda number=number: self.end(last, number))
        self.perform(last, lambda: last.feeds.close("FINISHED", 60.0))
        self.world.advance(60.0)
        self.check_all()
        self.no_curve_has_a_gap(is_whole=True)
        assert self.oracle.count_unfinished() == 0
        for process in self.world.processes:
            process.go_on()
        self.world.advance(LEASE_S)
        self.check_all()
        for driver in self.drivers[:-1]:
            for worker in [worker for worker in driver.workers.values() if worker.messages]:
                if driver.is_idle:
                    self.perform(driver, lambda driver=driver, worker=worker: self.record(driver, worker))
        self.check_all()


class Oracle:
    """Reads the ledger's tables without the package.

    Args:
        url: The ledger's address.
        name: The sweep.
    """

    def __init__(self, world: World, url: str, name: str) -> None:
        self._world = world
        self._engine = create_engine(url, isolation_level="AUTOCOMMIT")
        self._name, self._schema = name, "" if url.startswith("sqlite") else "rltune."
        self._trials = f"FROM {self._schema}sweep_trials t JOIN {self._schema}sweeps s ON s.id = t.sweep_id"

    def close(self) -> None:
        """Give the connection back."""
        self._engine.dispose()

    def _read(self, statement: str) -> list[Any]:
        try:
            with self._world.observed(), self._engine.connect() as connection:
                return list(connection.execute(text(f"{statement} WHERE s.name = :name"), {"name": self._name}))
        except SQLAlchemyError as error:
            if "no such table" in str(error) or "does not exist" in str(error):
                return []
            raise

    def read_holder(self) -> str | None:
        """Read the id of the driver that may write."""
        schema = self._schema
        rows = self._read(f"SELECT l.driver_id FROM {schema}leases l JOIN {schema}sweeps s ON s.id = l.sweep_id")
        return rows[0][0] if rows else None

    def read_status(self) -> list[tuple[str, str]]:
        """Read the sweep's status, and the wish with which it has ended."""
        return [tuple(row) for row in self._read(f"SELECT s.status, s.command FROM {self._schema}sweeps s")]

    def read_reports(self) -> list[tuple[int, int, float]]:
        """Read trial, mark and value of every report."""
        joined = f"{self._trials} JOIN {self._schema}reports r ON r.trial_id = t.id"
        return [tuple(row) for row in self._read(f"SELECT t.number, r.nominal_steps, r.score {joined}")]

    def read_checkpoints(self) -> set[str]:
        """Read the paths of the checkpoints that the ledger names."""
        rows = self._read(f"SELECT t.checkpoint, t.latest {self._trials}")
        return {json.loads(named)["path"] for row in rows for named in row if named}

    def read_requests(self) -> dict[int, bool]:
        """Read whether each request was taken."""
        rows = self._read(
            f"SELECT r.id, r.taken_s FROM {self._schema}requests r JOIN {self._schema}sweeps s ON s.id = r.sweep_id"
        )
        return {int(row[0]): row[1] is not None for row in rows}

    def read_enqueued(self) -> list[int]:
        """Read the requests that trials came from."""
        params = [json.loads(row[0]) for row in self._read(f"SELECT t.params {self._trials}")]
        return [content["request"] for content in params if "request" in content]

    def count_unfinished(self) -> int:
        """Count the trials that have not ended."""
        return sum(row[0] == "RUNNING" for row in self._read(f"SELECT t.state {self._trials}"))


class SharedServer(Crashes):
    """The same with the ledger in PostgreSQL."""

    address: ClassVar[str] = ""
    names: ClassVar[Iterator[int]] = itertools.count()

    def choose_database(self) -> tuple[str, str]:
        """Return a new sweep's name in the database that all share."""
        return f"sweep-{next(self.names)}", self.address

    def __init__(self) -> None:
        super().__init__()
        self.world.on_idle = self.cut
        self.server = self.stack.enter_context(contextlib.closing(_connect(self.address)))

    def cut(self, process: Process) -> None:
        """Have the server end a process's connections, which rolls its transactions back."""
        for connection in process.connections:
            if not connection.closed:
                self.server.execute("SELECT pg_terminate_backend(%s, 1000)", [connection.info.backend_pid])
        process.connections.clear()
        process.transactions.clear()


def _connect(url: str) -> Any:
    import psycopg

    return psycopg.connect(url.replace("+psycopg", ""), autocommit=True)


def _make_memory() -> Any:
    from fsspec.implementations.memory import MemoryFileSystem

    return MemoryFileSystem()


class CopiedFolder(Crashes):
    """The same with copies of the sweep's folder, which become sweeps of their own."""

    @rule(host=HOST, writes=st.integers(0, 12), is_moved=st.booleans())
    def copy_folder(self, host: str, writes: int, is_moved: bool) -> None:
        """Copy the folder, and drive the copy; its first driver is killed at some write."""
        if not (self.folder / "config.yaml").exists():
            return
        key, copy = read_identity(self.folder).key, self.folder / f"copy-{next(self.count)}"
        copy.mkdir()
        shutil.copy(self.folder / "config.yaml", copy)
        copy_ledger(self.folder / "ledger.db", copy / "ledger.db")
        for fault in ((writes, "kill"), None):
            process = self.world.start_process(copy.name, host)
            process.fault = fault
            process.run(lambda copy=copy: self.drive_copy(copy))
            process.kill()
            self.world.settle()
            if is_moved and fault and read_identity(copy).key != key:
                copy = copy.rename(copy.with_name(f"{copy.name}-moved"))
        assert read_identity(copy).key != key, "the copy has the original's key"
        with closing(sqlite3.connect(copy / "ledger.db")) as ledger:
            assert ledger.execute("SELECT key FROM sweeps").fetchall() == [(read_identity(copy).key,)]
            assert ledger.execute("SELECT count(*) FROM deliveries, trial_deliveries").fetchall() == [(0,)]
        shutil.rmtree(copy)

    def drive_copy(self, copy: Path) -> None:
        """Begin a copy in the order of a driver."""
        ledger = Ledger(f"sqlite:///{copy / 'ledger.db'}")
        original = find_original(copy, ledger.sweep().folder)
        take_lease(ledger, make_key() if original else None)
        if original:
            ledger.forget_mlflow()
        write_settings(copy, {}, ledger.key)
        ledger.change_sweep(folder=str(copy))


class RemoteStore(Crashes):
    """The same with the checkpoints in remote storage, where another machine may take the sweep over."""

    has_remote_store = True

    @rule(host=HOST, away_s=st.sampled_from([0.0, 5.0, 40.0]))
    def take_over(self, host: str, away_s: float) -> None:
        """Let another machine go on with the stored ledger, while the drivers may not reach the bucket."""
        process = self.world.start_process("rival", host)
        for driver in self.drivers:
            if driver.id and not driver.process.is_dead:
                driver.away_until = self.world.now + away_s
                driver.superseded_at = min(driver.superseded_at, driver.away_until)
        store = self.open_store(process)
        store.folder.mkdir(exist_ok=True)
        process.run(lambda: take(store, f"rival-{next(self.count)}"))
        process.kill()


def search(machine: type[Crashes]) -> None:
    """Search for a failure for a third of the time, since there are three machines."""
    end, number = time.monotonic() + CRASH_S / 3, SEED
    while time.monotonic() < end:
        print(f"RLTUNE_CRASH_SEED={number}")
        seeded = seed(number)(type(machine.__name__, (machine,), {}))
        run_state_machine_as_test(seeded, settings=SETTINGS)
        number += 1


pytestmark = [pytest.mark.slow, pytest.mark.timeout(CRASH_S + 1500)]


@pytest.mark.parametrize("machine", [CopiedFolder, RemoteStore])
def test_nothing_is_lost_whatever_crashes(machine: type[Crashes]) -> None:
    search(machine)


@pytest.mark.nightly
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
def test_nothing_is_lost_in_postgresql_whatever_crashes() -> None:
    with postgres.server() as address:
        SharedServer.address = postgres.database(address, "crashes")
        search(SharedServer)
