"""Which machine has a sweep's newest state, where no ledger is shared."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem

from rltune.checkpoints.clients import Client
from rltune.checkpoints.store import Store, open_store
from rltune.config.settings_file import FORMAT
from rltune.errors import StudyError
from rltune.ledger import handover
from rltune.ledger.handover import (
    HISTORY,
    fetch_sweep,
    find_successor,
    hand_over,
    has_newest,
    is_stored,
    read_stored_history,
    take,
)

pytestmark = pytest.mark.fast
Machine = Callable[[str], Store]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    """The stores of one sweep by the names of the machines, which share a storage in memory."""
    memory = fsspec.filesystem("memory")
    filesystem = PyFileSystem(FSSpecHandler(memory))

    def make(name: str) -> Store:
        return Store(Client(lambda: filesystem), "/handed", tmp_path / name, address="memory://handed")

    yield make
    if memory.exists("/handed"):
        memory.rm("/handed", recursive=True)


def drive(store: Store, driver_id: str, *, ends: bool = True, take_over: bool = False) -> None:
    """Continue a sweep on a machine and add the driver's id to its ledger; an end stores it."""
    fetch_sweep(store, for_driver=True, take_over=take_over)
    take(store, driver_id)
    (store.folder / "config.yaml").write_text(json.dumps({"format": FORMAT, "storage": "memory://"}))
    store.publish(["config.yaml"])
    with (store.folder / "ledger.db").open("a") as ledger:
        ledger.write(f"{driver_id} ")
    if ends:
        store.publish(["ledger.db"])
        hand_over(store, driver_id)


def read_ledger(store: Store) -> str:
    return (store.folder / "ledger.db").read_text().strip()


@pytest.fixture
def first(machine: Machine) -> Store:
    """The machine where the sweep has begun; its driver has ended."""
    store = machine("first")
    store.folder.mkdir()
    drive(store, "d1")
    return store


def test_machines_take_turns(first: Store, machine: Machine) -> None:
    second = machine("second")
    for store, driver_id in ((second, "d2"), (second, "d3"), (first, "d4"), (machine("third"), "d5"), (second, "d6")):
        drive(store, driver_id)
    assert read_ledger(second) == "d1 d2 d3 d4 d5 d6"
    assert (has_newest(first), has_newest(second)) == (False, True)


def test_a_resume_is_refused_while_a_driver_works_elsewhere(first: Store, machine: Machine) -> None:
    drive(first, "d2", ends=False)
    for store in (machine("second"), machine("third")):
        fetch_sweep(store)
        assert not (store.folder / "ledger.db").exists(), "the stored ledger is an old one"
        with pytest.raises(StudyError) as refused:
            fetch_sweep(store, for_driver=True)
        assert (refused.value.key, "take_over=true" in refused.value.fix) == ("sweep", True)
        assert refused.value.exit_code == 75, "the driver elsewhere may end"
    drive(first, "d3")
    assert read_ledger(first) == "d1 d2 d3", "the driver was killed, and its machine goes on"


def test_the_stored_ledger_continues_if_a_machine_is_gone(first: Store, machine: Machine) -> None:
    drive(first, "d2", ends=False)
    second = machine("second")
    drive(second, "d3", take_over=True)
    assert read_ledger(second) == "d1 d3"
    assert find_successor(first, "d2")
    with pytest.raises(StudyError) as refused:
        fetch_sweep(first, for_driver=True)
    assert refused.value.key == "sweep"
    assert read_ledger(first) == "d1 d2", "neither ledger is lost"
    first.folder.rename(first.folder.with_name("aside"))
    drive(first, "d4")
    assert read_ledger(first) == "d1 d3 d4"


def test_of_two_ledgers_the_one_here_can_be_chosen(first: Store, machine: Machine) -> None:
    drive(first, "d2", ends=False)
    second = machine("second")
    drive(second, "d3", take_over=True)
    for name in (HISTORY, "ledger.db"):
        first.delete(name)
    drive(first, "d4")
    assert read_ledger(first) == "d1 d2 d4"


def test_what_takes_over_is_the_stored_ledger_and_no_old_copy(first: Store, machine: Machine) -> None:
    second = machine("second")
    fetch_sweep(second)
    drive(first, "d2")
    drive(first, "d3", ends=False)
    drive(second, "d4", take_over=True)
    assert read_ledger(second) == "d1 d2 d4"


def test_a_reader_keeps_the_changes_of_its_machine(first: Store, machine: Machine) -> None:
    second = machine("second")
    fetch_sweep(second)
    drive(first, "d2")
    fetch_sweep(second)
    assert read_ledger(second) == "d1 d2"
    drive(second, "d3", ends=False)
    drive(machine("third"), "d4", take_over=True)
    fetch_sweep(second)
    assert read_ledger(second) == "d1 d2 d3"


def test_a_driver_that_was_taken_over_hands_nothing_over(first: Store, machine: Machine) -> None:
    drive(first, "d2", ends=False)
    second = machine("second")
    drive(second, "d3", ends=False, take_over=True)
    hand_over(first, "d2")
    assert read_stored_history(first)[-1].split()[0] == "d3"
    assert not is_stored(read_stored_history(first))


def test_a_driver_killed_while_it_took_the_sweep_goes_on(first: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    for driver_id in ("d2", "d3"):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "publish", die)
            with pytest.raises(KeyboardInterrupt):
                take(first, driver_id)
        assert has_newest(first)


def test_a_local_sweep_leaves_no_mark(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take(store, "d1")
    hand_over(store, "d1")
    fetch_sweep(store, for_driver=True)
    assert not find_successor(store, "d1")
    assert list(tmp_path.iterdir()) == []


def test_a_ledger_fetched_while_another_machine_takes_it(
    first: Store, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    second, third = map(machine, ("second", "third"))
    fetch_sweep(third)
    read = Store.read

    def read_slowly(self: Store, name: str, **options: Any) -> bytes | None:
        content = read(self, name, **options)
        if name == "ledger.db" and self.folder == second.folder:
            monkeypatch.setattr(Store, "read", read)
            take(third, "d3")
        return content

    monkeypatch.setattr(Store, "read", read_slowly)
    fetch_sweep(second)
    assert not has_newest(second), "the third machine goes on with the same ledger"
    assert has_newest(third)


@pytest.mark.parametrize("for_driver", [False, True])
def test_a_ledger_that_a_driver_has_opened_is_not_replaced(
    first: Store, machine: Machine, monkeypatch: pytest.MonkeyPatch, for_driver: bool
) -> None:
    """Of two commands on one machine that fetch a sweep, the later one sees what the earlier one has fetched."""
    second = machine("second")
    fetch_sweep(second)
    drive(first, "d2")
    has_looked, has_opened = threading.Event(), threading.Event()

    def look(store: Store) -> bool:
        is_newest = has_newest(store)
        if threading.current_thread() is thread:
            has_looked.set()
            has_opened.wait(0.3)
        return is_newest

    monkeypatch.setattr(handover, "has_newest", look)
    thread = threading.Thread(target=fetch_sweep, args=(second,), kwargs={"for_driver": for_driver})
    thread.start()
    assert has_looked.wait(30)
    fetch_sweep(second, for_driver=True)
    with (second.folder / "ledger.db").open("a") as opened:
        has_opened.set()
        thread.join()
        opened.write("and a report")
    assert read_ledger(second) == "d1 d2 and a report"
