"""A sweep is found by its name, and locked for one driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rltune.errors import StudyError
from rltune.study.sweep_folder import find_sweep, list_sweep_folders, lock_sweep, make_resume_command


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    for age, name in enumerate(("newest", "older", "oldest"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
        os.utime(tmp_path / name / "config.yaml", (1000 - age, 1000 - age))
    (tmp_path / "no-sweep").mkdir()
    return tmp_path


def test_a_sweep_is_found_by_name_and_the_newest_as_latest(outputs: Path) -> None:
    assert find_sweep("older", str(outputs)) == outputs / "older"
    assert find_sweep("latest", str(outputs)) == outputs / "newest"
    assert [folder.name for folder in list_sweep_folders(str(outputs))] == ["oldest", "older", "newest"]


@pytest.mark.parametrize("name", ["no-sweep", "oldst"])
def test_what_is_no_sweep_is_refused_with_the_nearest_name(name: str, outputs: Path) -> None:
    with pytest.raises(StudyError, match=f"sweep={name}: no such sweep") as refused:
        find_sweep(name, str(outputs))
    assert "oldest" in refused.value.allowed


def test_latest_without_any_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="sweep=latest: no such sweep"):
        find_sweep("latest", str(tmp_path))


def test_a_lock_keeps_others_out_and_is_given_back(tmp_path: Path) -> None:
    with lock_sweep(tmp_path) as first, lock_sweep(tmp_path) as second:
        assert (first, second) == (True, False)
    with lock_sweep(tmp_path) as again:
        assert again


def test_the_resume_command_names_a_folder_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert make_resume_command(tmp_path / "outputs" / "mine") == "python -m sweeps.resume sweep=mine"
    assert make_resume_command(tmp_path / "other" / "mine").endswith(f"sweep=mine output_dir={tmp_path / 'other'}")
