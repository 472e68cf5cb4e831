"""Check that all nodes of a cluster see the sweep's folder: what a node writes for itself alone is lost.

Runs in the driver; `read_token` on each node.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltune.errors import StudyError

PREFIX = ".shared-"  # a new name for each check: network file systems remember what they did not find
VISIBLE_S = 2.0  # for a network's file system to show a new file
ANSWER_S = 60.0  # for a node to start a process and read


def check_nodes(folder: Path) -> None:
    """Have each node that can run trials read a file in the sweep's folder.

    A node without CPUs runs none: its storage does not matter.

    Args:
        folder: The sweep's folder, absolute; it exists here.

    Raises:
        StudyError: A node does not see it, or does not answer.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    token = folder / f"{PREFIX}{secrets.token_hex(8)}"
    token.write_text(token.name)
    try:
        nodes = {}
        for node in ray.nodes():
            if node["Alive"] and node["Resources"].get("CPU"):
                there = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                # No share of a CPU: a busy node answers too.
                task = ray.remote(num_cpus=0, max_retries=0, scheduling_strategy=there)(read_token)
                nodes[task.remote(str(token))] = node
        answered, silent = ray.wait(list(nodes), num_returns=len(nodes), timeout=ANSWER_S) if nodes else ([], [])
        for task in silent:
            ray.cancel(task, force=True)
        blind = [nodes[task] for task in silent] + [nodes[task] for task in answered if not _has_read(task, token)]
        dead = {node["NodeID"] for node in ray.nodes() if not node["Alive"]} if blind else set()
        names = sorted({name_of(node) for node in blind if node["NodeID"] not in dead})
    finally:
        token.unlink(missing_ok=True)
    if names:
        raise not_shared(folder, ", ".join(names))


def read_token(path: str) -> str:
    """Read the file, on a node; return "" when it does not become visible there."""
    deadline = time.monotonic() + VISIBLE_S
    while True:
        with contextlib.suppress(OSError):
            return Path(path).read_text()
        if time.monotonic() > deadline:
            return ""
        time.sleep(0.1)


def _has_read(task: Any, token: Path) -> bool:
    """Return whether a node has answered with the token; one without rltune, or that died meanwhile, has not."""
    import ray
    from ray.exceptions import RayError

    try:
        return bool(ray.get(task) == token.name)
    except (RayError, ImportError):
        return False


def name_of(node: Mapping[str, Any]) -> str:
    """Describe a node for a person: host and address, and its name where it was given one."""
    host, address, given = node["NodeManagerHostname"], node["NodeManagerAddress"], node.get("NodeName")
    return f"{host} ({address})" if given in (None, "", host, address) else f"{given} on {host} ({address})"


def is_here(path: Path) -> bool:
    """Return whether a folder that a worker has made is visible here."""
    if path.is_dir():
        return True
    for parent in reversed(path.parents):  # reading a folder has NFS ask its server for what is new in it
        with contextlib.suppress(OSError):
            os.listdir(parent)
    return path.is_dir()


def not_shared(folder: Path, nodes: str, lost: str = "") -> StudyError:
    """Build the error for nodes that do not see a folder.

    Args:
        folder: The sweep's folder.
        nodes: The nodes that do not see it.
        lost: A checkpoint in it that was lost; empty where none was.
    """
    what = f"{lost} lies on node {nodes} alone" if lost else f"{folder} cannot be seen on node {nodes}"
    return StudyError(
        f"output_dir={folder.parent}: {what}",
        "a folder on storage that all nodes of the cluster share, under the same path",
        "output_dir=/shared/outputs, or the same storage mounted there on each node",
    )
