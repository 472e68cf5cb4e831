"""A toy trial that starts processes beside its own, as RLlib's env runners and learners start inside a trial."""

from __future__ import annotations

import json
from typing import Any

import ray
from toy import ToyRunner, ToyTrial


@ray.remote
class Beside:
    """One process beside a trial's own."""

    def tell(self) -> dict[str, Any]:
        """Where it is, and what it holds."""
        context = ray.get_runtime_context()
        held = context.get_assigned_resources()
        whose = {"group": context.get_placement_group_id(), "node": context.get_node_id()}
        return {**whose, "cpus": held.get("CPU", 0), "gpus": ray.get_gpu_ids()}


class PlacedTrial(ToyTrial):
    """Writes ``placed.json`` into the trial's folder: its own place first, then env runners, then learners."""

    def build_runner(self, seed: int) -> ToyRunner:
        algo = self.task.build["algo"]
        runners, learners = algo["env_runners"]["num_env_runners"], algo["learners"]["num_learners"]
        gpus = self.task.build["gpus"] / max(1, learners)
        # RLlib's way: env runners by the bundle's number, learners wherever there is room (Ray 2.60).
        self.actors = [
            Beside.options(num_cpus=1, placement_group_bundle_index=1 + index).remote() for index in range(runners)
        ]
        self.actors += [Beside.options(num_cpus=1, num_gpus=gpus).remote() for _ in range(learners)]
        placements = ray.get([actor.tell.remote() for actor in self.actors], timeout=60)
        own = ray.get_runtime_context()
        placements.insert(
            0, {"group": own.get_placement_group_id(), "node": own.get_node_id(), "gpus": ray.get_gpu_ids()}
        )
        (self._store.folder / self.task.trial_dir).mkdir(parents=True, exist_ok=True)
        (self._store.folder / self.task.trial_dir / "placed.json").write_text(json.dumps(placements))
        return super().build_runner(seed)
