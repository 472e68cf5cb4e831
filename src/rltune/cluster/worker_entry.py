"""What Ray starts instead of its own worker: asks the nursery for a process that has its imports done, and ends.

A script without any import of ours, because all that it takes is paid by every process of every trial. Without a
nursery that answers it becomes Ray's own worker.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping

SOCKET_VARIABLE = "RLTUNE_NURSERY"  # the environment variable that names the nursery's socket
WORKER_VARIABLE = "RLTUNE_WORKER"  # the one that names Ray's own worker
MODULES_VARIABLE = "RLTUNE_MODULES"  # and the one that names what workers import
FORKED = b"1"


def request_worker(address: str, arguments: list[str]) -> bool:
    """Have the nursery fork a worker that goes on in this process's place, with its streams and its environment.

    Args:
        address: The nursery's socket.
        arguments: What Ray's own worker would be started with.
    """
    order = {"arguments": arguments, "environment": dict(os.environ), "folder": os.getcwd()}
    try:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(address)
            send_request(asked, order, [0, 1, 2])
            return asked.recv(1) == FORKED
    except OSError:
        return False


def send_request(asked: socket.socket, order: Mapping[str, object], streams: list[int]) -> None:
    """Tell the nursery what is wanted: its length, with the streams, and the order itself."""
    content = json.dumps(order).encode()
    socket.send_fds(asked, [len(content).to_bytes(8, "little")], streams)
    asked.sendall(content)


if __name__ == "__main__":
    if not request_worker(os.environ.get(SOCKET_VARIABLE, ""), sys.argv[1:]):
        os.execv(sys.executable, [sys.executable, os.environ[WORKER_VARIABLE], *sys.argv[1:]])  # noqa: S606 - as Ray would
