"""A migrated MLflow store and a server, each made once."""

from __future__ import annotations

import pytest
from server import Server, put_store


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A project folder whose default store is ready."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    put_store(tmp_path)
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
