"""A sweep is locked for one driver, and its resume command can be typed."""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import json
import os
import shlex
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from rltune.config.settings_file import FORMAT
from rltune.study import sweep_folder
from rltune.study.sweep_folder import (
    DRIVER,
    claim_sweep,
    find_driver,
    is_driven_elsewhere,
    is_half_made,
    lock_sweep,
    make_resume_command,
)


@pytest.mark.parametrize("name", ["config.yaml", "ledger.db", "trials", "somebody's.txt"])
def test_a_folder_is_half_made_until_something_would_be_lost(name: str, tmp_path: Path) -> None:
    assert not is_half_made(tmp_path / "absent")
    assert is_half_made(tmp_path)
    for left in (".lock", ".processes", ".made-by", ".config.yaml"):
        (tmp_path / left).touch()
    assert is_half_made(tmp_path)
    (tmp_path / name).touch()
    assert not is_half_made(tmp_path)


def test_a_lock_keeps_others_out_and_is_given_back(tmp_path: Path) -> None:
    with lock_sweep(tmp_path) as first, lock_sweep(tmp_path) as second:
        assert (first, second) == (True, False)
    with lock_sweep(tmp_path) as again:
        assert again


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


# -- one driver, whatever host it is on --------------------------------------------------------------------------------


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats by the hundredth of a second."""
    for name, seconds in {"BEAT_S": 0.02, "SILENT_S": 0.2, "FREED_S": 60.0}.items():
        monkeypatch.setattr(sweep_folder, name, seconds)


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beats by the minute: who looks for one is 20 s late."""
    for name in ("BEAT_S", "SILENT_S"):
        monkeypatch.setattr(sweep_folder, name, 60.0)


def beat_elsewhere(folder: Path, beat: int = 0) -> None:
    """Beat once as a driver on another host, of whose lock this one knows nothing."""
    other = {"host": "far", "boot": "another", "pid": 1, "beat": beat}
    (folder / "draft").write_text(json.dumps(other))
    (folder / "draft").rename(folder / DRIVER)


@contextlib.contextmanager
def driver_elsewhere(folder: Path) -> Iterator[None]:
    """A driver on another host, until the end."""
    ended = threading.Event()

    def drive() -> None:
        for beat in itertools.count(1):
            beat_elsewhere(folder, beat)
            if ended.wait(0.02):
                return

    beat_elsewhere(folder)
    thread = threading.Thread(target=drive)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@pytest.mark.usefixtures("quick")
def test_a_driver_on_another_host_keeps_others_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_folder, "SILENT_S", 60.0)
    with driver_elsewhere(tmp_path), claim_sweep(tmp_path) as other:
        assert " far " in str(other)


@pytest.mark.usefixtures("quick")
def test_a_driver_whose_host_is_gone_keeps_nobody_out(tmp_path: Path) -> None:
    beat_elsewhere(tmp_path)
    began = time.monotonic()
    with claim_sweep(tmp_path) as other:
        assert other is None
        assert time.monotonic() - began >= 0.2, "clocks differ: it has to be watched"
        assert json.loads((tmp_path / DRIVER).read_text())["pid"] == os.getpid()
    assert not (tmp_path / DRIVER).exists()


@pytest.mark.usefixtures("quick")
def test_a_lock_that_outlives_its_host_is_waited_for(tmp_path: Path) -> None:
    """As NFS keeps one for its lease of 90 s."""
    beat_elsewhere(tmp_path)
    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        threading.Timer(0.5, lambda: fcntl.flock(lock, fcntl.LOCK_UN)).start()
        with claim_sweep(tmp_path) as other:
            assert other is None


@pytest.mark.usefixtures("slow")
def test_a_driver_on_this_host_is_refused_at_once(tmp_path: Path) -> None:
    with claim_sweep(tmp_path) as first:
        began = time.monotonic()
        with claim_sweep(tmp_path) as second:
            assert first is None
            assert second == f"on {socket.gethostname()} (process {os.getpid()})"
        assert time.monotonic() - began < 15
        assert (tmp_path / DRIVER).exists()


@pytest.mark.usefixtures("slow")
def test_a_killed_driver_of_this_host_keeps_nobody_waiting(tmp_path: Path) -> None:
    with claim_sweep(tmp_path):
        left = (tmp_path / DRIVER).read_text()
    (tmp_path / DRIVER).write_text(left)
    began = time.monotonic()
    with claim_sweep(tmp_path) as other:
        assert other is None
    assert time.monotonic() - began < 15


@pytest.mark.usefixtures("quick")
def test_a_driver_that_stood_still_learns_that_it_is_replaced(tmp_path: Path) -> None:
    taken = threading.Event()
    with claim_sweep(tmp_path, taken.set), driver_elsewhere(tmp_path):
        assert taken.wait(60)
    assert json.loads((tmp_path / DRIVER).read_text())["host"] == "far", "it is the other's now"


@pytest.mark.usefixtures("quick")
def test_a_driver_is_found_while_it_lives_and_not_after_a_kill(tmp_path: Path) -> None:
    assert find_driver(tmp_path) is None, "nobody ever drove it"
    with claim_sweep(tmp_path):
        assert find_driver(tmp_path) == f"on {socket.gethostname()} (process {os.getpid()})"
        assert not is_driven_elsewhere(tmp_path)
        left = (tmp_path / DRIVER).read_text()
    (tmp_path / DRIVER).write_text(left)  # as a SIGKILL leaves it
    assert find_driver(tmp_path) is None
    with claim_sweep(tmp_path) as other:
        assert other is None, "to look keeps no driver out"


@pytest.mark.usefixtures("quick")
def test_a_driver_of_another_host_is_found_while_it_beats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patience, driver_elsewhere(tmp_path):
        patience.setattr(sweep_folder, "SILENT_S", 60.0)
        assert " far " in str(find_driver(tmp_path))
        assert is_driven_elsewhere(tmp_path)
    assert find_driver(tmp_path) is None
