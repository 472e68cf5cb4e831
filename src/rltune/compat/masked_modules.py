"""RLlib's modules for environments with an action mask: networks do not see the flags, and illegal actions are masked.

A row ends with the flags of its legal actions (`rltune.envs.layout.Layout.mask`). These modules cut them off before
RLlib's own networks see the row, and replace the logits or values of illegal actions in what comes out. So RLlib's
losses, distributions and exploration, and those of the engine that torch differentiates, meet legal actions alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from ray.rllib.algorithms.appo.torch.default_appo_torch_rl_module import DefaultAPPOTorchRLModule
from ray.rllib.algorithms.dqn.torch.default_dqn_torch_rl_module import DefaultDQNTorchRLModule
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.rl_module.apis import TARGET_NETWORK_ACTION_DIST_INPUTS
from torch import Tensor

from rltune.compat.row_catalog import LAYOUT
from rltune.config.capabilities import capabilities_of
from rltune.envs.layout import ILLEGAL, Layout

OBS, DIST, ACTIONS, VALUES = "obs", "action_dist_inputs", "actions", "qf_preds"  # RLlib's names of columns.


class MaskedActions:
    """Mixin for modules whose observations are rows that end with the flags of legal actions.

    Attributes:
        num_flags: The number of flags; 0 leaves everything as RLlib has it.
    """

    num_flags: int
    layout: Layout
    model_config: Any

    def setup(self) -> None:
        """Build the networks; RLlib calls this."""
        self.layout = Layout.from_dict(self.model_config[LAYOUT])
        self.num_flags = self.layout.mask.size if self.layout.mask else 0
        super().setup()  # type: ignore[misc]

    def split(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Tensor]:
        """Return the batch with observations without flags, and the flags of legal actions [..., flags] as booleans."""
        rows = self.layout.view(batch[OBS])
        begin = rows.shape[-1] - self.num_flags
        return {**batch, OBS: rows[..., :begin]}, rows[..., begin:] != 0

    def mask(self, flags: Tensor, outputs: Tensor) -> Tensor:
        """Return outputs [..., outputs] with `ILLEGAL` for illegal actions; those of numbers are the last ones."""
        if outputs.shape[-1] > self.num_flags:
            numbers = flags.new_ones(*flags.shape[:-1], outputs.shape[-1] - self.num_flags)
            flags = torch.cat([flags, numbers], dim=-1)
        return torch.where(flags, outputs, ILLEGAL)


class MaskedPPO(MaskedActions, DefaultPPOTorchRLModule):
    """The module of PPO, A2C and IMPALA, also with an LSTM."""

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen, flags = self.split(batch)
        output = super()._forward(seen, **kwargs)
        return {**output, DIST: self.mask(flags, output[DIST])}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        seen, flags = self.split(batch)
        output = super()._forward_train(seen, **kwargs)
        return {**output, DIST: self.mask(flags, output[DIST])}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Any:
        """Return value estimates."""
        return super().compute_values(self.split(batch)[0], embeddings)


class MaskedAPPO(MaskedPPO, DefaultAPPOTorchRLModule):
    """The module of APPO, also with an LSTM."""

    def forward_target(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Return the logits of the target network."""
        key, (seen, flags) = TARGET_NETWORK_ACTION_DIST_INPUTS, self.split(batch)
        return {key: self.mask(flags, super().forward_target(seen)[key])}


class MaskedDQN(MaskedActions, DefaultDQNTorchRLModule):
    """The module of DQN and Rainbow."""

    def _qf_forward_helper(self, batch: dict[str, Any], encoder: Any, head: Any) -> dict[str, Any]:
        seen, flags = self.split(batch)
        output = super()._qf_forward_helper(seen, encoder, head)
        return {**output, VALUES: self.mask(flags, output[VALUES])}

    def _forward_exploration(self, batch: dict[str, Any], t: int) -> dict[str, Any]:
        """Act epsilon-greedily as RLlib does, but draw random actions among the legal ones."""
        output = self._forward_inference(batch)
        self.epsilon_schedule.update(t)
        greedy, flags = output[ACTIONS], self.split(batch)[1]
        drawn = torch.multinomial(flags.reshape(-1, self.num_flags).float(), 1).reshape(greedy.shape)
        is_random = torch.rand(greedy.shape, device=greedy.device) < self.epsilon_schedule.get_current_value()
        return {**output, ACTIONS: torch.where(is_random, drawn, greedy)}


def find_masked_class(config: Any) -> type | None:
    """Return the module with masks for an algorithm of RLlib's; None if its policy chooses without them."""
    known: dict[type, type] = {
        DefaultPPOTorchRLModule: MaskedPPO,
        DefaultAPPOTorchRLModule: MaskedAPPO,
        DefaultDQNTorchRLModule: MaskedDQN,
    }
    if capabilities_of(type(config)).offline:  # A dataset has no masks.
        return None
    return known.get(config.get_default_rl_module_spec().module_class)
