"""Addresses of MLflow that cannot work are refused before a sweep starts."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltune.errors import ConfigError
from rltune.tracking.uri_check import check_uri

pytestmark = pytest.mark.filterwarnings("ignore:.*noload")  # SQLAlchemy about MLflow


def test_a_server_that_answers_passes_the_check(server):
    check_uri(server.uri)


@pytest.mark.parametrize(
    ("uri", "words"),
    [
        ("http://me:hunter2@127.0.0.1:9", "cannot be reached"),
        ("http://no-such-host.invalid:5000", "cannot be reached"),
        ("postgresql://me:hunter2@127.0.0.1:9/mlflow", "cannot be reached"),
        ("sqlite:////etc/hostname/mlflow.db", "cannot be written"),
        ("./mlruns", "plain folder"),
        ("htp://localhost:5000", "did you mean 'http'?"),
    ],
)
def test_a_wrong_address_is_refused_in_three_parts(uri, words, monkeypatch):
    resolve = socket.getaddrinfo

    def resolve_here(host, *more, **named):  # a machine's own resolver may take its time, or know an address for it
        if host == "no-such-host.invalid":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *more, **named)

    monkeypatch.setattr(socket, "getaddrinfo", resolve_here)
    began = time.monotonic()
    with pytest.raises(ConfigError) as caught:
        check_uri(uri)
    assert time.monotonic() - began < 60, "MLflow's own client tries for minutes"
    message = caught.value.pretty()
    assert "tracking.uri=" in message
    assert words in message
    assert "try:" in message
    assert "hunter2" not in message


def test_a_server_that_never_answers_is_refused_in_time():
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        began = time.monotonic()
        with pytest.raises(ConfigError):
            check_uri(f"http://127.0.0.1:{silent.getsockname()[1]}", timeout_s=0.5)
    assert time.monotonic() - began < 60, "MLflow's own client waits for minutes"


def test_the_check_writes_nothing_and_imports_no_mlflow(tmp_path):
    program = (
        "import sys; from rltune.tracking.uri_check import check_uri; check_uri(None); print('mlflow' in sys.modules)"
    )
    path = str(Path(__file__).parents[2] / "src")
    env = {**os.environ, "PYTHONPATH": path}
    env.pop("MLFLOW_TRACKING_URI", None)
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=env, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
    assert list(tmp_path.iterdir()) == []
