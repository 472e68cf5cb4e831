"""For the same weights and the same batch, our DQN update is RLlib's own learner's, to 1e-5."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from rltune.engine.off_policy.dqn import DQNUpdate
from rltune.engine.off_policy.transitions import RowLayout

ROWS, INPUTS, ACTIONS, GAMMA = 48, 5, 3, 0.95
OBS = gym.spaces.Box(-10, 10, (INPUTS,), np.float32)
LAYOUT = RowLayout((INPUTS,), 1)


def make_config(model: dict[str, Any], **training: Any) -> DQNConfig:
    model = {"fcnet_hiddens": [16, 16], "head_fcnet_hiddens": [8]} | model
    return (
        DQNConfig()
        .environment(observation_space=OBS, action_space=gym.spaces.Discrete(ACTIONS))
        .training(**({"lr": 3e-3, "gamma": GAMMA, "train_batch_size_per_learner": ROWS} | training))
        .rl_module(model_config=DefaultModelConfig(**model))
        .debugging(seed=3)
    )


def make_learner(config: DQNConfig) -> Any:
    learner = config.build_learner()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():  # targets that differ from the online networks
        for param in learner.module["default_policy"].parameters():
            param.add_(torch.randn(param.shape, generator=generator) * 0.3)
    return learner


def random_columns(n_step: int, seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {
        "obs": rng.normal(size=(ROWS, INPUTS)).astype(np.float32),
        "new_obs": rng.normal(size=(ROWS, INPUTS)).astype(np.float32),
        "actions": rng.integers(0, ACTIONS, ROWS),
        "rewards": rng.normal(size=ROWS).astype(np.float32) * 3,
        "terminateds": rng.random(ROWS) < 0.2,
        "weights": rng.random(ROWS).astype(np.float32),
        "n_step": np.full(ROWS, n_step, np.float32),
    }


def our_rows(columns: dict[str, np.ndarray], n_step: int) -> np.ndarray:
    discount = GAMMA**n_step * (1.0 - columns["terminateds"])
    parts = [columns["obs"], columns["new_obs"], columns["actions"][:, None]]
    return np.hstack([*parts, columns["rewards"][:, None], discount[:, None]]).astype(np.float32)


CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "double, dueling, huber": ({}, {}),
    "plain": ({}, {"double_q": False, "dueling": False, "grad_clip": None}),
    "double only, mse": ({"fcnet_activation": "relu"}, {"dueling": False, "td_error_loss_fn": "mse"}),
    "dueling only, 3 steps": ({}, {"double_q": False, "n_step": 3}),
    "tight global norm": ({}, {"grad_clip": 0.05}),
    "clip by value": ({}, {"grad_clip": 0.01, "grad_clip_by": "value"}),
    "norm of each tensor": ({}, {"grad_clip": 0.02, "grad_clip_by": "norm"}),
    "schedule": ({}, {"lr": [[0, 1e-2], [100, 1e-3]]}),
    "soft targets": ({}, {"tau": 0.1}),
    "layer norm (autograd)": ({"fcnet_use_layernorm": True}, {}),
}


@pytest.mark.parametrize("case", CASES)
def test_weights_targets_and_statistics_equal_rllibs_learner(case: str) -> None:
    model, training = CASES[case]
    config = make_config(model, target_network_update_freq=20, **training)
    n_step = training.get("n_step", 1)
    theirs, ours = make_learner(config), make_learner(config)
    update = DQNUpdate(ours, config, LAYOUT)
    updated_at = 0
    for index, clock in enumerate((10, 30, 40)):  # one target update, at 30
        columns = random_columns(n_step, index)
        expected = theirs.update(
            batch=MultiAgentBatch(
                {"default_policy": SampleBatch({k: torch.from_numpy(v) for k, v in columns.items()})}, env_steps=ROWS
            ),
            timesteps={"num_env_steps_sampled_lifetime": clock},
        )["default_policy"]
        with torch.no_grad():
            errors = update.step(our_rows(columns, n_step), columns["weights"])
            if clock - updated_at >= 20:
                update.targets.update(config.tau)
                updated_at = clock
            stats = update.statistics()
            update.advance(clock)
        td_errors = np.concatenate([np.atleast_1d(np.asarray(x)) for x in expected["td_error"].peek()])
        np.testing.assert_allclose(errors.numpy(), td_errors, atol=1e-5)
        for name, value in stats.items():
            if name != "default_optimizer_learning_rate":
                assert value == pytest.approx(float(expected[name].peek()), abs=1e-5, rel=1e-5), name
    found = dict(ours.module["default_policy"].named_parameters())
    for name, param in theirs.module["default_policy"].named_parameters():
        torch.testing.assert_close(found[name], param, atol=1e-5, rtol=0, msg=lambda m, n=name: f"{n}: {m}")
