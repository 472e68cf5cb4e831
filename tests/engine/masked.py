"""RLlib's configs for environments with an action mask, and rows that end with its flags."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np

from rltune.compat.row_catalog import see_rows
from rltune.envs.observations import make_layout, make_view_space


def mask_config(config: Any, num_inputs: int, num_flags: int) -> Any:
    """Let a config's networks see ``num_inputs`` columns of observations that end with ``num_flags`` flags."""
    layout = make_layout(gym.spaces.Box(-10, 10, (num_inputs,), np.float32), mask=(), num_flags=num_flags)
    see_rows(config, layout)
    return config.environment(observation_space=make_view_space(layout))


def draw_flags(rng: np.random.Generator, rows: int, num_flags: int) -> np.ndarray:
    """Draw flags [rows, flags] of which at least one is set, and not always all."""
    flags = rng.random((rows, num_flags)) < 0.5
    flags[np.arange(rows), rng.integers(num_flags, size=rows)] = True
    return flags.astype(np.float32)
