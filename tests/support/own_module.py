"""A whole RLModule, as users have it."""

from __future__ import annotations

from typing import Any

from ray.rllib.core.rl_module.apis import ValueFunctionAPI
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import nn


class Module(TorchRLModule, ValueFunctionAPI):
    """A whole RLModule, which reads a setting of its own."""

    def setup(self) -> None:
        size = self.model_config["units"]
        self.body = nn.Sequential(nn.Linear(self.observation_space.shape[0], size), nn.Tanh())
        self.policy, self.value = nn.Linear(size, int(self.action_space.n)), nn.Linear(size, 1)

    def _forward(self, batch: Any, **kwargs: Any) -> Any:
        return {"action_dist_inputs": self.policy(self.body(batch["obs"]))}

    def compute_values(self, batch: Any, embeddings: Any = None) -> Any:
        return self.value(self.body(batch["obs"])).squeeze(-1)
