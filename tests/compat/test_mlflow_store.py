"""MLflow's SQLite file: the version of its tables, and its paths after a move."""

from __future__ import annotations

import contextlib
import re
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from rltune.compat.mlflow_store import PLACES, check_version, follow_move, read_revisions
from rltune.errors import ConfigError


def write_file(path: Path, version: str, *rows: tuple[str, str, str]) -> str:
    """Write a file with a version and one path for each table and column; return its address."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as file, file:
        file.execute("CREATE TABLE alembic_version (version_num)")
        file.execute("INSERT INTO alembic_version VALUES (?)", (version,))
        file.execute("CREATE TABLE experiments (experiment_id, artifact_location)")
        file.execute("CREATE TABLE runs (artifact_uri)")
        file.execute("CREATE TABLE logged_models (artifact_location)")
        file.execute("CREATE TABLE model_versions (source, storage_location)")
        for table, column, value in rows:
            number = ", experiment_id" if table == "experiments" else ""
            file.execute(f"INSERT INTO {table} ({column}{number}) VALUES (?{', 1' if number else ''})", (value,))
    return f"sqlite:///{path}"


def read_places(path: Path) -> list[str]:
    with contextlib.closing(sqlite3.connect(path)) as file:
        rows = [file.execute(f"SELECT {column} FROM {table}").fetchall() for table, column in PLACES]
    return [value for row in rows for (value,) in row if value]


def test_a_file_of_the_installed_mlflow_passes(tmp_path: Path) -> None:
    parents = read_revisions()
    (head,) = {*parents} - {*parents.values()}
    check_version(write_file(tmp_path / "mlflow.db", head), "tracking.uri")
    check_version(f"sqlite:///{tmp_path}/none.db", "tracking.uri")
    check_version("http://127.0.0.1:9", "tracking.uri")


def test_an_older_file_is_refused_with_copy_and_upgrade(tmp_path: Path) -> None:
    older = next(filter(None, read_revisions().values()))
    with pytest.raises(ConfigError) as refused:
        check_version(write_file(tmp_path / "a b/mlflow.db", older), "tracking.uri")
    assert refused.value.key == "tracking.uri"
    copy, upgrade = refused.value.fix.split(" && ")
    assert copy.startswith("cp ")
    assert upgrade.endswith(f"mlflow db upgrade 'sqlite:///{tmp_path}/a b/mlflow.db'")


def test_a_file_of_a_newer_mlflow_is_refused_with_its_update(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        check_version(write_file(tmp_path / "mlflow.db", "ffffffffffff"), "policy")
    assert (refused.value.key, refused.value.fix) == ("policy", "pip install -U mlflow")


@pytest.mark.parametrize("old", ["one", "Läufe (alt) #1"])
def test_paths_follow_a_project_that_was_moved(old: str, tmp_path: Path) -> None:
    root = tmp_path / old / "mlruns"
    rows = [(table, column, f"{root}/1") for table, column in PLACES[:1]]
    rows += [(table, column, f"{root}/1/x/artifacts") for table, column in PLACES[1:]]
    uri = write_file(tmp_path / "two/mlflow.db", "x", *rows, ("runs", "artifact_uri", f"{root}-other/1"))
    follow_move(uri)
    assert read_places(tmp_path / "two/mlflow.db")[0] == f"{root}/1", "no folder has come along"
    (tmp_path / "two/mlruns/1").mkdir(parents=True)
    follow_move(uri)
    here = f"{tmp_path}/two/mlruns/1"
    moved = [here, f"{here}/x/artifacts", f"{root}-other/1", *[f"{here}/x/artifacts"] * 3]
    assert read_places(tmp_path / "two/mlflow.db") == moved


def test_a_copied_project_is_one_of_its_own(tmp_path: Path) -> None:
    """Its sweeps would write into the original. Where no file is beside the other folder, it is merely elsewhere."""
    root, row = tmp_path / "one/mlruns", ("experiments", "artifact_location", f"{tmp_path}/one/mlruns/1")
    uri = write_file(tmp_path / "two/mlflow.db", "x", row)
    for folder in (root / "1", tmp_path / "two/mlruns/1"):
        folder.mkdir(parents=True)
    follow_move(uri)
    assert read_places(tmp_path / "two/mlflow.db") == [f"{root}/1"]
    original = write_file(tmp_path / "one/mlflow.db", "x", row)
    for address in (uri, original):
        follow_move(address)
    assert read_places(tmp_path / "two/mlflow.db") == [f"{tmp_path}/two/mlruns/1"]
    assert read_places(tmp_path / "one/mlflow.db") == [f"{root}/1"]


def test_a_project_is_copied_out_of_a_folder_that_cannot_be_seen(tmp_path: Path) -> None:
    """Such as another user's. To root all can be seen, so that a name that is too long stands for it."""
    row = ("experiments", "artifact_location", f"/{'x' * 300}/mlruns/1")
    uri = write_file(tmp_path / "mlflow.db", "x", row)
    (tmp_path / "mlruns/1").mkdir(parents=True)
    follow_move(uri)
    assert read_places(tmp_path / "mlflow.db") == [f"{tmp_path}/mlruns/1"]


def test_a_folder_by_another_name_is_the_same_project(tmp_path: Path) -> None:
    row = ("experiments", "artifact_location", f"{tmp_path}/one/mlruns/1")
    write_file(tmp_path / "one/mlflow.db", "x", row)
    (tmp_path / "one/mlruns/1").mkdir(parents=True)
    (tmp_path / "two").symlink_to(tmp_path / "one")
    follow_move(f"sqlite:///{tmp_path}/two/mlflow.db")
    assert read_places(tmp_path / "one/mlflow.db") == [row[2]]


@pytest.mark.slow
def test_mlflow_keeps_its_paths_where_we_look_for_them() -> None:
    from mlflow.store.model_registry.dbmodels.models import Base as Registry
    from mlflow.store.tracking.dbmodels.models import Base

    tables = {**Registry.metadata.tables, **Base.metadata.tables}
    assert all(column in tables[table].columns for table, column in PLACES)


@pytest.mark.nightly
@pytest.mark.slow
def test_the_typed_upgrade_renews_an_older_file(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    parents = read_revisions()
    (head,) = {*parents} - {*parents.values()}
    code = """
import sys
from alembic import command
from mlflow.store.db.utils import _get_alembic_config
from mlflow.store.tracking.dbmodels.initial_models import Base
from sqlalchemy import create_engine
Base.metadata.create_all(create_engine(sys.argv[1]))
command.upgrade(_get_alembic_config(sys.argv[1]), sys.argv[2])
"""
    subprocess.run([sys.executable, "-c", code, uri, parents[head]], check=True, capture_output=True)
    with pytest.raises(ConfigError) as refused:
        check_version(uri, "tracking.uri")
    typed = re.sub(r"(\S*)mlflow db", f"{Path(sys.executable).parent}/mlflow db", refused.value.fix)
    subprocess.run(["bash", "-c", typed], check=True, capture_output=True)
    check_version(uri, "tracking.uri")
    assert (tmp_path / "mlflow.db.old").exists()


@pytest.mark.slow
def test_artifacts_of_a_moved_or_copied_project_are_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from rltune.tracking.mlflow_runs import MLflowRuns

    before, after, copy = tmp_path / "one", tmp_path / "two (neu)", tmp_path / "three"
    before.mkdir()
    for folder in (before, after, copy):
        if folder == after:
            shutil.move(before, after)
        if folder == copy:
            shutil.copytree(after, copy)
        monkeypatch.chdir(folder)
        runs = MLflowRuns(f"sqlite:///{folder}/mlflow.db", "cartpole")
        runs.connect()
        runs.open_experiment()
        runs.log_text(runs.create("sweep", {}, 0), "text", f"{folder.name}.txt")
    assert not before.exists()
    assert len(list(after.glob("mlruns/1/*/artifacts/*.txt"))) == 2
    assert len(list(copy.glob("mlruns/1/*/artifacts/*.txt"))) == 3
