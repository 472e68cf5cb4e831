"""Tell which node a trial has lost. Runs in the driver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rltune.cluster.head import is_answering
from rltune.compat.ray_nodes import find_draining_nodes, find_node_of


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
