"""A real MLflow server for tests, and the store that it begins with."""

from __future__ import annotations

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path


def put_store(folder: Path, name: str = "mlflow.db") -> None:
    """Put an empty store into a folder, unless it is there: MLflow's migrations take seconds."""
    path = folder / name
    if not path.exists():
        path.touch(0o600)
        path.write_bytes(_make_store())


@functools.cache
def _make_store() -> bytes:
    from rltune.tracking.mlflow_client import make_store

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "mlflow.db"
        make_store(f"sqlite:///{path}")
        return path.read_bytes()


class Server:
    """A real `mlflow server`, in its own process group."""

    def __init__(self, folder, store=None):
        self.folder, self.store = folder, store or f"sqlite:///{folder}/mlflow.db"
        if store is None:
            put_store(folder)
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(self.port)]
        command += ["--backend-store-uri", self.store, "--workers", "1"]
        command += ["--artifacts-destination", f"{self.folder}/artifacts"]
        log = (self.folder / "server.log").open("ab")
        self.process = subprocess.Popen(
            command,
            cwd=self.folder,
            env={
                **os.environ,
                "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                "MLFLOW_DISABLE_TELEMETRY": "true",
            },
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        return self

    def wait(self):
        deadline = time.monotonic() + 180  # on a busy machine
        while time.monotonic() < deadline:
            try:
                urllib.request.urlopen(f"{self.uri}/health", timeout=1).close()
                return self
            except OSError:
                time.sleep(0.1)
        raise TimeoutError((self.folder / "server.log").read_text())

    def signal(self, number):
        os.killpg(self.process.pid, number)

    def kill(self):
        if self.process is not None:
            self.signal(signal.SIGKILL)
            self.process.wait()
            self.process = None
