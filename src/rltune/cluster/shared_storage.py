"""Ask all nodes of a cluster whether they see the sweep's files: what a node writes for itself alone is lost.

Runs in the driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

ANSWER_S = 60.0  # for a node to start a process, to import and to read
SILENCE = "it does not answer, or lacks rltune"


def check_nodes(look: Callable[[], str]) -> dict[str, str]:
    """Have each node that can run trials look for the sweep's files.

    A node without CPUs runs none: its storage does not matter.

    Args:
        look: Runs on the node, and says why it does not see them; empty where it does.

    Returns:
        What the nodes said that do not see them, or that do not answer, by their names.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = {}
    for node in ray.nodes():
        if node["Alive"] and node["Resources"].get("CPU"):
            there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
            # No share of a CPU: a busy node answers too.
            task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(_call)
            nodes[task.remote(look)] = node
    answered, silent = ray.wait(list(nodes), num_returns=len(nodes), timeout=ANSWER_S) if nodes else ([], [])
    for task in silent:
        ray.cancel(task, force=True)
    said = dict.fromkeys(silent, SILENCE) | {task: _read_answer(task) for task in answered}
    dead = {node["NodeID"] for node in ray.nodes() if not node["Alive"]} if any(said.values()) else set()
    return {name_of(nodes[task]): why for task, why in said.items() if why and nodes[task]["NodeID"] not in dead}


def _call(look: Callable[[], str]) -> str:
    return look()


def _read_answer(task: Any) -> str:
    """Read what a node has answered; one without rltune, or that died meanwhile, has said nothing."""
    import ray
    from ray.exceptions import RayError

    try:
        return str(ray.get(task))
    except (RayError, ImportError):
        return SILENCE


def name_of(node: Mapping[str, Any]) -> str:
    """Describe a node for a person: host and address, and its name where it was given one."""
    host, address, given = node["NodeManagerHostname"], node["NodeManagerAddress"], node.get("NodeName")
    return f"{host} ({address})" if given in (None, "", host, address) else f"{given} on {host} ({address})"
