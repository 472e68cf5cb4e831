"""SAC's plain critics take observation and action as one vector."""

from __future__ import annotations

import gymnasium
import pytest
import torch
from ray.rllib.algorithms.sac import SACConfig

from rltune.algorithms.sac import PlainSACConfig, use_plain_critics
from rltune.compat.sac_catalog import ConcatEncoder
from rltune.compat.sac_learner import SquaredErrorSACLearner


@pytest.mark.parametrize("make", [PlainSACConfig, lambda: use_plain_critics(SACConfig())])
def test_each_critic_reads_observation_and_action_side_by_side(make):
    env = gymnasium.make("Pendulum-v1")
    config = make().environment("Pendulum-v1").rl_module(model_config={"fcnet_hiddens": [8, 8]})
    spaces = {"default_policy": (env.observation_space, env.action_space)}
    module = config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()["default_policy"]
    for critic in (module.qf_encoder, module.qf_twin_encoder):
        assert isinstance(critic, ConcatEncoder)
        first = next(layer for layer in critic.modules() if isinstance(layer, torch.nn.Linear))
        assert first.in_features == 3 + 1
    first.weight.data.zero_()
    first.weight.data[0, 3] = 1.0  # of the action alone
    given = {"obs": torch.ones(1, 3), "actions": torch.zeros(1, 1)}
    still = module.qf_twin_encoder(given)["encoder_out"]
    assert not torch.equal(module.qf_twin_encoder({**given, "actions": torch.ones(1, 1)})["encoder_out"], still)


def test_rllibs_own_learner_has_its_own_loss():
    config = PlainSACConfig()
    assert config.get_default_learner_class() is SACConfig().get_default_learner_class()
    assert config.training(td_error_loss_fn="mse").get_default_learner_class() is SquaredErrorSACLearner
    with pytest.raises(ValueError, match="td_error_loss_fn=squared"):
        config.training(td_error_loss_fn="squared").validate()
