"""Initialize the networks of PPO and A2C orthogonally, which RLlib has no setting for."""

from __future__ import annotations

import math
from typing import Any

from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from torch import nn

HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN = math.sqrt(2), 0.01, 1.0


class OrthogonalPPOCatalog(PPOCatalog):
    """RLlib's catalog with orthogonal weights and zero biases, and the gains of Stable-Baselines3.

    The gains are the square root of 2 in hidden layers, 1 in the layer of the values, and 0.01 in the layer of the
    actions, so that all actions are about equally likely at first. RLlib's model settings name an initializer of the
    hidden layers alone (Ray 2.60); if one is set, those layers keep it.
    """

    def build_actor_critic_encoder(self, framework: str) -> Any:
        """Build the hidden layers of policy and value function."""
        encoder = super().build_actor_critic_encoder(framework)
        names = ("fcnet_kernel_initializer", "conv_kernel_initializer")
        return encoder if any(map(self._model_config_dict.get, names)) else _initialize(encoder, HIDDEN_GAIN)

    def build_pi_head(self, framework: str) -> Any:
        """Build the layers that give the actions' distribution."""
        return _initialize(super().build_pi_head(framework), POLICY_GAIN)

    def build_vf_head(self, framework: str) -> Any:
        """Build the layers that give the value."""
        return _initialize(super().build_vf_head(framework), VALUE_GAIN)


def _initialize(net: Any, last_gain: float) -> Any:
    """Initialize the linear and convolutional layers of a network, the last one with a gain of its own."""
    layers = [layer for layer in net.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in layers:
        nn.init.orthogonal_(layer.weight, last_gain if layer is layers[-1] else HIDDEN_GAIN)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
    return net


def initialize_orthogonally(config: Any) -> Any:
    """Let a PPOConfig, or one that derives from it, initialize its networks orthogonally, and return it."""
    return config.rl_module(rl_module_spec=RLModuleSpec(catalog_class=OrthogonalPPOCatalog))
