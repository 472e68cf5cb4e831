"""A migrated MLflow store and a server, each made once."""

from __future__ import annotations

import shutil

import pytest
from server import Server


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """A migrated MLflow database, made once: the migrations take seconds."""
    path = tmp_path_factory.mktemp("store") / "mlflow.db"
    from mlflow import MlflowClient

    MlflowClient(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def folder(tmp_path, monkeypatch, empty_store):
    """A project folder whose default store is ready."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(empty_store, tmp_path / "mlflow.db")
    return tmp_path


@pytest.fixture(scope="session")
def starting_server(tmp_path_factory, empty_store):
    folder = tmp_path_factory.mktemp("server")
    shutil.copy(empty_store, folder / "mlflow.db")
    server = Server(folder).start()
    yield server
    server.kill()


@pytest.fixture
def server(starting_server):
    """A real MLflow server, running."""
    return starting_server.wait()
