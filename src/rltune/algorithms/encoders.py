"""Put an extractor of the user's in place of the layers that see observations in RLlib's modules of PPO, A2C and DQN.

The layers of ``fcnet_hiddens`` follow it, as Stable-Baselines3's ``net_arch`` does, and the heads are as always.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from gymnasium.spaces import Space
from ray.rllib.core.columns import Columns
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.core.models.configs import ModelConfig
from torch import Tensor, nn

from rltune.compat.row_catalog import ENCODER, give_catalog
from rltune.envs.layout import Layout
from rltune.policies.extractors import ExtractorSpec, FeatureExtractor


@dataclass
class ExtractorConfig(ModelConfig):
    """The config of an encoder with an extractor of the user's, as RLlib's catalogs take it.

    Attributes:
        extractor: The extractor's class and arguments.
        space: The environment's own observation space.
        layout: The layout of its observations.
        perceptron: The layers behind it; None for none.
    """

    extractor: ExtractorSpec = field(kw_only=True)
    space: Space[Any] = field(kw_only=True)
    layout: Layout = field(kw_only=True)
    perceptron: ModelConfig | None = None

    @functools.cached_property
    def num_features(self) -> int:
        """The number of features, for which an extractor is made once."""
        return FeatureExtractor(self.extractor, self.space, self.layout).num_features

    def followed_by(self, perceptron: ModelConfig) -> ExtractorConfig:
        """Return this with layers behind the extractor."""
        return replace(self, perceptron=perceptron)

    @property
    def output_dims(self) -> tuple[int, ...]:
        """The form of the encoder's output, by which RLlib makes the heads."""
        return self.perceptron.output_dims if self.perceptron else (self.num_features,)

    def build(self, framework: str = "torch", **kwargs: Any) -> ExtractorEncoder:
        """Build the encoder."""
        return ExtractorEncoder(self)


class ExtractorEncoder(nn.Module):
    """An encoder of RLlib's that consists of an extractor of the user's and the layers behind it.

    Layers such as dropout act only where gradients are computed: copies that sample, values before an update, and
    target networks are in evaluation mode, as in Stable-Baselines3.
    """

    def __init__(self, config: ExtractorConfig) -> None:
        super().__init__()
        self.extractor = FeatureExtractor(config.extractor, config.space, config.layout)
        self.spec = config.extractor
        self.perceptron = config.perceptron.build(framework="torch") if config.perceptron else None

    def forward(self, inputs: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Encode a batch of observations, ``obs`` of shape (batch, columns)."""
        learns = torch.is_grad_enabled()
        if self.extractor.training != learns:
            self.extractor.train(learns)
        features: Tensor = self.extractor(inputs[Columns.OBS])
        if self.perceptron is None:
            return {ENCODER_OUT: features}
        encoded: dict[str, Tensor] = self.perceptron({Columns.OBS: features})
        return encoded


def use_extractor(config: Any, extractor: ExtractorSpec, space: Space[Any], layout: Layout) -> None:
    """Let a config of PPO, A2C or DQN build its networks with an extractor of the user's.

    Args:
        config: The config, which is changed in place.
        extractor: The extractor's class and arguments.
        space: The environment's own observation space.
        layout: The layout of its observations.
    """
    encoder = ExtractorConfig(extractor=extractor, space=space, layout=layout)
    config.rl_module(model_config={**config.model_config, ENCODER: encoder})
    give_catalog(config)


def without_extractor(config: Any) -> Any:
    """Return a copy of a config whose networks see observations by RLlib's own layers."""
    plain = config.copy(copy_frozen=False)
    return plain.rl_module(model_config={**config.model_config, ENCODER: None})
