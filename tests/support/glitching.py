"""An environment whose second sensor reports a number far outside of its space, once."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Glitching(gymnasium.Env[Any, Any]):
    observation_space = spaces.Box(-5.0, 5.0, (2,), np.float32)
    action_space = spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, at: int = 300) -> None:
        self.clock, self.at = 0, at

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.clock, self.steps = self.clock + 1, self.steps + 1
        return self._observe(), 1.0, False, self.steps == 20, {}

    def _observe(self) -> Any:
        seen = self.np_random.uniform(-2, 2, 2)
        return np.array([seen[0], 1e8 if self.clock == self.at else seen[1]], np.float32)


gymnasium.register("Glitching-v0", entry_point=Glitching)
