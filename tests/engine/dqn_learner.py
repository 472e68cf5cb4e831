"""RLlib's DQN learner, and the same transitions for it and for ours."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from rltune.engine.off_policy.dqn import DQNUpdate
from rltune.engine.off_policy.transitions import RowLayout
from tests.engine.masked import draw_flags, mask_config

ROWS, INPUTS, ACTIONS, GAMMA = 48, 5, 3, 0.95
OBS = gym.spaces.Box(-10, 10, (INPUTS,), np.float32)


def make_config(model: dict[str, Any], masked: bool = False, **training: Any) -> DQNConfig:
    model = {"fcnet_hiddens": [16, 16], "head_fcnet_hiddens": [8]} | model
    config = (
        DQNConfig()
        .environment(observation_space=OBS, action_space=gym.spaces.Discrete(ACTIONS))
        .training(**({"lr": 3e-3, "gamma": GAMMA, "train_batch_size_per_learner": ROWS} | training))
        .rl_module(model_config=DefaultModelConfig(**model))
        .debugging(seed=3)
    )
    return mask_config(config, INPUTS, ACTIONS) if masked else config


def make_learner(config: DQNConfig) -> Any:
    learner = config.build_learner()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # targets that differ from the online networks
        for param in learner.module["default_policy"].parameters():
            param.add_(torch.randn(param.shape, generator=generator) * 0.3)
    return learner


def make_update(learner: Any, config: DQNConfig) -> DQNUpdate:
    return DQNUpdate(learner, config, RowLayout(config.observation_space.shape, 1))


def random_columns(n_step: int, seed: int) -> dict[str, np.ndarray]:
    """A drawn batch: errors on both sides of Huber's bend, no, some or all of its rows at an episode's end."""
    rng = np.random.default_rng(seed)
    reward_scale, obs_scale = 10.0 ** rng.uniform(-2, 1), 10.0 ** rng.uniform(-1, 0.5)
    ends = rng.choice([0.0, 0.2, 1.0])
    return {
        "obs": rng.normal(0, obs_scale, (ROWS, INPUTS)).astype(np.float32),
        "new_obs": rng.normal(0, obs_scale, (ROWS, INPUTS)).astype(np.float32),
        "actions": rng.integers(0, ACTIONS, ROWS),
        "rewards": rng.normal(0, reward_scale, ROWS).astype(np.float32),
        "terminateds": rng.random(ROWS) < ends,
        "truncateds": rng.random(ROWS) < 0.2,  # their next observation has its value: no mask
        "weights": rng.random(ROWS).astype(np.float32),
        "n_step": np.full(ROWS, n_step, np.float32),
    }


def add_flags(columns: dict[str, np.ndarray], seed: int, ones: bool = False) -> dict[str, np.ndarray]:
    """Return a batch whose observations end with flags, of which those of its actions are set."""
    rng, masked = np.random.default_rng(seed), dict(columns)
    for name in ("obs", "new_obs"):
        flags = np.ones((ROWS, ACTIONS), np.float32) if ones else draw_flags(rng, ROWS, ACTIONS)
        if name == "obs":
            flags[np.arange(ROWS), columns["actions"]] = 1
        masked[name] = np.hstack([columns[name], flags])
    return masked


def our_rows(columns: dict[str, np.ndarray], n_step: int) -> np.ndarray:
    discount = GAMMA**n_step * (1.0 - columns["terminateds"])
    parts = [columns["obs"], columns["new_obs"], columns["actions"][:, None]]
    return np.hstack([*parts, columns["rewards"][:, None], discount[:, None]]).astype(np.float32)
