"""What this user made is known by its mark; what was copied, changed or made by others is not."""

from __future__ import annotations

import hmac
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rltune.config.authorship import KEY_BYTES, MARK, find_key_file, find_key_problem, is_own, mark_own
from rltune.config.settings_file import require_own_sweep
from rltune.errors import StudyError


def test_a_mark_holds_for_its_content_wherever_it_lies(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    assert not is_own(here, "abc")
    mark_own(here, "abc")
    shutil.copytree(here, there)
    assert is_own(here, "abc")
    assert is_own(there, "abc")
    assert not is_own(there, "abd"), "another content under a copied mark"


def test_a_driver_that_is_killed_before_it_has_written_new_settings_leaves_the_folder_its_own(tmp_path: Path) -> None:
    for digest in ("abc", "abd", "abe", "abe"):
        mark_own(tmp_path, digest)
    assert is_own(tmp_path, "abc")
    assert is_own(tmp_path, "abe")
    assert not is_own(tmp_path, "abf")
    assert len((tmp_path / MARK).read_text().split()) == 3
    assert [path.name for path in tmp_path.iterdir()] == [MARK]


def test_another_users_mark_is_not_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mark_own(tmp_path, "abc")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other"))
    assert not is_own(tmp_path, "abc"), "there is no key"
    mark_own(tmp_path / "other" / "rltune", "abc")
    assert not is_own(tmp_path, "abc"), "there is another key"


def test_the_key_is_made_once_and_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folders = [tmp_path / str(number) for number in range(16)]
    for folder in folders:
        folder.mkdir()
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda folder: mark_own(folder, "abc"), folders))
    assert len({(folder / MARK).read_text() for folder in folders}) == 1
    assert find_key_file().stat().st_mode & 0o777 == 0o600
    assert [path.name for path in find_key_file().parent.iterdir()] == ["key"]


def test_without_a_home_nothing_is_marked_and_nothing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    mark_own(tmp_path, "abc")
    assert not (tmp_path / MARK).exists()
    assert not is_own(tmp_path, "abc")


def test_a_key_that_cannot_be_stored_has_a_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert find_key_problem() is None
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    assert "NotADirectoryError" in str(find_key_problem())


def test_with_an_empty_key_nobody_can_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    find_key_file().parent.mkdir(parents=True)
    find_key_file().touch()
    (tmp_path / MARK).write_text(hmac.new(b"", b"rltune:abc", "sha256").hexdigest())
    assert not is_own(tmp_path, "abc")
    mark_own(tmp_path, "abc")
    assert is_own(tmp_path, "abc"), "a new key was made"
    assert find_key_file().stat().st_size == KEY_BYTES


def test_without_any_home_a_foreign_sweep_is_still_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user need not be known to the system."""
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr("pwd.getpwuid", lambda uid: {}[uid])
    monkeypatch.chdir(tmp_path)
    mark_own(tmp_path, "abc")
    assert not is_own(tmp_path, "abc")
    assert list(tmp_path.iterdir()) == [], "no folder of the name ~"
    with pytest.raises(StudyError) as refused:
        require_own_sweep(tmp_path, "resume it")
    assert (refused.value.key, "trust=true" in refused.value.fix) == ("sweep", True)


def test_a_mark_that_is_no_text_is_none(tmp_path: Path) -> None:
    mark_own(tmp_path, "abc")
    (tmp_path / MARK).write_bytes(b"\xff\xfe")
    assert not is_own(tmp_path, "abc")
