"""Which machine has a sweep's newest state, where no ledger is shared."""

from __future__ import annotations

import functools
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
from rltune.ledger import handover
from rltune.ledger.handover import (
    DRIVER_FILE,
    follow_sweep,
    hand_over,
    has_newest,
    is_taken_over,
    read_stored_driver,
    refresh_sweep,
    take,
)

pytestmark = pytest.mark.fast


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Store]]:
    """The stores of one sweep by the names of the machines, which share a storage in memory."""
    memory = fsspec.filesystem("memory")
    filesystem = PyFileSystem(FSSpecHandler(memory))

    def open_on(folder: Path, *_: Any) -> Store:
        return Store(Client(lambda: filesystem), "/handed", folder, address="memory://handed")

    def make(name: str) -> Store:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.yaml").write_text(json.dumps({"format": FORMAT, "storage": "memory://"}))
        return open_on(tmp_path / name)

    monkeypatch.setattr(handover, "find_store", open_on)
    monkeypatch.setattr(handover, "open_store", open_on)
    yield make
    memory.rm("/handed", recursive=True)


def test_the_machine_of_the_last_driver_has_the_newest_state(machine: Callable[[str], Store]) -> None:
    first, second = machine("first"), machine("second")
    assert has_newest(first), "no driver has begun"
    take(first, "d1")
    assert (has_newest(first), has_newest(second)) == (True, False)
    assert not is_taken_over(first, "d1")
    hand_over(first, "d1")
    second.fetch([DRIVER_FILE])
    assert has_newest(second)
    take(second, "d2")
    assert (has_newest(first), has_newest(second)) == (False, True)
    stored = read_stored_driver(first)
    assert stored is not None
    assert (stored.driver_id, stored.ended, stored.previous) == ("d2", False, "d1")


def test_a_driver_that_was_taken_over_hands_nothing_over(machine: Callable[[str], Store]) -> None:
    first, second = machine("first"), machine("second")
    take(first, "d1")
    second.fetch([DRIVER_FILE])
    take(second, "d2")
    assert is_taken_over(first, "d1")
    hand_over(first, "d1")
    stored = read_stored_driver(first)
    assert stored is not None
    assert (stored.driver_id, stored.ended) == ("d2", False)


def test_a_driver_killed_while_it_took_the_sweep_goes_on(
    machine: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object) -> None:
        raise KeyboardInterrupt

    first = machine("first")
    take(first, "d1")
    for driver_id in ("d2", "d3"):
        with monkeypatch.context() as patch:
            patch.setattr(Store, "publish", die)
            with pytest.raises(KeyboardInterrupt):
                take(first, driver_id)
        assert has_newest(first)


def test_a_damaged_mark_makes_no_other_state_newer(machine: Callable[[str], Store]) -> None:
    first = machine("first")
    first.write(DRIVER_FILE, b"{")
    assert read_stored_driver(first) is None
    assert has_newest(first)


def test_a_local_sweep_leaves_no_mark(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    take(store, "d1")
    hand_over(store, "d1")
    assert not is_taken_over(store, "d1")
    assert not (tmp_path / handover.DRIVER_FILE).exists()


def drive(store: Store, driver_id: str, *, ends: bool) -> None:
    """Take a sweep on a machine and write its ledger; an end stores it."""
    take(store, driver_id)
    (store.folder / "ledger.db").write_text(driver_id)
    if ends:
        store.publish(["ledger.db", "config.yaml"])
        hand_over(store, driver_id)


def test_a_ledger_fetched_while_another_machine_takes_it(
    machine: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second, third = map(machine, ("first", "second", "third"))
    drive(first, "d1", ends=True)
    follow_sweep(third.folder)
    read = Store.read

    def read_slowly(self: Store, name: str, **options: Any) -> bytes | None:
        content = read(self, name, **options)
        if name == "ledger.db" and self.folder == second.folder:
            monkeypatch.setattr(Store, "read", read)
            take(third, "d3")
        return content

    monkeypatch.setattr(Store, "read", read_slowly)
    follow_sweep(second.folder)
    assert not has_newest(second), "the third machine goes on with the same ledger"
    assert has_newest(third)


@pytest.mark.parametrize("was_killed", [False, True])
def test_a_takeover_that_was_given_up_leaves_no_newest_state(
    machine: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch, was_killed: bool
) -> None:
    first, second = map(machine, ("first", "second"))
    drive(first, "d1", ends=True)
    take(first, "d2")
    follow_sweep(second.folder, take_over=True)
    if was_killed:
        with monkeypatch.context() as patch:
            patch.setattr(Store, "publish", lambda *_: None)
            take(second, "d3")
    (first.folder / "ledger.db").write_text("d2")
    first.publish(["ledger.db"])
    hand_over(first, "d2")
    assert not has_newest(second), "the first machine has gone on and ended"
    follow_sweep(second.folder)
    assert (second.folder / "ledger.db").read_text() == "d2"


@pytest.mark.parametrize("other", ["reader", "driver"])
def test_a_ledger_that_a_driver_has_opened_is_not_replaced(
    machine: Callable[[str], Store], monkeypatch: pytest.MonkeyPatch, other: str
) -> None:
    """Of two commands on one machine that fetch a sweep, the later one sees what the earlier one has fetched."""
    first, second = map(machine, ("first", "second"))
    drive(second, "d0", ends=True)
    drive(first, "d1", ends=True)
    has_looked, has_opened = threading.Event(), threading.Event()

    def look(store: Store) -> bool:
        is_newest = has_newest(store)
        if threading.current_thread() is thread:
            has_looked.set()
            has_opened.wait(0.3)
        return is_newest

    monkeypatch.setattr(handover, "has_newest", look)
    fetch: Callable[[], object] = functools.partial(follow_sweep, second.folder)
    if other == "reader":
        fetch = functools.partial(refresh_sweep, second.folder, "memory://")
    thread = threading.Thread(target=fetch)
    thread.start()
    assert has_looked.wait(30)
    follow_sweep(second.folder)
    with (second.folder / "ledger.db").open("a") as opened:
        has_opened.set()
        thread.join()
        opened.write(" and a report")
    assert (second.folder / "ledger.db").read_text() == "d1 and a report"
