"""The fastest network for a module of PPO's computes what the module computes."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from torch import Tensor, nn

from rltune.engine.networks.actor_critic import AutogradActorCritic, CompiledActorCritic, make_actor_critic
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.q_network import make_action_values
from rltune.engine.off_policy.transitions import RowLayout
from tests.engine.ppo_learner import INPUTS, make_config, rllib_learner

MODELS: dict[str, tuple[dict[str, Any], type]] = {
    "separate": ({}, CompiledActorCritic),
    "shared": ({"vf_share_layers": True}, CompiledActorCritic),
    "free log std": ({"free_log_std": True}, CompiledActorCritic),
    "layer norm": ({"fcnet_use_layernorm": True}, AutogradActorCritic),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rows", [2, 3000])
def test_sampling_and_values_equal_the_modules(name: str, rows: int) -> None:
    model, expected = MODELS[name]
    module = rllib_learner(make_config("continuous", model)).module["default_policy"].unwrapped()
    network = make_actor_critic(module)
    assert type(network) is expected
    obs = torch.randn(rows, INPUTS)
    with torch.no_grad():
        wanted = module.forward_train({"obs": obs})["action_dist_inputs"]
        torch.testing.assert_close(torch.from_numpy(network.dist_inputs(obs.numpy())), wanted, atol=1e-5, rtol=0)
        torch.testing.assert_close(network.values(obs), module.compute_values({"obs": obs}), atol=1e-5, rtol=0)


@pytest.mark.parametrize("algo", [PPOConfig, DQNConfig])
def test_images_lie_channels_last_in_all_convolutions(algo: type) -> None:
    """RLlib's images have their channels last, so that cuDNN takes the layout that is faster, and nothing is copied."""
    settings = {"conv_filters": [[8, 8, 4], [16, 4, 2]], "fcnet_hiddens": [], "head_fcnet_hiddens": [32]}
    spaces = gym.spaces.Box(0.0, 1.0, (84, 84, 4), np.float32), gym.spaces.Discrete(4)
    config = algo().rl_module(model_config={**settings, "vf_share_layers": True})
    module = config.get_rl_module_spec(spaces={"default_policy": spaces}).build()
    seen: list[tuple[nn.Conv2d, Tensor, Tensor]] = []
    watch_convolutions(module, seen)
    images = torch.rand(6, 84, 84, 4)
    FlatParameters(list(module.parameters()))  # Training moves the weights there.
    if algo is PPOConfig:
        make_actor_critic(module).forward(images)
    else:
        layout = RowLayout((84, 84, 4), 1)
        rows = torch.zeros(6, layout.width)  # of a replay memory
        rows[:, : layout.obs_size] = images.flatten(1)
        make_action_values(module).forward(layout.views(rows)[0])
    assert len(seen) == 2
    for layer, images, output in seen:
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert output.is_contiguous(memory_format=torch.channels_last)
        plain = nn.functional.conv2d(images.contiguous(), layer.weight, layer.bias, layer.stride)
        torch.testing.assert_close(output, plain, atol=1e-5, rtol=0)


def watch_convolutions(module: nn.Module, seen: list[tuple[nn.Conv2d, Tensor, Tensor]]) -> None:
    """Note what goes into each convolution and what comes out."""
    for layer in module.modules():
        if isinstance(layer, nn.Conv2d):
            layer.register_forward_hook(lambda layer, given, output: seen.append((layer, given[0], output)))
