"""Find out which node a process of Ray's is on, and which nodes are to go. Runs in the driver."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rltune.compat.patching import is_supported, replace_names

logger = logging.getLogger("rltune")


def find_node_of(actor: Any) -> str | None:
    """Return the id of the node that an actor's process is on, or was on; None where it cannot be known.

    What: ``ray._private.state.actors``, ``ActorHandle._actor_id``.
    Why: Ray's public list of actors needs the dashboard's server, which a cluster may not have.
    Gains: a lost process is known to be its machine's loss, also before its first report; on the plain path only where
    Ray's own error says so. Tested with Ray 2.60.

    Args:
        actor: Its handle, or its id in hexadecimal letters; None is nobody's.
    """
    if actor is None or not is_supported("ray"):
        return None
    from ray._private import state

    number = actor if isinstance(actor, str) else actor._actor_id.hex()
    known = state.actors(actor_id=number) or {}
    node = (known.get("Address") or {}).get("NodeID")
    return node if node and set(node) != {"f"} else None  # all f: of none yet


def find_draining_nodes() -> set[str]:
    """Return the ids of the nodes that had notice to go: preempted ones, or drained by hand.

    What: ``GlobalState.get_draining_nodes``.
    Why: `ray.nodes` does not tell.
    Gains: a trial whose process goes before its node does is not blamed; on the plain path it is, unless Ray's error
    says that it was preempted. Tested with Ray 2.60.
    """
    if not is_supported("ray"):
        return set()
    from ray._private.state import state

    return set(state.get_draining_nodes())


@contextmanager
def log_raylet_messages() -> Iterator[None]:
    """Let what the raylets tell a driver go into its log instead of onto its terminal.

    What: ``ray._private.worker.print_to_stdstream``.
    Why: a node that dies is told there in three lines of Ray's own words, across the sweep's table; ``log_to_driver``
    holds back the workers' lines alone. The plain path shows them. Tested with Ray 2.60.
    """
    if not is_supported("ray"):
        yield
        return
    from ray._private import worker

    def log(data: Any, ignore_prefix: bool) -> None:
        for line in data.get("lines", ()):
            logger.warning("raylet: %s", line)

    with replace_names(worker, print_to_stdstream=log):
        yield
