"""The working folder is searched last or never, and a child process searches where its parent does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from rltune.search_path import place_working_folder, spell_python


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    monkeypatch.setattr(sys, "path", ["", ".", str(tmp_path), str(tmp_path / "link"), *sys.path])
    return tmp_path


@pytest.mark.parametrize("is_searched", [True, False])
def test_the_working_folder_comes_last_or_not_at_all(is_searched: bool, folder: Path) -> None:
    place_working_folder(is_searched=is_searched)
    places = [os.path.realpath(path) for path in sys.path]
    assert places.count(str(folder.resolve())) == is_searched
    assert (places[-1] == str(folder.resolve())) is is_searched


def test_a_deleted_working_folder_changes_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "deleted").mkdir()
    monkeypatch.chdir(folder / "deleted")
    (folder / "deleted").rmdir()
    before = [*sys.path]
    place_working_folder(is_searched=True)
    assert sys.path == before


def test_a_child_process_searches_where_its_parent_does(folder: Path) -> None:
    """A file of the working folder is hidden by no place but the last one."""
    (folder / "importlib.py").write_text("raise RuntimeError('a file that hides a library')")
    (folder / "mine.py").write_text("import sys, colorsys\ndef main(*words): print(words, sys.argv, colorsys.__file__)")
    (folder / "colorsys.py").write_text("raise RuntimeError('a file that hides a library')")
    place_working_folder(is_searched=True)
    done = subprocess.run(spell_python("mine", "a", "", "c"), capture_output=True, text=True)
    assert done.stdout.startswith("('a', '', 'c') ['mine', 'a', '', 'c']"), done.stderr
    assert str(folder) not in done.stdout
