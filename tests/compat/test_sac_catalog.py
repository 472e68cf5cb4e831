"""Plain critics under RLlib's SAC: what a catalog that RLlib asks by private names builds."""

from __future__ import annotations

import gymnasium as gym
import torch
from ray.rllib.core.models.base import ENCODER_OUT

from rltune.compat.sac_catalog import ConcatEncoder, ConcatSACCatalog


def test_a_critic_sees_observation_and_action_side_by_side():
    sizes = {"fcnet_hiddens": [7, 5], "fcnet_activation": "tanh"}
    catalog = ConcatSACCatalog(gym.spaces.Box(-1, 1, (3,)), gym.spaces.Box(-1, 1, (2,)), sizes)
    encoder = catalog.build_qf_encoder("torch")
    assert isinstance(encoder, ConcatEncoder)
    linear = [layer for layer in encoder.modules() if isinstance(layer, torch.nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(5, 7), (7, 5)]
    seen = encoder({"obs": torch.zeros(4, 3), "actions": torch.ones(4, 2)})[ENCODER_OUT]
    other = encoder({"obs": torch.zeros(4, 3), "actions": torch.zeros(4, 2)})[ENCODER_OUT]
    assert seen.shape == (4, 5)
    assert not torch.equal(seen, other)
