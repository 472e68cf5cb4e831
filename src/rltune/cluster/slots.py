"""Count how many trials run at once: as many as fit on the cluster's nodes, which may come and go.

Runs in the driver.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence

from rltune.cluster.resources import Bundles, Machine, count_slots

UNPLACED = ("PENDING", "PREPARED", "RESCHEDULING")  # States of placement groups that still wait for room on a node.


class Slots:
    """Counts the slots of a sweep, that is how many trials can run at once, while nodes join and leave.

    Args:
        bundles: The resources of a trial, with ``CPU`` and ``GPU`` of each of its processes.
        limit: The most that are of use: ``resources.max_concurrent``, or the number of trials.
        nodes: The nodes at the moment.
        autoscales: Whether to request resources for as many trials as the limit, so that an autoscaler starts nodes.
        per_node: The most trials on each node, see `rltune.cluster.resources.Request.trials_per_node`.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(
        self,
        bundles: Bundles,
        limit: int,
        nodes: Sequence[Machine],
        autoscales: bool = False,
        per_node: float = math.inf,
    ) -> None:
        self._bundles, self._limit, self._autoscales, self._per_node = bundles, limit, autoscales, per_node
        self._waiting: frozenset[str] = frozenset()
        self._num_blocked = self._num_placed = 0
        self._room = count_slots(bundles, nodes, limit, per_node)
        self._began_s = self._counted_s = self.clock()
        self._slot_seconds = 0.0

    @property
    def count(self) -> int:
        """Number of slots; at least one, so that a cluster without nodes gets a request that its autoscaler can see."""
        return self._limit if self._autoscales else max(1, self._room)

    def update(self, nodes: Sequence[Machine], groups: Mapping[str, str]) -> None:
        """Update the count from the cluster's present nodes and placement groups.

        Args:
            nodes: The nodes that are alive.
            groups: The states of the placement groups of this sweep's trials, one for each trial, by their ids.
        """
        self._add_time()
        waiting = frozenset(name for name, state in groups.items() if state in UNPLACED)
        self._num_placed = sum(state == "CREATED" for state in groups.values())
        # Every new group is pending for a moment. Only a group that was pending at the last update, too, is blocked.
        self._num_blocked = len(waiting & self._waiting)
        self._waiting = waiting
        self._room = count_slots(self._bundles, nodes, self._limit, self._per_node)

    def describe_wait(self) -> str:
        """Describe the resources that trials are waiting for; empty if no trial waits."""
        if not self._num_blocked:
            return ""
        if not self._room:
            return f"waiting for a node with room for a trial: {self._describe_resources(1)}"
        return f"waiting for {self._describe_resources(self._num_blocked)}"

    def mean(self) -> float:
        """Return the average number of slots over time, without slots that other jobs of the cluster occupied."""
        self._add_time()
        elapsed_s = self._counted_s - self._began_s
        return self._slot_seconds / elapsed_s if elapsed_s else float(self._count_usable())

    def _add_time(self) -> None:
        now = self.clock()
        self._slot_seconds += self._count_usable() * (now - self._counted_s)
        self._counted_s = now

    def _count_usable(self) -> int:
        return max(1, self._num_placed, self._room - self._num_blocked)

    def _describe_resources(self, num_trials: int) -> str:
        needed = {name: num_trials * sum(bundle.get(name, 0) for bundle in self._bundles) for name in ("CPU", "GPU")}
        words = [f"{amount:g} {name}{'' if amount == 1 else 's'}" for name, amount in needed.items() if amount]
        return " and ".join(words)


def update_from_cluster(slots: Slots) -> None:
    """Update the slots from the joined cluster. While its head is down, this waits for a minute or raises an error."""
    slots.update(list_nodes(), list_groups())


def list_nodes() -> tuple[Machine, ...]:
    """List the CPUs and GPUs of each node of the running Ray that is alive."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return tuple(Machine(cpus=resources.get("CPU", 0.0), gpus=resources.get("GPU", 0.0)) for resources in alive)


def list_groups() -> dict[str, str]:
    """List the states of the placement groups that this driver created, by their ids, which end with the driver's."""
    import ray

    driver = ray.get_runtime_context().get_job_id()
    groups = ray.util.placement_group_table()
    return {name: group["state"] for name, group in groups.items() if name.endswith(driver)}
