"""An environment with arguments to search: of its policy, of its rewards alone, and some that change its spaces.

Sweeps of their own find this module in their folder, as a user's: it imports nothing of rltune.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np

STARTED: list[dict[str, Any]] = []
"""The arguments of each start in this process."""


class Knobs(gymnasium.Env[Any, Any]):
    """Each step repeats its action, and action 1 earns. The info has what was earned without the weight.

    Args:
        repeat: How often an action is taken.
        weight: What a reward is multiplied by.
        size: The length of an observation.
        most: The highest action torque; None for two choices.
        log: A file that gets a line for each start.
    """

    def __init__(
        self, repeat: int = 1, weight: float = 1.0, size: int = 3, most: float | None = None, log: Any = None
    ) -> None:
        STARTED.append({"repeat": repeat, "weight": weight, "size": size})
        if repeat < 1:
            raise ValueError("an action is taken at least once")
        if isinstance(log, str):
            with open(log, "a") as file:
                file.write(f"{os.getpid()} {repeat} {weight}\n")
        self.repeat, self.weight = repeat, weight
        self.observation_space = gymnasium.spaces.Box(-1, 1, (size,), np.float32)
        self.action_space = gymnasium.spaces.Box(-most, most) if most else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.length, self.earned = 0, 0.0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        before = self.earned
        for _ in range(self.repeat):
            self.length += 1
            self.earned += float(np.sum(action))
        reward = self.weight * (self.earned - before)
        return self._observe(), reward, self.length >= 8, False, {"earned": self.earned}

    def _observe(self) -> Any:
        return self.np_random.uniform(-1, 1, self.observation_space.shape).astype(np.float32)


class Bonus(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Adds to each reward.

    Args:
        env: The environment.
        bonus: What is added.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], bonus: float = 0.0) -> None:
        super().__init__(env)
        self.bonus = bonus

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        obs, reward, terminated, truncated, info = self.env.step(action)
        return obs, float(reward) + self.bonus, terminated, truncated, info


gymnasium.register("Knobs-v0", Knobs)
