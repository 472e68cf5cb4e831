"""A room that is seen by a camera, beside numbers and choices in one Dict."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as S


class Room(gymnasium.Env[Any, Any]):
    """Ten steps of noise: the camera has its channels last, as a simulator gives it."""

    def __init__(self) -> None:
        self.observation_space = S.Dict(
            camera=S.Box(0, 255, (20, 24, 3), np.uint8),
            goal=S.Box(-1, 1, (2,), np.float32),
            mode=S.Discrete(3, start=1),
        )
        self.action_space = S.Discrete(2)
        self.at = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        self.at = 0
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        self.at += 1
        return self.observation_space.sample(), float(action), self.at >= 10, False, {}


gymnasium.register("Room-v0", entry_point=Room)
ROOM = f"{__name__}:Room-v0"
