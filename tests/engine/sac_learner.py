"""RLlib's SAC learner, and the same transitions for it and for ours."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.sac import SACConfig

from rltune.algorithms.sac import use_plain_critics

ROWS, INPUTS, GAMMA = 40, 5, 0.95
OBS = gym.spaces.Box(-10, 10, (INPUTS,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (2,), np.float32)


def make_config(model: dict[str, Any], **training: Any) -> Any:
    model = {"fcnet_hiddens": [16, 16], "fcnet_activation": "relu"} | model
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "alpha_lr": 3e-3, "target_entropy": -1.5}
    config = (
        SACConfig()
        .environment(observation_space=OBS, action_space=ACTIONS)
        .training(**({"gamma": GAMMA, "tau": 0.1, "train_batch_size_per_learner": ROWS} | rates | training))
        .rl_module(model_config=model)
        .debugging(seed=3)
    )
    return use_plain_critics(config)


def make_learner(config: SACConfig) -> Any:
    learner = config.build_learner()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for param in learner.module["default_policy"].parameters():
            param.add_(torch.randn(param.shape, generator=generator) * 0.2)
    return learner


def random_columns(n_step: int, seed: int) -> dict[str, np.ndarray]:
    """A drawn batch: errors on both sides of Huber's bend, no, some or all of its rows at an episode's end."""
    rng = np.random.default_rng(seed)
    reward_scale, obs_scale = 10.0 ** rng.uniform(-2, 1), 10.0 ** rng.uniform(-1, 0.5)
    ends = rng.choice([0.0, 0.2, 1.0])
    actions = np.tanh(rng.normal(size=(ROWS, 2))).astype(np.float32)
    return {
        "obs": rng.normal(0, obs_scale, (ROWS, INPUTS)).astype(np.float32),
        "new_obs": rng.normal(0, obs_scale, (ROWS, INPUTS)).astype(np.float32),
        "actions": actions,
        "rewards": rng.normal(0, reward_scale, ROWS).astype(np.float32),
        "terminateds": rng.random(ROWS) < ends,
        "truncateds": rng.random(ROWS) < 0.2,  # their next observation has its value: no mask
        "weights": rng.random(ROWS).astype(np.float32),
        "n_step": np.full(ROWS, n_step, np.float32),
    }


def our_rows(columns: dict[str, np.ndarray], n_step: int) -> np.ndarray:
    discount = GAMMA**n_step * (1.0 - columns["terminateds"])
    parts = [columns["obs"], columns["new_obs"], columns["actions"].reshape(ROWS, -1)]
    return np.hstack([*parts, columns["rewards"][:, None], discount[:, None]]).astype(np.float32)
