"""The script that Ray starts instead of its worker; whole workers are in test_fork_server."""

from __future__ import annotations

import ast
import os
import socket
import subprocess
import sys
import threading

import pytest

from rltune.cluster import worker_entry
from rltune.cluster.worker_entry import FORKED, SOCKET_VARIABLE, WORKER_VARIABLE, request_worker


@pytest.mark.parametrize(("answer", "forked"), [(FORKED, True), (b"", False)])
def test_a_worker_is_there_when_the_server_says_so(answer, forked, tmp_path):
    address = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address)
        listening.listen()

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                _, streams, _, _ = socket.recv_fds(connection, 8, 3)
                connection.recv(1_000_000)
                connection.sendall(answer)
                for stream in streams:
                    os.close(stream)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        assert request_worker(address, ["--node-id", "1"]) is forked
        thread.join(10)


@pytest.mark.parametrize("address", ["", "/no/such/socket"])
def test_without_a_server_there_is_no_worker(address):
    assert request_worker(address, []) is False


def test_without_a_server_it_becomes_rays_own_worker(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text("import sys; print(sys.argv[1:])")
    environment = {**os.environ, SOCKET_VARIABLE: str(tmp_path / "none"), WORKER_VARIABLE: str(worker)}
    typed = [sys.executable, worker_entry.__file__, "--node-id", "a b"]
    done = subprocess.run(typed, env=environment, capture_output=True, text=True, check=True, timeout=60)
    assert ast.literal_eval(done.stdout) == ["--node-id", "a b"]


def test_it_imports_nothing_of_ours():
    code = (
        "import runpy, sys; runpy.run_path(sys.argv[1], run_name='entry');"
        "print(any(name.startswith(('rltune', 'ray', 'torch', 'numpy')) for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, worker_entry.__file__], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "False"
