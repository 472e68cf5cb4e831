"""A client of MLflow and the store that it makes."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from rltune.config.uris import resolve_uri
from rltune.tracking.mlflow_client import make_artifact_folder, make_store
from rltune.tracking.mlflow_runs import MLflowRuns

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


@pytest.mark.slow
def test_a_driver_killed_meanwhile_leaves_no_half_made_store(tmp_path):
    store = tmp_path / "mlflow.db"
    code = "import sys; from rltune.tracking import mlflow_client; mlflow_client.make_store(sys.argv[1])"
    process = subprocess.Popen([sys.executable, "-c", code, f"sqlite:///{store}"])
    deadline = time.monotonic() + 60
    while not list(tmp_path.glob(".mlflow.db-*/mlflow.db")) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert list(tmp_path.glob(".mlflow.db-*/mlflow.db")), "it was at work"
    assert not store.exists()


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "postgresql://127.0.0.1:9/mlflow"])
def test_no_file_is_made_for_a_server(address, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    make_store(address)
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_is_there_is_left_as_it_is(tmp_path):
    store = tmp_path / "mlflow.db"
    store.write_bytes(b"somebody's")
    make_store(f"sqlite:///{store}")
    assert store.read_bytes() == b"somebody's"


@pytest.mark.slow
def test_a_new_store_and_its_artifacts_are_readable_by_their_owner_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # mlflow.set_tracking_uri leaves it behind
    monkeypatch.chdir(tmp_path)
    before = os.umask(0o022)
    try:
        runs = MLflowRuns(resolve_uri(None), "cartpole")
        runs.connect()
        runs.open_experiment()
        runs.log_text(runs.create("sweep", {}, 0), "text", "file.txt")
    finally:
        os.umask(before)
    assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "mlruns").stat().st_mode & 0o777 == 0o700
    assert list((tmp_path / "mlruns").rglob("file.txt")), "there they are"


def test_artifact_folders_that_are_there_or_elsewhere_are_left_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir(mode=0o755)
    for location in (
        f"file://{tmp_path}/mine/1",
        "s3://bucket/mlruns/1",
        "mlflow-artifacts:/1",
        str(tmp_path / "mine/2"),
    ):
        make_artifact_folder(location)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert (tmp_path / "mine").stat().st_mode & 0o777 == 0o755
    make_artifact_folder(f"file://{tmp_path}/new%20one/1")
    assert (tmp_path / "new one").stat().st_mode & 0o777 == 0o700
