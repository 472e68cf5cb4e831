"""Environments that observe square images of bytes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Pixels(gymnasium.Env[Any, Any]):
    action_space = spaces.Discrete(3, start=-1)

    def __init__(self, side: int) -> None:
        self.observation_space = spaces.Box(0, 255, (side, side, 3), np.uint8)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.steps += 1
        return self._observe(), float(action == 1), False, self.steps == 20, {}

    def _observe(self) -> Any:
        return self.np_random.integers(0, 256, self.observation_space.shape, np.uint8)


for side in (42, 64, 84, 96, 150):
    gymnasium.register(f"Pixels{side}-v0", entry_point=Pixels, kwargs={"side": side})
