"""RLlib's catalogs with an encoder that is given."""

from __future__ import annotations

from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.compat.encoder_catalog import ENCODER, GivenEncoderDQNCatalog, GivenEncoderPPOCatalog, give_catalog

SEEN = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
GIVEN = SimpleNamespace(num_features=7, output_dims=(7,), followed_by=lambda layers: layers)


def latent(catalog, **model):
    settings = {"num_atoms": 1, **model}
    return catalog(SEEN, gymnasium.spaces.Discrete(2), settings)._encoder_config


@pytest.mark.parametrize("catalog", [GivenEncoderPPOCatalog, GivenEncoderDQNCatalog])
def test_a_given_encoder_comes_before_the_layers(catalog):
    assert list(latent(catalog).input_dims) == [3]
    assert list(latent(catalog, **{ENCODER: GIVEN}).input_dims) == [7]
    assert latent(catalog, **{ENCODER: GIVEN}, fcnet_hiddens=[]) is GIVEN
    assert list(latent(catalog, **{ENCODER: GIVEN}, use_lstm=True).tokenizer_config.input_dims) == [7]


def test_a_catalog_is_given_unless_there_is_one():
    config = DQNConfig()
    give_catalog(config, GivenEncoderDQNCatalog)
    give_catalog(config, GivenEncoderPPOCatalog)
    assert config._rl_module_spec.catalog_class is GivenEncoderDQNCatalog
    assert PPOConfig()._rl_module_spec is None
