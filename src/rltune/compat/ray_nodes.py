"""Find out which node a process of Ray's is on, and which nodes are draining. Runs in the driver."""

from __future__ import annotations

from typing import Any

from rltune.compat.patching import switched


@switched(lambda: None)
def find_node_of(actor: Any) -> str | None:
    """Return the id of the node that an actor's process is on, or was on; None where it cannot be known.

    What: ``ray._private.state.actors``, ``ActorHandle._actor_id``.
    Why: Ray's public list of actors needs the dashboard's server, which a cluster may not have.
    Gains: a lost process is known to be its machine's loss, also before its first report. With the switch off that is
    known only where Ray's own error says so. Tested with Ray 2.60.

    Args:
        actor: Its handle, or its id in hexadecimal letters; None is nobody's.
    """
    if actor is None:
        return None
    from ray._private import state

    number = actor if isinstance(actor, str) else actor._actor_id.hex()
    known = state.actors(actor_id=number) or {}
    node = (known.get("Address") or {}).get("NodeID")
    return node if node and set(node) != {"f"} else None  # all f: of none yet


@switched(set)
def find_draining_nodes() -> set[str]:
    """Return the ids of the nodes that had notice to go: preempted ones, or drained by hand.

    What: ``GlobalState.get_draining_nodes``.
    Why: `ray.nodes` does not tell.
    Gains: a trial whose process ends before its node does is not blamed. With the switch off it is, unless Ray's error
    says that it was preempted. Tested with Ray 2.60.
    """
    from ray._private.state import state

    return set(state.get_draining_nodes())
