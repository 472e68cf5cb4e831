"""A toy trial that asks for more of its GPU's memory than its share, where ``params['needs']`` says so."""

from __future__ import annotations

import json
import time
from typing import Any

import ray
from toy import ToyRunner, ToyTrial

from rltune.trial.metrics import Progress

# As torch 2.13 says it of a process that `set_per_process_memory_fraction` has limited.
MESSAGE = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 139.72 GiB of which 90.00 GiB is "
    "free. Including non-PyTorch memory, this process has 33.60 GiB memory in use. 34.43 GiB allowed; Of the allocated "
    "memory 33.10 GiB is allocated by PyTorch, and 12.00 MiB is reserved by PyTorch but unallocated."
)


class HogRunner(ToyRunner):
    """Runs out of memory after 500 steps, unless it has the part of a GPU that it needs."""

    def __init__(self, task: Any, seed: int) -> None:
        super().__init__(task.params, seed, float(task.params.get("seconds", 0.0)))
        self.gpus = task.build["gpus"]

    def train(self) -> Progress:
        progress = super().train()
        if self.env_steps > 500 and self.gpus < self.params.get("needs", 0.0):
            import torch

            raise torch.OutOfMemoryError(MESSAGE)
        return progress


class HogTrial(ToyTrial):
    """Writes down, for each of its steps, on which GPU it was, with which part of it, and when."""

    def build_runner(self, seed: int) -> HogRunner:
        return HogRunner(self.task, seed)

    def step(self) -> dict[str, Any]:
        began = time.time()
        result = super().step()
        (gpu,) = ray.get_gpu_ids()
        held = {"gpu": gpu, "part": self.task.build["gpus"], "began": began, "ended": time.time()}
        home = self._store.folder / self.task.trial_dir
        home.mkdir(parents=True, exist_ok=True)
        with (home / "held.jsonl").open("a") as file:
            file.write(json.dumps(held) + "\n")
        return result
