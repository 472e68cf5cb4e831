"""A client of MLflow and the store that it makes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from rltune.tracking.mlflow_client import make_store

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
