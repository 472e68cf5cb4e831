"""Count how many trials run at once: as many as the nodes have room for, which a cluster gains and loses.

Runs in the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from rltune.cluster.resources import Bundles, Machine, count_slots

WITHOUT_PLACE = ("PENDING", "PREPARED", "RESCHEDULING")  # a placement group's states before all its bundles have a node


class Slots:
    """How many trials run at once.

    Args:
        bundles: A trial's, with ``CPU`` and ``GPU`` of each.
        limit: The most that are of use: ``resources.max_concurrent``, or the number of trials.
        nodes: What there is now.
        autoscales: Whether a place is asked for as often as there is a limit, so that an autoscaler starts nodes.
    """

    clock: Callable[[], float] = staticmethod(time.monotonic)

    def __init__(self, bundles: Bundles, limit: int, nodes: Sequence[Machine], autoscales: bool = False) -> None:
        self._bundles, self._limit, self._autoscales = bundles, limit, autoscales
        self._waiting: frozenset[str] = frozenset()
        self._num_blocked = self._num_held = 0
        self._larger: dict[str, Bundles] = {}
        self._pending: set[str] = set()
        self._take_in(nodes)
        self._history = [(self.clock(), self._count_usable())]  # since when how many were ours to use

    @property
    def count(self) -> int:
        """Return the trials at once: at least one, whose request for a place has a cluster without one start a node."""
        return self._limit if self._autoscales else max(1, self._room)

    @property
    def are_kept(self) -> bool:
        """Whether what falls free is kept for a larger trial: smaller ones would take it, on one GPU and the other."""
        return bool(self._pending)

    def update(self, nodes: Sequence[Machine], groups: Mapping[str, str]) -> None:
        """Take in what a cluster has now.

        Args:
            nodes: Those that are alive.
            groups: The placement groups of this sweep's trials, one each, by their ids: their states.
        """
        self._pending.clear()  # on a cluster others may hold for ever what a larger one waits for
        waiting = frozenset(name for name, state in groups.items() if state in WITHOUT_PLACE)
        self._num_held = sum(state == "CREATED" for state in groups.values())
        self._num_blocked = len(waiting & self._waiting)  # a new one waits for a moment in any case
        self._waiting = waiting
        self._take_in(nodes)
        usable = self._count_usable()
        if usable != self._history[-1][1]:
            self._history.append((self.clock(), usable))

    def hold(self, trial: str, bundles: Bundles | None) -> None:
        """Count with a trial's own bundles until `release`; None are the common ones."""
        if bundles is not None:
            self._larger[trial] = bundles
            self._pending.add(trial)
            self._take_in(self._nodes)

    def place(self, trial: str) -> None:
        """Take note that a trial has its place."""
        self._pending.discard(trial)

    def release(self, trial: str) -> None:
        """Count no more with the bundles that a trial had of its own, if it had any."""
        self._pending.discard(trial)
        if self._larger.pop(trial, None):
            self._take_in(self._nodes)

    def _take_in(self, nodes: Sequence[Machine]) -> None:
        self._nodes = nodes
        self._room = count_slots(self._bundles, nodes, self._limit, tuple(self._larger.values()))
        self._has_cpus = any(node.cpus for node in nodes)

    def describe_wait(self) -> str:
        """Say what the trials wait for that could run and do not; empty where none waits."""
        if not self._num_blocked:
            return ""
        if not self._has_cpus:
            return "waiting for a node: the cluster has no CPU yet"
        if not self._room:
            return f"waiting for a node with room for a trial: {self._describe_resources(1)}"
        if others := self._count_held_by_others():
            return f"waiting for {self._describe_resources(others)} held by others"
        return f"waiting for {self._describe_resources(self._num_blocked)} more than the cluster has"

    def mean(self) -> float:
        """Return how many there were over the time; what others held was none of ours."""
        history, now = [*self._history], self.clock()
        if len(history) == 1 or now <= history[0][0]:
            return history[0][1]
        ends = [(then - since, usable) for (since, usable), (then, _) in pairwise([*history, (now, 0.0)])]
        return sum(lasted * usable for lasted, usable in ends) / (now - history[0][0])

    def _count_usable(self) -> float:
        return float(max(1, self._room) - self._count_held_by_others())

    def _count_held_by_others(self) -> int:
        return max(0, min(self._num_blocked, self._room - self._num_held))

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
