"""RLlib's configs for environments with an action mask, and rows that end with its flags."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from ray.rllib.algorithms.dqn.dqn_catalog import DQNCatalog
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rltune.algorithms.masked_modules import LAYOUT, find_masked_class
from rltune.envs.observations import make_layout


class Cut:
    @classmethod
    def _get_encoder_config(cls, observation_space: Any, model_config_dict: Any, action_space: Any = None) -> Any:
        layout = model_config_dict[LAYOUT]["leaves"]
        width = sum(leaf["size"] for leaf in layout if leaf["kind"] != "mask")
        space = gym.spaces.Box(-1, 1, (width,), np.float32)
        return super()._get_encoder_config(space, model_config_dict, action_space)  # type: ignore[misc]


class CutDQN(Cut, DQNCatalog): ...


class CutPPO(Cut, PPOCatalog): ...


def mask_config(config: Any, num_inputs: int, num_flags: int) -> Any:
    """Let a config's networks see ``num_inputs`` columns of observations that end with ``num_flags`` flags."""
    seen = gym.spaces.Box(-10, 10, (num_inputs,), np.float32)
    layout = make_layout(seen, mask=(), num_flags=num_flags)
    rows = gym.spaces.Box(-10, 10, (num_inputs + num_flags,), np.float32)
    model = config.model_config if isinstance(config.model_config, dict) else vars(config.model_config)
    catalog = CutDQN if "dqn" in type(config).__module__ else CutPPO
    return config.environment(observation_space=rows).rl_module(
        model_config={**model, LAYOUT: layout.to_dict()},
        rl_module_spec=RLModuleSpec(module_class=find_masked_class(config), catalog_class=catalog),
    )


def draw_flags(rng: np.random.Generator, rows: int, num_flags: int) -> np.ndarray:
    """Draw flags [rows, flags] of which at least one is set, and not always all."""
    flags = rng.random((rows, num_flags)) < 0.5
    flags[np.arange(rows), rng.integers(num_flags, size=rows)] = True
    return flags.astype(np.float32)
