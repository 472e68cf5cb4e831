"""A sweep's folder follows the newest state on any machine, and its resume command can be typed."""

from __future__ import annotations

import functools
import json
import shlex
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from pyarrow.fs import FSSpecHandler, PyFileSystem

from rltune.checkpoints.handover import hand_over, has_newest, take
from rltune.checkpoints.store import Store
from rltune.config.settings_file import FORMAT
from rltune.ledger import sweep_folder
from rltune.ledger.sweep_folder import follow_sweep, is_half_made, make_resume_command, refresh_sweep


@pytest.mark.parametrize("name", ["config.yaml", "trials", "somebody's.txt"])
def test_a_folder_is_half_made_until_something_would_be_lost(name: str, tmp_path: Path) -> None:
    assert not is_half_made(tmp_path / "absent")
    assert is_half_made(tmp_path)
    for left in ("ledger.db", "ledger.db-wal", ".made-by", ".config.yaml"):
        (tmp_path / left).touch()
    assert is_half_made(tmp_path)
    (tmp_path / name).touch()
    assert not is_half_made(tmp_path)


def test_the_resume_command_names_a_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_resume_command(tmp_path / "outputs" / "mine").endswith("sweeps.resume sweep=mine")
    assert make_resume_command(tmp_path / "other" / "mine").endswith(f"sweep=mine output_dir={tmp_path / 'other'}")


TYPED = [
    ({}, "sweep=mine"),
    (
        {"storage": "s3://bucket/runs", "study": {"storage": "postgresql://host/rl"}},
        "sweep=mine storage=s3://bucket/runs",
    ),
    ({"storage": "s3://b/r?endpoint_override=http://x:1&scheme=http"}, None),
    (
        {"study": {"storage": "postgresql://***@host/rl"}, "tracking": {"uri": "http://h"}},
        "sweep=mine study.storage=...",
    ),
    ({"study": None, "tracking": {"uri": "http://***@host"}}, "sweep=mine tracking.uri=..."),
]


@pytest.mark.parametrize(("settings", "wanted"), TYPED)
def test_the_resume_command_has_what_an_empty_disk_needs(
    settings: dict[str, Any], wanted: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "outputs" / "mine"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(json.dumps({"format": FORMAT, **settings}))
    command = make_resume_command(folder)
    if wanted:
        assert command.partition("sweeps.resume ")[2] == wanted
    overrides = OverridesParser.create().parse_overrides(shlex.split(command)[3:])
    read = {override.key_or_group: override.value() for override in overrides}
    assert read["sweep"] == "mine"
    assert read.get("storage") == settings.get("storage")


@pytest.mark.parametrize("name", ["my outputs", "1e5", "null", "a=b,c", "it's", 'a "b"', "ü"])
def test_a_resume_command_is_typed_as_the_folder_is_named(name: str, tmp_path: Path) -> None:
    words = shlex.split(make_resume_command(tmp_path / name / name))[3:]
    read = {one.key_or_group: one.value() for one in OverridesParser.create().parse_overrides(words)}
    assert read == {"sweep": name, "output_dir": str(tmp_path / name)}


# -- a sweep whose ledger is a file, on several machines ---------------------------------------------------------------


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Store]]:
    """The stores of one sweep by the names of the machines, which share a storage in memory."""
    memory = fsspec.filesystem("memory")
    filesystem = PyFileSystem(FSSpecHandler(memory))

    def open_on(folder: Path, *_: Any) -> Store:
        return Store(filesystem, "/followed", folder, address="memory://followed")

    def make(name: str) -> Store:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / "config.yaml").write_text(json.dumps({"format": FORMAT, "storage": "memory://"}))
        return open_on(tmp_path / name)

    monkeypatch.setattr(sweep_folder, "find_store", open_on)
    monkeypatch.setattr(sweep_folder, "open_store", open_on)
    yield make
    memory.rm("/followed", recursive=True)


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
            has_opened.wait(2.0)
        return is_newest

    monkeypatch.setattr(sweep_folder, "has_newest", look)
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
