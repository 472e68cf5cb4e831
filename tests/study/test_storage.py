"""A ledger is found in its sweep's folder or where it is configured; damage is named and left alone."""

from __future__ import annotations

import subprocess

import pytest
from ledger import ask

from rltune.errors import StudyError
from rltune.study.storage import make_storage_url, open_ledger, open_study, save_copy
from rltune.study.study import Study


@pytest.fixture
def folder(tmp_path):
    home = tmp_path / "outputs" / "sweep"
    home.mkdir(parents=True)
    (home / "config.yaml").write_text("study:\n  storage: null\n")
    return home


def test_the_ledger_of_a_folder_is_found_in_it(folder):
    made = Study(make_storage_url(None, folder), "sweep", create=True)
    ask(made)
    made.close()
    assert (folder / "study.db").is_file()
    assert len(open_study(folder).trials()) == 1


def test_a_configured_storage_is_used_instead_of_the_folder(folder, tmp_path):
    elsewhere = f"sqlite:///{tmp_path / 'shared.db'}"
    (folder / "config.yaml").write_text(f"study:\n  storage: {elsewhere}\n")
    ask(Study(make_storage_url(elsewhere, folder), "sweep", create=True))
    assert len(open_study(folder).trials()) == 1
    assert not (folder / "study.db").exists()


def test_a_closed_ledger_is_one_file_that_can_be_moved(folder):
    made = Study(make_storage_url(None, folder), "sweep", create=True)
    ask(made)
    made.close()
    moved = folder.rename(folder.parent / "moved")
    assert [path.name for path in moved.glob("study.db*")] == ["study.db"]
    assert len(Study(make_storage_url(None, moved), "sweep").trials()) == 1


def test_a_folder_that_is_no_sweep_is_refused_without_making_anything(tmp_path):
    with pytest.raises(StudyError, match="is no sweep's folder"):
        open_study(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_sweep_that_lost_its_ledger_is_refused_without_making_an_empty_one(folder):
    with pytest.raises(StudyError, match=r"study\.db is missing"):
        open_study(folder)
    assert [path.name for path in folder.iterdir()] == ["config.yaml"]


def test_a_damaged_ledger_is_named_instead_of_ending_in_a_traceback(folder):
    (folder / "study.db").write_bytes(b"no database at all" * 100)
    with pytest.raises(StudyError, match="cannot be opened"):
        open_study(folder)


def test_damaged_settings_are_named_instead_of_ending_in_a_traceback(folder):
    (folder / "config.yaml").write_text("study: [half")
    with pytest.raises(StudyError, match=r"config\.yaml"):
        open_study(folder)


def driven(folder, new=True, trials=1):
    """What a driver leaves."""
    study = open_ledger(None, folder, new=new)
    for _ in range(trials):
        number, _ = ask(study)
        for step in range(100, 2100, 100):
            study.report(number, step, step / 100)
    study.close()
    (folder / "trials").mkdir(exist_ok=True)


def test_a_renamed_folder_keeps_its_ledger(folder):
    driven(folder)
    moved = folder.rename(folder.parent / "renamed")
    assert len(open_study(moved).trials()) == 1
    driven(moved, new=False)
    assert len(open_study(moved).trials()) == 2


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
def test_a_damaged_ledger_is_refused_and_left_alone_and_its_copy_can_take_its_place(damage, folder):
    driven(folder, trials=3)
    save_copy(folder)
    path = folder / "study.db"
    damage(path)
    before = path.read_bytes()
    with pytest.raises(StudyError, match=r"study\.db is damaged") as refused:
        open_ledger(None, folder, new=False)
    save_copy(folder)  # nor does it spoil the copy
    assert path.read_bytes() == before
    assert subprocess.run(refused.value.fix, shell=True, check=False).returncode == 0
    assert [len(entry.reports) for entry in open_ledger(None, folder, new=False).trials()] == [20] * 3


def test_a_lost_ledger_is_refused_but_one_that_never_was_is_made(folder):
    (folder / ".study.db").write_bytes(b"killed while it was made")
    driven(folder, new=False)
    assert len(open_study(folder).trials()) == 1
    (folder / "study.db").unlink()
    with pytest.raises(StudyError, match=r"study\.db is missing"):
        open_ledger(None, folder, new=False)
