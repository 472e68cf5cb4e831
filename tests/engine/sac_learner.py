"""RLlib's SAC learner, and the same transitions for it and for ours."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian

from rltune.algorithms.sac import PlainSACConfig, use_plain_critics

ROWS, INPUTS, GAMMA = 40, 5, 0.95
OBS = gym.spaces.Box(-10, 10, (INPUTS,), np.float32)
ACTIONS = gym.spaces.Box(-2, 2, (2,), np.float32)
SQUARED: dict[str, dict[str, Any]] = {
    "twin critics": {},
    "one critic, 3 steps": {"twin_q": False, "n_step": 3},
    "global norm": {"grad_clip": 0.1, "grad_clip_by": "global_norm"},
}
"""Settings with which squared errors are compared."""


def make_config(model: dict[str, Any], **training: Any) -> Any:
    model = {"fcnet_hiddens": [16, 16], "fcnet_activation": "relu"} | model
    rates = {"actor_lr": 1e-3, "critic_lr": 2e-3, "alpha_lr": 3e-3, "target_entropy": -1.5}
    # RLlib's own config lacks the setting, and its own learner, with Huber losses, is what ours is compared with.
    base = PlainSACConfig() if "td_error_loss_fn" in training else use_plain_critics(SACConfig())
    return (
        base.environment(observation_space=OBS, action_space=ACTIONS)
        .training(**({"gamma": GAMMA, "tau": 0.1, "train_batch_size_per_learner": ROWS} | rates | training))
        .rl_module(model_config=model)
        .debugging(seed=3)
    )


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


def use_noise(monkeypatch: pytest.MonkeyPatch, noise: list[torch.Tensor]) -> None:
    """Have RLlib's distribution draw the only tensor in ``noise``: first for the present actions, then for the next."""

    def fixed(which: int) -> Any:
        def sample(self: Any, *, sample_shape: Any = None) -> Any:
            raw = self._dist.loc + self._dist.scale * noise[0][which]
            return self._squash(raw), self._squashed_logp(raw)

        return sample

    monkeypatch.setattr(TorchSquashedGaussian, "rsample_and_logp", fixed(0))
    monkeypatch.setattr(TorchSquashedGaussian, "sample_and_logp", fixed(1))


def square_rllibs_losses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give RLlib's own learner half the squared errors: Huber's losses with the bend beyond all errors."""
    huber = torch.nn.HuberLoss
    monkeypatch.setattr(torch.nn, "HuberLoss", lambda reduction, delta: huber(reduction=reduction, delta=1e9))
