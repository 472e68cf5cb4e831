"""A simulator of which few copies may be open at once in a process, and whose starts are counted.

Sweeps of their own find this module in their folder, as a user's: it imports nothing of rltune.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

OPEN: set[int] = set()
"""The copies that are open in this process."""
STARTED: list[int] = []
"""How many were open after each start in this process."""


def forget() -> None:
    """Begin anew in this process, as each test does."""
    OPEN.clear()
    STARTED.clear()


class FewCopies(gymnasium.Env[Any, Any]):
    """An episode takes eight steps, of which each pays 1 for one of the actions.

    Args:
        most: So many copies may be open.
        name: What searches may vary.
        log: A file that gets a line for each start: the process, and how many copies are open in it.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, most: int = 1, log: str | None = None, name: str = "") -> None:
        if len(OPEN) >= most:
            raise RuntimeError(f"{most} of {most} copies are in use in this process")
        OPEN.add(id(self))
        STARTED.append(len(OPEN))
        if log:
            with open(log, "a") as file:
                file.write(f"{os.getpid()} {len(OPEN)}\n")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.length += 1
        return self._observe(), float(action), self.length == 8, False, {}

    def close(self) -> None:
        OPEN.discard(id(self))

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, 3).astype(np.float32)


gymnasium.register("FewCopies-v0", FewCopies)
