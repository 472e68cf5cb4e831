"""A damaged ledger is named, wherever it is read, and left as it is."""

from __future__ import annotations

import io
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from ended import damage_table, write_sweep
from ledger import add_reports, ask

from rltune.errors import StudyError
from rltune.ledger.storage import open_ledger, save_copy, start_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.views.tables import list_sweeps


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a sweep with three trials."""
    folder = tmp_path / "outputs" / "sweep"
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text("format: 7\nstudy:\n  storage: null\n")
    with closing(start_ledger(None, folder, new=True)) as ledger:
        for _ in range(3):
            number, _ = ask(ledger)
            add_reports(ledger, number, {step: step / 100 for step in range(100, 2100, 100)})
    return folder


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(bytes(path.stat().st_size)),
        lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
        lambda path: path.write_bytes(path.read_bytes()[:8192] + b"\xff" * 8192 + path.read_bytes()[16384:]),
    ],
    ids=["emptied", "zeroed", "cut short", "overwritten inside"],
)
def test_damage_is_refused_and_the_copy_can_take_its_place(damage: Callable[[Path], None], folder: Path) -> None:
    save_copy(folder)
    path = folder / "ledger.db"
    damage(path)
    before = path.read_bytes()
    with pytest.raises(StudyError, match=r"ledger\.db") as refused:
        start_ledger(None, folder, new=False)
    save_copy(folder)  # The copy is not replaced by the damaged file.
    assert path.read_bytes() == before
    assert subprocess.run(refused.value.fix, shell=True, check=False).returncode == 0
    with closing(start_ledger(None, folder, new=False)) as ledger:
        assert [len(record.reports) for record in ledger.trials.records()] == [20] * 3


def test_the_copy_is_restored_in_a_folder_with_a_space(folder: Path) -> None:
    save_copy(folder)
    moved = folder.rename(folder.parent / "my sweep")
    (moved / "ledger.db").write_bytes(b"")
    with pytest.raises(StudyError) as refused:
        start_ledger(None, moved, new=False)
    assert subprocess.run(refused.value.fix, shell=True, check=False).returncode == 0
    start_ledger(None, moved, new=False).close()


def test_damage_that_a_read_meets_is_named_with_its_file(folder: Path) -> None:
    damage_table(folder / "ledger.db", "sweep_trials")
    with closing(open_ledger(folder)) as ledger, pytest.raises(StudyError, match=r"ledger\.db") as refused:
        ledger.trials.records()
    assert refused.value.exit_code == 2


def test_text_that_cannot_be_decoded_counts_as_damage(folder: Path) -> None:
    with closing(sqlite3.connect(folder / "ledger.db")) as ledger, ledger:
        ledger.execute("UPDATE sweep_trials SET params = CAST(x'a5a5' AS TEXT)")
    with closing(open_ledger(folder)) as ledger, pytest.raises(StudyError, match=r"ledger\.db"):
        ledger.trials.records()


def test_a_damaged_ledger_leaves_the_other_sweeps_listed(tmp_path: Path) -> None:
    for name in ("good", "bad"):
        write_sweep(tmp_path / name)
    damage_table(tmp_path / "bad" / "ledger.db", "sweep_trials")
    out = io.StringIO()
    list_sweeps(SweepRef(output_dir=tmp_path), out)
    states = {line.split()[0]: line.split()[1] for line in out.getvalue().splitlines()}
    assert (states["good"], states["bad"]) == ("complete", "unreadable")
