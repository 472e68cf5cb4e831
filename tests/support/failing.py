"""An environment that raises where it is asked to, and one with the same episodes that truncates there by itself."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np


class Failing(gym.Env[Any, Any]):
    """Counts its steps: observation [seed drawn, step], reward is the step; ends after ``length`` steps.

    Args:
        length: Of an episode.
        fail_at: The step of each copy's life that raises; the copy that follows knows nothing of it. 0: none.
        fail_in: ``step``, or ``reset``, where ``fail_at`` counts the resets.
        truncate_at: The step of each copy's life after which it truncates by itself. 0: none.
        exits: Call ``sys.exit`` in place of an exception.
    """

    observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)
    made: ClassVar[list[Failing]] = []

    def __init__(
        self, length: int = 5, fail_at: int = 0, fail_in: str = "step", truncate_at: int = 0, exits: bool = False
    ) -> None:
        self.length, self.fail_at, self.fail_in = length, fail_at, fail_in
        self.truncate_at, self.exits = truncate_at, exits
        self.count, self.life, self.resets, self.episode = 0, 0, 0, -1
        self.seeds: list[int | None] = []
        self.is_closed = False
        Failing.made.append(self)

    def _fail(self) -> None:
        if self.exits:
            raise SystemExit(3)
        raise ConnectionResetError("the simulator has closed the connection")

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seeds.append(seed)
        self.resets, self.count, self.episode = self.resets + 1, 0, self.episode + 1
        if self.fail_in == "reset" and self.resets == self.fail_at:
            self._fail()
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.life += 1
        if self.fail_in == "step" and self.life == self.fail_at:
            self._fail()
        self.count += 1
        obs = np.array([self.episode, self.count], np.float32)
        ended, info = self.count == self.length, {"energy": float(self.count)}
        return obs, float(self.count), ended, self.life == self.truncate_at and not ended, info

    def close(self) -> None:
        self.is_closed = True


gym.register("Failing-v0", entry_point=Failing)
