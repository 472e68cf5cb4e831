"""Count how many trials run at once: as many as fit on the nodes, which may join and leave a cluster.

Runs in the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from rltune.cluster.resources import Bundles, Machine, count_slots

UNPLACED = ("PENDING", "PREPARED", "RESCHEDULING")  # Placement groups in these states lack a node for a bundle.


class Slots:
    """Counts the trials that run at once.

    Args:
        bundles: The resources of a trial, with ``CPU`` and ``GPU`` of each of its processes.
        limit: The most that are of use: ``resources.max_concurrent``, or the number of trials.
        nodes: The nodes at the moment.
        autoscales: Whether to request resources for as many trials as the limit, so that an autoscaler starts nodes.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, bundles: Bundles, limit: int, nodes: Sequence[Machine], autoscales: bool = False) -> None:
        self._bundles, self._limit, self._autoscales = bundles, limit, autoscales
        self._waiting: frozenset[str] = frozenset()
        self._num_blocked = self._num_placed = 0
        self._room = count_slots(bundles, nodes, limit)
        self._began_s = self._counted_s = self.clock()
        self._slot_seconds = 0.0

    @property
    def count(self) -> int:
        """Number of concurrent trials; at least one, so that an autoscaler sees a pending request."""
        return self._limit if self._autoscales else max(1, self._room)

    def update(self, nodes: Sequence[Machine], groups: Mapping[str, str]) -> None:
        """Read what a cluster has now.

        Args:
            nodes: The nodes that are alive.
            groups: The states of the placement groups of this sweep's trials, one for each trial, by their ids.
        """
        self._add_time()
        waiting = frozenset(name for name, state in groups.items() if state in UNPLACED)
        self._num_placed = sum(state == "CREATED" for state in groups.values())
        # A new group always waits for a moment, so only groups that waited at the last update count as blocked.
        self._num_blocked = len(waiting & self._waiting)
        self._waiting = waiting
        self._room = count_slots(self._bundles, nodes, self._limit)

    def describe_wait(self) -> str:
        """Describe which resources the trials wait for; empty if none waits."""
        if not self._num_blocked:
            return ""
        if not self._room:
            return f"waiting for a node with room for a trial: {self._describe_resources(1)}"
        return f"waiting for {self._describe_resources(self._num_blocked)}"

    def mean(self) -> float:
        """Return how many slots the sweep could use on average over time, without those that other jobs held."""
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
    """Ask the joined Ray what it has now. While its head is away, this waits for a minute or raises an error."""
    slots.update(list_nodes(), list_groups())


def list_nodes() -> tuple[Machine, ...]:
    """List what the nodes of the Ray that runs have for trials."""
    import ray

    alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return tuple(Machine(cpus=resources.get("CPU", 0.0), gpus=resources.get("GPU", 0.0)) for resources in alive)


def list_groups() -> dict[str, str]:
    """List the states of this driver's placement groups, by id; an id ends with its driver's."""
    import ray

    driver = ray.get_runtime_context().get_job_id()
    groups = ray.util.placement_group_table()
    return {name: group["state"] for name, group in groups.items() if name.endswith(driver)}
