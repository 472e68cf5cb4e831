"""An environment whose infos have numbers of many kinds, and one dict for all of them."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

METRICS = {"speed": "mean", "energy": "sum", "force": "max", "rewards.forward": "sum", "done": "last", "rare": "last"}


class Informing(gym.Env[Any, Any]):
    """Episodes of ``length`` steps; step i of episode n has ``speed`` i, and ``rare`` is n at the end of every third.

    Args:
        length: The steps of an episode.
        reuse: Whether all infos are one dict, which the environment changes.
        plain: Whether it can be pickled.
    """

    observation_space = gym.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, length: int = 5, reuse: bool = False, plain: bool = True) -> None:
        self.length, self.info = length, dict[str, Any]() if reuse else None
        self.episode = self.steps = 0
        self.extra = None if plain else (number for number in ())

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode, self.steps = self.episode + 1, 0
        if self.info is not None:
            self.info.clear()
        return self._look(), {"speed": np.float32(1e6), "energy": np.array([1e6])}

    def _look(self) -> Any:
        return np.array([self.steps / 1000, (self.episode % 10) / 10, 0.0], np.float32)

    def step(self, action: Any) -> Any:
        self.steps += 1
        over = self.steps >= self.length
        info = {} if self.info is None else self.info
        info |= {"speed": np.float32(self.steps), "energy": np.array([2.0]), "force": -self.steps, "note": "fine"}
        info |= {"rewards": {"forward": 0.5}, "done": np.bool_(over)}
        if over and self.episode % 3 == 0:
            info["rare"] = self.episode
        return self._look(), 1.0, False, over, info


gym.register("Informing-v0", entry_point=Informing)
