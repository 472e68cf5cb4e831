"""A full disk: what was recorded stays whole, no trial is blamed, and the sweep goes on when there is room again."""

from __future__ import annotations

import errno
import io
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from toy import ToyTrial

from rltune.driver.run import resume_sweep
from rltune.errors import UnavailableError
from rltune.ledger import database
from rltune.ledger.disk_full import is_disk_full, make_disk_full_error
from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef


def states(folder: Path) -> list[str]:
    """How the ledger has the sweep's trials."""
    with closing(open_ledger(folder)) as ledger:
        return [record.state for record in ledger.trials.records()]


def resume(folder: Path) -> Outcome:
    return resume_sweep(SweepRef.of(folder), stream=io.StringIO(), trainable=ToyTrial)


def test_a_full_disk_is_known_by_the_error_beneath_the_error() -> None:
    error = RuntimeError("the trial could not be told")
    error.__cause__ = OSError(errno.ENOSPC, "no room")
    assert is_disk_full(error)
    assert not is_disk_full(RuntimeError("other"))


def test_a_full_database_is_known_by_its_code(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "full.db")) as connection:
        connection.execute("CREATE TABLE numbers (number)")
        connection.execute("PRAGMA max_page_count=2")
        with pytest.raises(sqlite3.OperationalError) as full:
            connection.execute("INSERT INTO numbers VALUES (zeroblob(100000))")
    assert is_disk_full(full.value)


@pytest.mark.parametrize("text", ["File too large, at most 10 MB", "our rover's disk is full"])
def test_words_alone_fill_no_disk(text: str) -> None:
    assert not is_disk_full(ValueError(text))
    assert not is_disk_full(RuntimeError(text))


def test_the_disk_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch, folder = tmp_path / "scratch", tmp_path / "outputs" / "tight"
    monkeypatch.setenv("RAY_TMPDIR", str(scratch))
    for full in (scratch, folder):
        monkeypatch.setattr("rltune.ledger.disk_full.has_no_room", lambda place, full=full: place == full)
        assert str(make_disk_full_error(folder)).startswith(f"{full}: ")
        assert f"make room in {full}, " in make_disk_full_error(folder).fix


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
@pytest.mark.usefixtures("ray_cluster")
def test_a_checkpoint_without_room_stops_the_sweep_and_fails_no_trial(
    toy_run: Callable[..., Outcome], tmp_path: Path
) -> None:
    folder = tmp_path / "outputs" / "tight"
    words = ("+space.fault=[choice,null,full]", "warm_start=[{quality:0.9,fault:null},{quality:0.8,fault:full}]")
    with pytest.raises(UnavailableError) as full:
        toy_run("name=tight", "budget.trials=3", "scheduler=none", "tracking=off", "seed=3", *words)
    assert (full.value.exit_code, "sweeps.resume sweep=tight" in full.value.fix) == (75, True)
    assert set(states(folder)) <= {"COMPLETE", "RUNNING"}
    assert "RUNNING" in states(folder)
    (folder / "room").touch()
    last = resume(folder)
    assert (last.exit_code, states(folder)) == (0, ["COMPLETE"] * 3)


@pytest.mark.usefixtures("ray_cluster")
def test_a_full_database_stops_the_sweep_and_keeps_what_it_has(
    toy_run: Callable[..., Outcome], tmp_path: Path, monkeypatch: Any
) -> None:
    folder, plain = tmp_path / "outputs" / "tight", database.set_pragmas
    room: dict[str, int] = {}

    def tight(connection: Any, _: Any) -> None:
        plain(connection, _)
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        if pages > 1:  # Its tables are made; there is room for the settings and a few trials.
            connection.execute(f"PRAGMA max_page_count={room.setdefault('pages', pages + 5)}")

    # The check is in this process, which has loaded the modules of many tests.
    monkeypatch.setattr("rltune.envs.validation.digest_sources", lambda env: {})
    monkeypatch.setattr(database, "set_pragmas", tight)
    with pytest.raises(UnavailableError) as full:
        toy_run("name=tight", "budget.trials=16", "scheduler=none", "tracking=off")
    assert full.value.exit_code == 75
    monkeypatch.setattr(database, "set_pragmas", plain)
    before = states(folder)
    assert before
    assert set(before) <= {"COMPLETE", "RUNNING"}
    last = resume(folder)
    assert (last.exit_code, states(folder)) == (0, ["COMPLETE"] * 16)
