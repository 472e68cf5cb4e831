"""Let RLlib's catalogs build an encoder that is given in the model config in place of one of their own."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box
from ray.rllib.algorithms.dqn.dqn_catalog import DQNCatalog
from ray.rllib.algorithms.ppo.ppo_catalog import PPOCatalog
from ray.rllib.core.models.catalog import Catalog
from ray.rllib.core.models.configs import ModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

ENCODER = "rltune_encoder"
"""The key of RLlib's model config under which the encoder's config is given."""


class GivenEncoderCatalog(Catalog):
    """A mixin before one of RLlib's catalogs, which takes the encoder that the model config gives, if any.

    RLlib has no setting for it. The layers of ``fcnet_hiddens`` follow the encoder, as RLlib builds them for a vector,
    and an LSTM follows it where the settings have one: RLlib asks for the encoder before it, too.
    """

    # This method is private (Ray 2.60). If RLlib renames it, then RLlib's own encoders are built, and the engine's
    # check of private names says so.
    @classmethod
    def _get_encoder_config(
        cls, observation_space: Any, model_config_dict: dict[str, Any], action_space: Any = None
    ) -> ModelConfig:
        encoder: Any = model_config_dict.get(ENCODER)
        if encoder is None or model_config_dict["use_lstm"]:
            return super()._get_encoder_config(observation_space, model_config_dict, action_space)
        if not model_config_dict["fcnet_hiddens"]:
            return encoder
        features = Box(-np.inf, np.inf, (encoder.num_features,), np.float32)
        settings = {**model_config_dict, ENCODER: None}
        return encoder.followed_by(super()._get_encoder_config(features, settings, action_space))


class GivenEncoderPPOCatalog(GivenEncoderCatalog, PPOCatalog):
    """PPO's catalog with the encoder that the model config gives."""


class GivenEncoderDQNCatalog(GivenEncoderCatalog, DQNCatalog):
    """DQN's catalog with the encoder that the model config gives."""


def give_catalog(config: Any, catalog_class: type[Catalog]) -> None:
    """Let a config build its modules by a catalog, unless it has a spec with another one, which knows encoders, too."""
    if config._rl_module_spec is None:
        config.rl_module(rl_module_spec=RLModuleSpec(catalog_class=catalog_class))
