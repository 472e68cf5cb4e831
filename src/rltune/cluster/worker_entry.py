"""Stand in for Ray's worker script: request a forked worker, and end.

Every process of every trial runs this script, so it imports nothing of rltune and nothing slow. Where no fork server
answers, it becomes Ray's own worker.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping

SOCKET_VARIABLE = "RLTUNE_FORK_SERVER"  # names the environment variable with the fork server's socket
WORKER_VARIABLE = "RLTUNE_WORKER"  # the one with the path of Ray's own worker script
MODULES_VARIABLE = "RLTUNE_MODULES"  # the one with the modules that workers import
FORKED = b"1"  # the first byte of an answer: a process has taken the request


def request_worker(address: str, arguments: list[str]) -> bool:
    """Have a worker forked that takes this process's place, with its streams and its environment.

    Args:
        address: The fork server's socket.
        arguments: The arguments that Ray gave this script for its own worker.

    Returns:
        Whether there is such a worker now.
    """
    request = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            send_request(connection, request, [0, 1, 2])
            return connection.recv(1) == FORKED
    except OSError:
        return False


def send_request(connection: socket.socket, request: Mapping[str, object], streams: list[int]) -> None:
    """Send a request's length together with the streams, then the request as JSON."""
    content = json.dumps(request).encode()
    socket.send_fds(connection, [len(content).to_bytes(8, "little")], streams)
    connection.sendall(content)


if __name__ == "__main__":
    if not request_worker(os.environ.get(SOCKET_VARIABLE, ""), sys.argv[1:]):
        os.execv(sys.executable, [sys.executable, os.environ[WORKER_VARIABLE], *sys.argv[1:]])  # noqa: S606 - as Ray would
