"""The script that Ray starts as a worker: has the fork server fork a worker in its place, and ends.

Every process of every trial runs this script first, so it imports nothing slow and nothing of rltune, and Python starts
without installed packages (``-S``). If no fork server answers, then the script becomes Ray's own worker.
"""

from __future__ import annotations

import marshal
import os
import socket
import sys

# Environment variables: the fork server's socket, Ray's own worker script, and the modules that the fork server imports
# before it forks workers, with the functions that it calls then.
SOCKET_VARIABLE = "RLTUNE_FORK_SERVER"
WORKER_VARIABLE = "RLTUNE_WORKER"
MODULES_VARIABLE = "RLTUNE_MODULES"
FORKED = b"1"  # The fork server's answer when a process has taken a request.


def request_worker(address: str, arguments: list[str]) -> bool:
    """Ask the fork server for a worker in place of this process, with its streams, arguments and environment.

    Args:
        address: The fork server's socket.
        arguments: The arguments that Ray gave this script for its own worker.

    Returns:
        Whether a worker was forked.
    """
    request: dict[str, object] = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(address)
            send_request(connection, request, [0, 1, 2])
            return connection.recv(1) == FORKED
    except OSError:
        return False


def send_request(connection: socket.socket, request: dict[str, object], streams: list[int]) -> None:
    """Send a request to the fork server: its length with the file descriptors of the streams, then its content."""
    content = marshal.dumps(request)
    socket.send_fds(connection, [len(content).to_bytes(8, "little")], streams)
    connection.sendall(content)


if __name__ == "__main__":
    if not request_worker(os.environ.get(SOCKET_VARIABLE, ""), sys.argv[1:]):
        os.execv(sys.executable, [sys.executable, os.environ[WORKER_VARIABLE], *sys.argv[1:]])  # noqa: S606 - as Ray would
