"""Environments of ``benchmarks/spaces.py``, as both sides step them: masked actions, and a camera beside a vector.

Gymnasium finds them by ids such as ``benchmarks.space_envs:Switches-v0``, for which it imports this module. A step of
`Switches` or `Camera` takes some 20 microseconds, so that a figure is the library's and not the environment's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

Returned = tuple[Any, dict[str, Any]]
Stepped = tuple[Any, float, bool, bool, dict[str, Any]]

NUM_SWITCHES = 339  # The number with which users of sb3-contrib met its limit.
CELLS, PIXELS = 8, 8  # Of the camera's room: cells a side, and pixels of a cell's side.
MOVES = np.array([(0, 1), (0, -1), (1, 0), (-1, 0)])


class Switches(gym.Env[Any, Any]):
    """Set each switch as the observation shows; half of the switches, others in each step, cannot be set wrongly.

    A step is worth the share of switches that are as shown, so that chance is worth 0.75.

    Args:
        num_switches: How many switches there are.
        length: Steps of an episode.
    """

    def __init__(self, num_switches: int = NUM_SWITCHES, length: int = 100) -> None:
        self.observation_space = self.action_space = gym.spaces.MultiBinary(num_switches)
        self._length, self._steps = length, 0
        self._shown = np.zeros(num_switches, np.int8)
        self._rows = np.arange(num_switches)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Returned:
        """Start an episode."""
        super().reset(seed=seed)
        self._steps = 0
        return self._show(), {}

    def step(self, action: Any) -> Stepped:
        """Set all switches."""
        reward = float(np.count_nonzero(action == self._shown)) / len(self._shown)
        self._steps += 1
        return self._show(), reward, False, self._steps >= self._length, {}

    def action_masks(self) -> np.ndarray:
        """Return two flags for each switch, one behind the other: whether it may be off, and whether it may be on."""
        return self._flags.reshape(-1)

    def _show(self) -> np.ndarray:
        bits = self.np_random.integers(0, 4, len(self._shown), dtype=np.int8)
        self._shown = bits & 1
        self._flags = np.ones((len(bits), 2), bool)
        self._flags[self._rows, 1 - self._shown] = bits > 1
        return self._shown


class Camera(gym.Env[Any, Any]):
    """Walk to the cell that a vector names, in a room that a camera shows from above.

    A step is worth 1 if it leads closer to the goal and -1 otherwise.

    Args:
        length: Steps of an episode, if the goal is not reached before.
    """

    observation_space = gym.spaces.Dict(
        {
            "camera": gym.spaces.Box(0, 255, (CELLS * PIXELS, CELLS * PIXELS, 3), np.uint8),
            "goal": gym.spaces.Box(-1, 1, (2,), np.float32),
        }
    )
    action_space = gym.spaces.Discrete(len(MOVES))

    def __init__(self, length: int = 20) -> None:
        self._length, self._steps = length, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Returned:
        """Start an episode."""
        super().reset(seed=seed)
        self._steps = 0
        self._at, self._goal = self.np_random.integers(0, CELLS, (2, 2))
        return self._look(), {}

    def step(self, action: Any) -> Stepped:
        """Walk into a neighbouring cell, or against a wall."""
        before = np.abs(self._at - self._goal).sum()
        self._at = np.clip(self._at + MOVES[action], 0, CELLS - 1)
        self._steps += 1
        after = np.abs(self._at - self._goal).sum()
        return self._look(), 1.0 if after < before else -1.0, not after, self._steps >= self._length, {}

    def _look(self) -> dict[str, np.ndarray]:
        camera = np.zeros(self.observation_space["camera"].shape, np.uint8)
        row, column = self._at * PIXELS
        camera[row : row + PIXELS, column : column + PIXELS] = 255
        return {"camera": camera, "goal": (2.0 * self._goal / (CELLS - 1) - 1.0).astype(np.float32)}


class JobShop(gym.Env[Any, Any]):
    """JSSEnv 1.1.0, whose reset neither takes a seed nor returns an info, with its mask in a method.

    Args:
        instance: The name of one of its instances: Taillard's first has 15 jobs on 15 machines.
    """

    def __init__(self, instance: str = "ta01") -> None:
        import JSSEnv.envs

        folder = Path(JSSEnv.envs.__file__).parent / "instances"
        self._env = JSSEnv.envs.JssEnv({"instance_path": folder / instance})
        self.action_space = self._env.action_space
        self.observation_space = gym.spaces.Box(0.0, 1.0, self._env.observation_space["real_obs"].shape, np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Returned:
        """Start an episode; all are alike."""
        return self._env.reset()["real_obs"].astype(np.float32), {}

    def step(self, action: Any) -> Stepped:
        """Give a job to its next machine, or wait."""
        obs, reward, terminated, truncated, info = self._env.step(action)
        return obs["real_obs"].astype(np.float32), float(reward), bool(terminated), truncated, info

    def action_masks(self) -> np.ndarray:
        """Return a flag for each job, and one for waiting."""
        flags: np.ndarray = self._env.get_legal_actions()
        return flags


INVALID_ACTIONS = "sb3_contrib.common.envs:InvalidActionEnvDiscrete"
"""sb3-contrib's own test of masks, with 60 of 80 actions illegal as in its documentation."""

for _name, _entry_point, _kwargs in (
    ("InvalidActions", INVALID_ACTIONS, {"dim": 80, "n_invalid_actions": 60}),
    ("Switches", Switches, {}),
    ("JobShop", JobShop, {}),
    ("Camera", Camera, {}),
):
    if f"{_name}-v0" not in gym.registry:
        gym.register(f"{_name}-v0", _entry_point, kwargs=_kwargs)
