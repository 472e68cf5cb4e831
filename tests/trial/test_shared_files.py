"""That a node shows that it sees the sweep's files, and says why where it does not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rltune.checkpoints.clients import make_address
from rltune.checkpoints.store import open_store
from rltune.trial import shared_files
from rltune.trial.shared_files import find_blindness, leave_token, make_blind_error, read_token_name


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_files, "VISIBLE_S", 0.2)


def test_a_node_that_reads_the_token_sees_the_folder(tmp_path: Path) -> None:
    with leave_token(open_store(tmp_path)) as token:
        assert read_token_name(tmp_path) == token
        assert find_blindness(tmp_path, None, token) == ""
    assert read_token_name(tmp_path) is None
    assert not list(tmp_path.iterdir())


def test_an_older_copy_of_the_folder_is_not_taken_for_it(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    with leave_token(open_store(here)):
        shutil.copytree(here, there)
    with leave_token(open_store(here)) as token:
        assert find_blindness(there, None, token)
        assert not find_blindness(here, None, token)


def test_the_token_of_a_killed_driver_is_dropped(tmp_path: Path) -> None:
    (tmp_path / f"{shared_files.PREFIX}old").write_text("old")
    with leave_token(open_store(tmp_path)) as token:
        assert [path.name for path in tmp_path.iterdir()] == [token]


def test_blind_nodes_are_named(tmp_path: Path) -> None:
    error = make_blind_error(open_store(tmp_path / "sweep"), {"far": "cannot be seen", "away": "cannot be seen"})
    assert error.key == "output_dir"
    assert "away" in error.what
    assert "far" in error.what


@pytest.mark.slow
def test_a_node_without_credentials_says_so(tmp_path: Path, s3: str) -> None:
    address = make_address(s3, "seen")
    store = open_store(tmp_path, address)
    with leave_token(store) as token:
        assert find_blindness(Path("/nowhere"), address, token) == ""
        nobody = address.replace("s3://sweeps", "s3://another")
        elsewhere = find_blindness(Path("/nowhere"), nobody, token)
        gone = address.partition("?")[0] + "?endpoint_override=http://127.0.0.1:9"
        why = find_blindness(Path("/nowhere"), gone, token)
        assert len({"", elsewhere, why}) == 3
        error = make_blind_error(store, {"far": why})
        assert (error.key, "far" in error.what) == ("storage", True)
    assert store.read(token) is None
