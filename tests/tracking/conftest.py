"""A migrated MLflow store and a server, each made once."""

from __future__ import annotations

import shutil

import pytest
from server import Server, put_store


@pytest.fixture(scope="session")
def empty_store(tmp_path_factory):
    """The file of a store that MLflow has taken seconds to make."""
    folder = tmp_path_factory.mktemp("store")
    put_store(folder)
    return folder / "mlflow.db"


@pytest.fixture
def folder(tmp_path, monkeypatch, empty_store):
    """A project folder whose default store is ready."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    shutil.copy(empty_store, tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def starting_server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("server")).start()
    yield server
    server.kill()


@pytest.fixture
def server(starting_server):
    """A real MLflow server, running."""
    return starting_server.wait()
