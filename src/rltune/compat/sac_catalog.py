"""Build Q-networks for RLlib's SAC whose input is the concatenated observation and action."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.sac.sac_catalog import SACCatalog
from ray.rllib.core.models.base import ENCODER_OUT
from ray.rllib.core.models.torch.primitives import TorchMLP
from torch import Tensor, nn


class ConcatEncoder(nn.Module):
    """An MLP on the concatenated observation and action, as in Haarnoja et al. (2018) and Stable-Baselines3.

    Args:
        net: The perceptron.
    """

    def __init__(self, net: TorchMLP) -> None:
        super().__init__()
        self.net = net

    def forward(self, inputs: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Encode a batch: ``obs`` of shape (batch, features) and ``actions`` of shape (batch, action size)."""
        return {ENCODER_OUT: self.net(torch.cat([inputs["obs"], inputs["actions"]], dim=-1))}


class ConcatSACCatalog(SACCatalog):
    """RLlib's SAC catalog with simpler critics: an MLP of ``fcnet_hiddens`` on observation and action together.

    RLlib's default critic encodes both apart and fuses them with skip connections: ten times the work of the plain one
    at 256x256 (ray 2.60). `use_plain_critics` chooses the plain one, for the engine and stock RLlib alike.
    """

    # This method and `_model_config_dict` are private (Ray 2.60). If RLlib renames the method, RLlib's default critics
    # are built.
    def _build_qf_encoder_continuous(self, framework: str) -> ConcatEncoder:
        settings = self._model_config_dict
        net = TorchMLP(
            input_dim=self.observation_space.shape[0] + self.action_space.shape[0],
            hidden_layer_dims=settings["fcnet_hiddens"],
            hidden_layer_activation=settings["fcnet_activation"],
            hidden_layer_use_layernorm=settings.get("fcnet_use_layernorm", False),
        )
        return ConcatEncoder(net)
