"""RLlib's PPO learner, and the same batch for it and for ours."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from rltune.engine.on_policy.ppo import TrainBatch
from rltune.engine.on_policy.ppo_loss import ActionDistribution, PPOBatch
from rltune.engine.sampling.action_distributions import count_parts
from rltune.envs.layout import ILLEGAL
from tests.engine.masked import mask_config

ROWS, INPUTS = 96, 5
OBS = gym.spaces.Box(-10, 10, (INPUTS,), np.float32)
SPACES = {
    "discrete": gym.spaces.Discrete(3),
    "continuous": gym.spaces.Box(-1, 1, (2,), np.float32),
    "choices": gym.spaces.MultiDiscrete([3, 2, 5]),
    "buttons": gym.spaces.MultiDiscrete([2, 2, 2, 2]),
    "mixed": gym.spaces.Tuple((gym.spaces.MultiDiscrete([3, 2]), gym.spaces.Box(-1, 1, (2,), np.float32))),
}


def make_config(
    space: str, model: dict[str, Any], kind: type[PPOConfig] = PPOConfig, masked: bool = False, **training: Any
) -> PPOConfig:
    settings = {
        "lr": 3e-3,
        "num_epochs": 3,
        "minibatch_size": 32,
        "shuffle_batch_per_epoch": False,
    } | training
    config = (
        kind()
        .environment(observation_space=OBS, action_space=SPACES[space])
        .training(train_batch_size_per_learner=ROWS, **settings)
        .rl_module(model_config=DefaultModelConfig(**({"fcnet_hiddens": [16, 16], "vf_share_layers": False} | model)))
        .debugging(seed=3)
    )
    return mask_config(config, INPUTS, sum(count_parts(SPACES[space])[0])) if masked else config


def rllib_learner(config: PPOConfig) -> Any:
    learner = config.build_learner()
    with torch.no_grad():  # a wider policy than the initial one, so that ratios, KL and clips matter
        for param in learner.module["default_policy"].parameters():
            param.mul_(1.7)
    return learner


def random_batch(space: str) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    sizes, numbers = count_parts(SPACES[space])
    width = sum(sizes)
    dist = normal(ROWS, width + 2 * numbers) * 0.5
    parts = [torch.randint(0, size, (ROWS, 1), generator=generator) for size in sizes]
    if numbers:
        mean, log_std = dist[:, width:].chunk(2, 1)
        parts.append(mean + normal(ROWS, numbers) * log_std.exp())
    actions = torch.cat(parts, 1)
    actions = actions[:, 0] if space == "discrete" else actions
    return {
        "obs": normal(ROWS, INPUTS),
        "actions": actions,
        "action_dist_inputs": dist,
        "action_logp": ActionDistribution(sizes, numbers).sampled(dist, actions)[2],
        "advantages": normal(ROWS),
        "value_targets": normal(ROWS) * 5,
    }


def add_flags(space: str, columns: dict[str, torch.Tensor], ones: bool = False) -> dict[str, torch.Tensor]:
    """Return the batch with observations that end with flags, of which those of its actions are set."""
    generator = torch.Generator().manual_seed(2)
    sizes, numbers = count_parts(SPACES[space])
    flags = torch.ones(ROWS, sum(sizes)) if ones else torch.randint(0, 2, (ROWS, sum(sizes)), generator=generator)
    chosen = columns["actions"].reshape(ROWS, -1)[:, : len(sizes)].long()
    flags.scatter_(1, chosen + torch.tensor([0, *sizes[:-1]]).cumsum(0), 1)
    flags = torch.cat([flags, torch.ones(ROWS, 2 * numbers)], 1)
    dist = torch.where(flags != 0, columns["action_dist_inputs"], ILLEGAL)
    logp = ActionDistribution(sizes, numbers).sampled(dist, columns["actions"])[2]
    obs = torch.cat([columns["obs"], flags[:, : sum(sizes)].float()], 1)
    return {**columns, "obs": obs, "action_dist_inputs": dist, "action_logp": logp}


def our_batch(space: str, columns: dict[str, torch.Tensor]) -> PPOBatch:
    distribution = ActionDistribution(*count_parts(SPACES[space]))
    actions, dist, _ = distribution.sampled(columns["action_dist_inputs"], columns["actions"])
    return PPOBatch(
        columns["obs"], actions, dist, columns["action_logp"], columns["advantages"], columns["value_targets"]
    )


def train_batch(space: str, columns: dict[str, torch.Tensor]) -> TrainBatch:
    """The batch without artificial steps."""
    rows = our_batch(space, columns)
    return TrainBatch(rows, torch.zeros(0), torch.ones(rows.num_rows, dtype=torch.bool))
