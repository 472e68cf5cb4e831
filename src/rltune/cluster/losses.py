"""Tell what a cluster has lost: the node that a trial ran on, or its head. Runs in the driver."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rltune.compat.ray_nodes import find_draining_nodes, find_node_of

ASK_S = 1.0  # between two questions to the head
ANSWER_S = 3.0  # for a connection
PATIENCE_S = 10.0  # a head may be started again meanwhile, as a cluster with a store for it does
LEAVE_S = 12.0  # for a clean end; all of it stays under 30 s


@dataclass(frozen=True)
class Place:
    """Where a trial's process is.

    Attributes:
        node: The node's id.
        host: Its host name.
    """

    node: str
    host: str


def find_place(actor: Any) -> Place | None:
    """Find where an actor's process is, or was.

    Args:
        actor: Its handle, or its id in hexadecimal letters; None is nobody's.

    Returns:
        None where it cannot be known.
    """
    import ray

    node = find_node_of(actor)
    hosts = {one["NodeID"]: str(one["NodeManagerHostname"]) for one in ray.nodes()} if node else {}
    return Place(node, hosts[node]) if node and node in hosts else None


def explain_loss(place: Place | None, error: BaseException | None) -> str | None:
    """Say what became of the machine that a lost process was on; None where the process is to blame itself.

    Ray takes 10 to 40 seconds to call a node dead that has lost its power. Its raylet answers no connection at once.

    Args:
        place: Where the process was; None where it cannot be known.
        error: What Ray says of the process.
    """
    import ray
    from ray.exceptions import ActorUnavailableError, RayActorError

    where = f"node {place.host}" if place else "its node"
    if isinstance(error, RayActorError) and error.preempted:
        return f"{where} was taken away"
    node = next((one for one in ray.nodes() if place and one["NodeID"] == place.node), None)
    if node is not None:
        if not node["Alive"] or not is_answering(node["NodeManagerAddress"], int(node["NodeManagerPort"])):
            return f"{where} is gone"
        if place and place.node in find_draining_nodes():
            return f"{where} is being taken away"
    # A process that ends is known by its raylet. Where Ray cannot say, the way to it was cut.
    return f"{where} was out of reach" if isinstance(error, ActorUnavailableError) else None


def is_answering(host: str, port: int) -> bool:
    """Return whether somebody takes connections there."""
    try:
        socket.create_connection((host, port), timeout=ANSWER_S).close()
    except OSError:
        return False
    return True


def is_head_answering() -> bool:
    """Return whether the head of the cluster that this driver has joined takes connections."""
    import ray

    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    return is_answering(host.strip("[]"), int(port))


def wait_for_head() -> None:
    """Return when the head answers: what is asked of Ray before that waits for a minute, or raises.

    Where it is lost, the thread of `watch_head` ends the process meanwhile.
    """
    while not is_head_answering():
        time.sleep(ASK_S)


@contextlib.contextmanager
def watch_head(on_gone: Callable[[], None]) -> Iterator[None]:
    """Watch a cluster's head from a thread of its own.

    A lost head holds whoever asks it something for 60 s, and Ray then ends the process from inside. So nothing is left
    to the main thread.

    Args:
        on_gone: Called in that thread when the head has not answered for `PATIENCE_S`. It ends the process, and has
            `LEAVE_S` for it.
    """
    ended = threading.Event()

    def watch() -> None:
        heard = time.monotonic()
        while not ended.wait(ASK_S):
            if is_head_answering():
                heard = time.monotonic()
            elif time.monotonic() - heard >= PATIENCE_S:
                on_gone()
                return

    threading.Thread(target=watch, name="watch-head", daemon=True).start()
    try:
        yield
    finally:
        ended.set()
