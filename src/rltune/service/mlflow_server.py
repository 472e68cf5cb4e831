"""Show MLflow beside the service: a server over the store that its sweeps write into."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import Any

import psutil

from rltune.cluster.stale_processes import is_running, mark_process
from rltune.config.uris import resolve_uri
from rltune.service.folder import ServiceFolder

LEAVE_S = 10.0
# The store is made whole first: sweeps may open it at the same time.
RUN = (
    "import os, sys; from rltune.tracking.mlflow_client import make_store; make_store(sys.argv[1]); "
    "os.execv(sys.executable, [sys.executable, '-m', 'mlflow', *sys.argv[2:], sys.argv[1]])"
)


class MLflowServer:
    """A server of MLflow for as long as the service runs; one that a killed service has left is used on.

    Args:
        folder: The service's.
        port: Where it listens, on this machine alone; 0 is any free one.
    """

    def __init__(self, folder: ServiceFolder, port: int) -> None:
        self._file, self._log = folder.path / "mlflow.json", folder.path / "mlflow.log"
        self._store = resolve_uri(None)
        self._port = port
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str | None:
        """Where it is reached; None before it was started."""
        known = self._read()
        return f"http://127.0.0.1:{known['port']}" if known else None

    def keep(self) -> None:
        """Start it, unless it runs."""
        if self._process is not None:
            self._process.poll()  # else one that has died would stay as a zombie
        known = self._read()
        if known and known["store"] == self._store and is_running(known["process"]):
            return
        self._end(known)
        port = (known or {}).get("port") or self._port
        deadline = time.monotonic() + LEAVE_S  # for the one before to leave it
        while known and port and not _is_free(port) and time.monotonic() < deadline:
            time.sleep(0.1)
        if not _is_free(port):
            port = _find_free_port()
        words = ["server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", RUN, self._store, *words, "--backend-store-uri"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=os.environ | {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"},
                start_new_session=True,
            )
        mark = mark_process(psutil.Process(self._process.pid))
        self._file.write_text(json.dumps({"process": mark, "port": port, "store": self._store}))

    def end(self) -> None:
        """End it, its workers with it."""
        self._end(self._read())
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(LEAVE_S)
        self._file.unlink(missing_ok=True)

    def _end(self, known: dict[str, Any] | None) -> None:
        if known is None:
            return
        # Its worker may outlive it; and the system gives no number anew while a group has it.
        if is_running(known["process"]) or not psutil.pid_exists(int(known["process"]["pid"])):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(int(known["process"]["pid"]), signal.SIGTERM)

    def _read(self) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(self._file.read_text())
            if isinstance(found, dict) and found.keys() >= {"process", "port", "store"}:
                return found
        return None


def _is_free(port: int) -> bool:
    with contextlib.suppress(OSError), socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind(("127.0.0.1", port))
        return port != 0
    return False


def _find_free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
