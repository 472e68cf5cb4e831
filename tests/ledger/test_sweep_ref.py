"""A sweep is found by its reference, which shows nobody a password."""

from __future__ import annotations

import copy
import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from ended import write_sweep

from rltune.errors import ConfigError, StudyError
from rltune.ledger.sweep_ref import SweepRef, name_start
from rltune.secrets import reveal

LOGIN = "postgresql+psycopg://me:s3cret@db.example/rl"


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    for age, name in enumerate(("newest", "older", "oldest"), 1):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
        os.utime(tmp_path / name / "config.yaml", (1000 - age, 1000 - age))
    (tmp_path / "no-sweep").mkdir()
    return tmp_path


def test_a_sweep_is_found_by_name_and_the_newest_as_latest(outputs: Path) -> None:
    assert SweepRef("older", outputs).folder() == outputs / "older"
    assert SweepRef("latest", outputs).folder() == outputs / "newest"
    assert [folder.name for folder in SweepRef(output_dir=outputs).list_folders()] == ["oldest", "older", "newest"]


@pytest.mark.parametrize("name", ["no-sweep", "oldst"])
def test_what_is_no_sweep_is_refused_with_the_nearest_name(name: str, outputs: Path) -> None:
    (outputs / "no-sweep" / "notes.txt").touch()
    with pytest.raises(StudyError, match=f"sweep={name}") as refused:
        SweepRef(name, outputs).folder()
    assert "oldest" in refused.value.allowed


def test_latest_without_any_sweep_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="sweep=latest"):
        SweepRef("latest", tmp_path).folder()


@pytest.mark.parametrize("sweep", ["older", "outputs/older", Path("outputs/older")])
def test_a_reference_is_made_from_a_name_or_a_folder(sweep: str | Path, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "outputs" / "older").mkdir(parents=True)
    (tmp_path / "outputs" / "older" / "config.yaml").touch()
    monkeypatch.chdir(tmp_path)
    assert SweepRef.of(sweep).folder() == tmp_path / "outputs" / "older"


def test_the_key_that_named_a_missing_sweep_is_in_the_error(outputs: Path) -> None:
    with pytest.raises(StudyError) as refused:
        SweepRef("gone", outputs).folder("searcher.from_sweeps")
    assert refused.value.key == "searcher.from_sweeps"


def test_a_references_text_has_no_password() -> None:
    ref = SweepRef("far", storage="s3://bucket/runs?secret_key=s3cret", ledger_url=LOGIN)
    assert "s3cret" not in f"{ref!r} {ref} {[ref]}"
    assert "db.example" in repr(ref)


@pytest.mark.parametrize("transfer", [lambda ref: pickle.loads(pickle.dumps(ref)), copy.deepcopy])
def test_a_reference_is_pickled_without_its_password(transfer, tmp_path: Path) -> None:
    folder = write_sweep(tmp_path / "s", 1)
    ref = SweepRef("s", tmp_path, ledger_url=LOGIN)
    assert b"s3cret" not in pickle.dumps(ref)
    sent = transfer(ref)
    assert (sent.folder(), sent.ledger_url) == (folder, "postgresql+psycopg://***@db.example/rl")
    sent.open_ledger().close()  # The sweep's ledger is a file, which needs no login.
    (folder / "config.yaml").write_text("{format: 12, study: {storage: 'postgresql+psycopg://***@db.example/rl'}}")
    with pytest.raises(StudyError) as refused:
        sent.open_ledger()
    assert refused.value.key == "study.storage"


def test_a_storage_that_lost_its_login_is_refused(tmp_path: Path) -> None:
    ref = SweepRef("s", tmp_path, storage="s3://bucket/runs?secret_key=s3cret")
    with pytest.raises(StudyError) as refused:
        pickle.loads(pickle.dumps(ref)).folder()
    assert refused.value.key == "storage"


def test_the_copy_of_a_reference_with_another_name_keeps_the_login() -> None:
    assert reveal(replace(SweepRef("a", ledger_url=LOGIN), name="b").ledger_url) == LOGIN


@pytest.mark.parametrize(
    ("settings", "file", "key", "is_named"),
    [
        (["env.id=canal:Canal-v0"], "canal.py", "env.id", True),
        (["env.id=canal:Canal-v0"], "canal.py", "", True),
        (["env.id=canal:Canal-v0"], "other.py", "env.id", False),
        (["env.id=canal:Canal-v0"], "canal.py", "budget.trials", False),
        (["objective.kind=canal:score"], "canal.py", "objective.kind", True),
        (["env.wrappers=[{entry_point: 'canal.parts:Canal'}]"], "canal/parts.py", "env.wrappers[0].entry_point", True),
        (["+env.kwargs.rain=data/rain.csv"], "data/rain.csv", "env.kwargs.rain", True),
        (["+env.kwargs.rain=data/rain.csv"], "rain.csv", "env.kwargs.rain", False),
        (["+env.kwargs.rain=data/rain.csv"], "data/rain.csv", "", True),
        (["+env.kwargs.side=home"], "home", "", False),
        (["+env.kwargs.side=home"], "home", "env.id", False),
        (["+env.kwargs.side=home"], "home", "env.kwargs.side", True),
    ],
)
def test_an_error_names_the_folder_that_has_what_the_environment_lacks_here(
    settings: list[str], file: str, key: str, is_named: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, here = tmp_path / "my project", tmp_path / "here"
    here.mkdir()
    (project / "outputs").mkdir(parents=True)
    write_sweep(project / "outputs" / "wet", 1, None, "complete", *settings)
    (project / file).parent.mkdir(exist_ok=True)
    (project / file).touch()
    ref = SweepRef("wet", project / "outputs")
    for folder, is_there in ((here, False), (project, True)):
        monkeypatch.chdir(folder)
        monkeypatch.syspath_prepend(str(folder))
        with pytest.raises(ConfigError) as refused, name_start(ref):
            raise ConfigError(key, 1, ": cannot be made", "one that can", "correct it")
        assert (f"cd '{project}'" in refused.value.fix) is (is_named and not is_there)
        assert refused.value.fix in str(refused.value)
