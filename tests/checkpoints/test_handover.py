"""Which machine has a sweep's newest state, where no ledger is shared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import fsspec
import pytest
from pyarrow.fs import FSSpecHandler, PyFileSystem

from rltune.checkpoints import handover
from rltune.checkpoints.handover import DRIVER_FILE, hand_over, has_newest, is_taken_over, read_stored_driver, take
from rltune.checkpoints.store import Store, open_store

pytestmark = pytest.mark.fast


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Callable[[str], Store]]:
    memory = fsspec.filesystem("memory")
    filesystem = PyFileSystem(FSSpecHandler(memory))

    def open_on(name: str) -> Store:
        (tmp_path / name).mkdir(exist_ok=True)
        return Store(filesystem, "/handed", tmp_path / name, address="memory://handed")

    yield open_on
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
