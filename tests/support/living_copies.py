"""A simulator that writes down when each of its copies begins and ends, and with which number.

Sweeps of their own find this module in their folder, as a user's: it imports nothing of rltune.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np


class LivingCopies(gymnasium.Env[Any, Any]):
    """An episode takes eight steps, of which each pays 1 for one of the actions.

    Args:
        log: A file that gets a line for each copy that begins or ends: the word, the process, the object, the number.
        number: The copy's.
        workdir: The copy's.
        env_config: With the copy's place, if its class is written for RLlib.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, log: str, number: int = 0, workdir: str | None = None, env_config: Any = None) -> None:
        assert workdir is None or not list(Path(workdir).iterdir())
        self.log, self.number = log, number
        self.place = env_config and (env_config.worker_index, env_config.vector_index)
        self._note("begins")

    def _note(self, word: str) -> None:
        with open(self.log, "a") as file:
            file.write(f"{word} {os.getpid()} {id(self)} {self.number}\n")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.length += 1
        return self._observe(), float(action), self.length == 8, False, {}

    def close(self) -> None:
        self._note("ends")

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


def count_most_alive(log: Path) -> int:
    """Return how many copies were alive at most, after checking that no two of them shared a number."""
    alive: dict[tuple[str, str], str] = {}
    most = 0
    for line in log.read_text().splitlines():
        word, pid, copy, number = line.split()
        if word == "ends":
            alive.pop((pid, copy), None)
            continue
        assert number not in alive.values(), (line, alive)
        alive[pid, copy] = number
        most = max(most, len(alive))
    return most


gymnasium.register("LivingCopies-v0", LivingCopies)
