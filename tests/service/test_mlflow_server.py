"""MLflow beside the service: one server, started again where it dies, ended with the service."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import requests

from rltune.service.folder import ServiceFolder
from rltune.service.mlflow_server import MLflowServer

pytestmark = pytest.mark.slow


def wait_until(holds: Callable[[], bool], limit_s: float = 90) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def answers(address: str | None) -> bool:
    try:
        return requests.get(f"{address}/health", timeout=5).ok
    except requests.RequestException:
        return False


def pid_of(server: MLflowServer) -> int:
    known = server._read()
    assert known is not None
    return int(known["process"]["pid"])


def test_a_server_is_kept_adopted_and_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    folder = ServiceFolder(tmp_path / "outputs")
    with folder.hold():
        server = MLflowServer(folder, 0)
        assert server.address is None
        server.keep()
        address = server.address
        wait_until(lambda: answers(address))
        assert (tmp_path / "mlflow.db").stat().st_mode & 0o777 == 0o600, "the sweeps' own store"
        fresh = MLflowServer(folder, 0)  # that of a service after one that was killed
        fresh.keep()
        assert fresh.address == address
        pid = pid_of(fresh)
        os.killpg(pid, signal.SIGKILL)

        def is_another() -> bool:
            server.keep()  # as every few seconds: a process takes a moment to die
            return pid_of(server) != pid

        wait_until(is_another)
        assert server.address == address, "it is found where it was"
        wait_until(lambda: answers(address))
        again = pid_of(server)
        server.end()
        assert server.address is None
        wait_until(lambda: not psutil.pid_exists(again), 20)
