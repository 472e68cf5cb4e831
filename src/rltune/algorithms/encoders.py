"""Put an extractor of the user's in place of the layers that see observations in RLlib's modules of PPO, A2C and DQN.

The layers of ``fcnet_hiddens`` follow it, as Stable-Baselines3's ``net_arch`` does, and the heads are as always.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from gymnasium.spaces import Space

from rltune.compat.row_catalog import ENCODER, RowEncoderConfig, give_catalog
from rltune.envs.layout import Layout
from rltune.policies.extractors import ExtractorSpec, FeatureExtractor


def use_extractor(config: Any, extractor: ExtractorSpec, space: Space[Any], layout: Layout) -> None:
    """Let a config of PPO, A2C or DQN build its networks with an extractor of the user's.

    Args:
        config: The config, which is changed in place.
        extractor: The extractor's class and arguments.
        space: The environment's own observation space.
        layout: The layout of its observations.
    """
    encoder = RowEncoderConfig(make_front=partial(FeatureExtractor, extractor, space, layout))
    config.rl_module(model_config={**config.model_config, ENCODER: encoder})
    give_catalog(config)


def without_extractor(config: Any) -> Any:
    """Return a copy of a config whose networks see observations by RLlib's own layers."""
    plain = config.copy(copy_frozen=False)
    return plain.rl_module(model_config={**config.model_config, ENCODER: None})
