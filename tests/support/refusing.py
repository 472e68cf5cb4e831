"""An environment of a user's that no trial can train in, though it passes the check of the request.

Sweeps of their own find this module in their folder, as a user's: it imports nothing of rltune.
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium
import numpy as np


class Refusing(gymnasium.Env[Any, Any]):
    """An episode takes eight steps, of which each pays 1; in a trial's process each reset or step fails.

    Args:
        fault: ``raise``, ``exit``, ``reward``, or ``observation``.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, fault: str = "raise") -> None:
        self.fault = fault if "RAY_JOB_ID" in os.environ else ""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = 8
        if self.fault == "raise":
            raise ConnectionError("the simulator's licence has expired")
        if self.fault == "exit":
            os._exit(3)
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.left -= 1
        reward = float("nan") if self.fault == "reward" else 1.0
        size = 2 if self.fault == "observation" else 3
        return np.zeros(size, np.float32), reward, self.left == 0, False, {}


gymnasium.register("Refusing-v0", Refusing)
