"""A ledger is found in its sweep's folder or where it is configured; damage is named and left alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from ledger import add_reports, ask

from rltune.errors import StudyError
from rltune.ledger.lease import take_lease
from rltune.ledger.ledger import Ledger, MissingSweepError
from rltune.ledger.storage import copy_ledger, open_ledger, start_ledger

REDACTED = "postgresql+psycopg://***@db.example/rl"


def write_settings(folder: Path, storage: str | None = None) -> None:
    (folder / "config.yaml").write_text(f"format: 12\nstudy:\n  storage: {storage or 'null'}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "outputs" / "sweep"
    home.mkdir(parents=True)
    write_settings(home)
    return home


def drive(folder: Path, storage: str | None = None, new: bool = True, trials: int = 1) -> None:
    """Leave what a driver leaves."""
    with closing(start_ledger(storage, folder, new=new)) as ledger:
        for _ in range(trials):
            number, _ = ask(ledger)
            add_reports(ledger, number, {step: step / 100 for step in range(100, 2100, 100)})
    (folder / "trials").mkdir(exist_ok=True)


def count_trials(folder: Path, storage: str | None = None) -> int:
    with closing(open_ledger(folder, storage)) as ledger:
        return len(ledger.trials.records())


def test_the_ledger_of_a_folder_is_found_in_it(folder: Path) -> None:
    drive(folder)
    assert (folder / "ledger.db").is_file()
    assert count_trials(folder) == 1


def test_a_configured_storage_is_used_instead_of_the_folder(folder: Path, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'shared.db'}"
    write_settings(folder, elsewhere)
    drive(folder, elsewhere, trials=2)
    assert count_trials(folder) == 2
    assert not (folder / "ledger.db").exists()


def test_a_login_that_no_file_keeps_is_asked_for_and_taken(folder: Path, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'shared.db'}"
    drive(folder, elsewhere)
    write_settings(folder, REDACTED)
    with pytest.raises(StudyError, match=r"study\.storage=") as refused:
        open_ledger(folder)
    assert "add study.storage=..." in refused.value.fix
    assert count_trials(folder, elsewhere) == 1


def test_a_sweep_with_a_file_is_read_from_it_whatever_is_given(folder: Path) -> None:
    drive(folder)
    assert count_trials(folder, "postgresql+psycopg://me:s3cret@db.example/rl") == 1


def test_a_closed_ledger_is_one_file_that_can_be_moved(folder: Path) -> None:
    drive(folder)
    moved = folder.rename(folder.parent / "moved")
    assert [path.name for path in moved.glob("ledger.db*")] == ["ledger.db"]
    assert count_trials(moved) == 1


def test_a_renamed_folder_keeps_its_ledger(folder: Path) -> None:
    drive(folder)
    moved = folder.rename(folder.parent / "renamed")
    with closing(open_ledger(moved)) as ledger:
        assert ledger.sweep().name == "sweep"
    drive(moved, new=False)
    assert count_trials(moved) == 2


def test_what_is_no_sweep_is_refused_without_making_anything(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="folder"):
        open_ledger(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_lost_its_ledger_gets_no_empty_one(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(StudyError, match=r"ledger\.db"):
        open_ledger(folder)
    write_settings(folder, f"sqlite:///{tmp_path / 'shared.db'}")
    with pytest.raises(StudyError, match=r"shared\.db"):
        open_ledger(folder)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["config.yaml"]


def test_a_file_that_is_no_database_is_named(folder: Path) -> None:
    (folder / "ledger.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StudyError, match=r"ledger\.db"):
        open_ledger(folder)


@pytest.mark.parametrize("settings", ["study: [half", "study: {storage: null}"], ids=["damaged", "of an older format"])
def test_settings_that_cannot_be_read_are_named(settings: str, folder: Path) -> None:
    (folder / "config.yaml").write_text(settings)
    with pytest.raises(StudyError, match=r"config\.yaml"):
        open_ledger(folder)
    assert not (folder / "ledger.db").exists()


def test_a_copy_is_made_while_the_ledger_is_written(folder: Path) -> None:
    with closing(start_ledger(None, folder, new=True)) as ledger, take_lease(ledger):
        ask(ledger)
        copy_ledger(folder / "ledger.db", folder / "copy.db")
        ask(ledger)
    (folder / "copy.db").rename(folder / "ledger.db")
    assert count_trials(folder) == 1
    with closing(open_ledger(folder)) as ledger:
        assert ledger.read_lease().driver is None, "no driver works on the copy"


def test_a_lost_ledger_is_refused_one_that_never_was_is_made(folder: Path) -> None:
    (folder / "ledger.db").touch()  # killed while it was made
    drive(folder)
    assert count_trials(folder) == 1
    (folder / "ledger.db").unlink()
    with pytest.raises(StudyError, match=r"ledger\.db"):
        start_ledger(None, folder, new=False)


def test_in_a_database_a_lost_sweep_is_told_from_a_new_one(folder: Path, tmp_path: Path) -> None:
    elsewhere = f"sqlite:///{tmp_path / 'shared.db'}"
    start_ledger(elsewhere, folder.with_name("other"), new=True).close()
    start_ledger(elsewhere, folder, new=True).close()
    with closing(start_ledger(elsewhere, folder, new=True)) as ledger:  # its driver was killed before it began
        ledger.change_sweep(config="format: 12")
    with pytest.raises(StudyError, match="name="):
        start_ledger(elsewhere, folder, new=True)
    folder.with_name("lost").mkdir()
    write_settings(folder.with_name("lost"))
    with pytest.raises(MissingSweepError, match="lost"):
        start_ledger(elsewhere, folder.with_name("lost"), new=False)
    with closing(Ledger(elsewhere, "sweep")) as ledger:
        assert ledger.trials.records() == []
