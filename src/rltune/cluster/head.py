"""Detect the loss of a joined cluster's head node, or of this machine's own Ray. Runs in the driver."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import psutil

from rltune.cluster.stale_processes import GONE, ProcessMark, mark_process
from rltune.errors import UnavailableError

INTERVAL_S = 1.0  # Seconds between two attempts to connect to the head node.
ANSWER_S = 3.0  # Time-out in seconds for connecting to the head node.
PATIENCE_S = 10.0  # A head whose state is in a database may restart within this time without being lost.


def is_answering(host: str, port: int) -> bool:
    """Return whether a process accepts TCP connections at an address."""
    try:
        socket.create_connection((host, port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def is_head_answering() -> bool:
    """Return whether the head node of the joined cluster accepts connections."""
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return is_answering(host.strip("[]"), int(port))


def make_lost_error(address: str | None, fix: str) -> UnavailableError:
    """Make the error for the loss of a joined cluster's head, or of this machine's own Ray, which has no address.

    Args:
        address: The setting ``cluster.address``.
        fix: The command that goes on.
    """
    if address is None:
        allowed = "processes of Ray that live as long as the sweep"
        return UnavailableError(": Ray has ended on this machine", allowed, fix, key="cluster", value="local")
    return UnavailableError(
        *(": the cluster's head is gone", "a head that answers", f"{fix}   # when it is back"),
        key="cluster.address",
        value=address,
    )


def wait_for_head() -> None:
    """Wait until the cluster's head node answers, because calls into Ray would hang for a minute or raise errors.

    If the head is lost, the driver's housekeeping ends the process meanwhile.
    """
    while not is_head_answering():
        time.sleep(INTERVAL_S)


class HeadWatch:
    """Watches whether the head node of the cluster that this driver has joined still accepts connections.

    Args:
        on_lost: Called by `check` when the head has not answered for `PATIENCE_S`.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost, self._answered_s = on_lost, time.monotonic()

    def check(self) -> None:
        """Try to connect to the head node, and report it as lost after `PATIENCE_S`; call this every `INTERVAL_S`."""
        if is_head_answering():
            self._answered_s = time.monotonic()
        elif time.monotonic() - self._answered_s >= PATIENCE_S:
            self._on_lost()


class OwnRayWatch:
    """Watches the daemons of the Ray that this driver has started, without which its trials would wait for ever.

    Args:
        on_lost: Called by each `check` after a daemon has ended.
    """

    def __init__(self, on_lost: Callable[[], None]) -> None:
        daemons = [child for child in psutil.Process().children() if child.name() in ("gcs_server", "raylet")]
        self._on_lost, self._marks = on_lost, [ProcessMark(**mark) for mark in map(mark_process, daemons) if mark]

    def check(self) -> None:
        """Look at the processes; call this every `INTERVAL_S`. A node ends, too, when one of its agents is killed."""
        if any(mark.find_state() == GONE for mark in self._marks):
            self._on_lost()
