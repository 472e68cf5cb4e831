"""A2C is PPO with nothing clipped, raw advantages and RMSProp; it learns as A2C's formula says."""

from __future__ import annotations

import gymnasium
import torch

from rltune.algorithms.a2c import A2C, A2CConfig, RawAdvantages


def test_its_learner_steps_by_rmsprop_on_raw_advantages():
    space = gymnasium.make("CartPole-v1")
    config = A2CConfig().environment("CartPole-v1").training(rmsprop_alpha=0.9, rmsprop_epsilon=0.25)
    spaces = {"default_policy": (space.observation_space, space.action_space)}
    learner = config.build_learner(spaces=spaces)
    (optimizer,) = learner.get_optimizers_for_module("default_policy")[0][1:]
    assert isinstance(optimizer, torch.optim.RMSprop)
    assert (optimizer.defaults["alpha"], optimizer.defaults["eps"]) == (0.9, 0.25)
    assert isinstance(learner._learner_connector.connectors[-1], RawAdvantages)


def test_settings_left_out_stay_and_ppos_own_can_be_given():
    config = A2CConfig().training(lr=0.5)
    assert (config.lr, config.rmsprop_alpha, config.rmsprop_epsilon) == (0.5, 0.99, 1e-5)
    assert type(A2C.get_default_config()) is A2CConfig
