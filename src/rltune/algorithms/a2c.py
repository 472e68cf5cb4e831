"""Provide A2C, which RLlib has dropped, as PPO with one epoch and without clipping (Huang et al. 2022)."""

from __future__ import annotations

from typing import Any

import torch
from ray.rllib.algorithms.ppo import PPO, PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.connectors.learner import GeneralAdvantageEstimation
from ray.rllib.evaluation.postprocessing import Postprocessing
from torch import Tensor

from rltune.compat.rllib_internals import read_learner_pipeline

UNCLIPPED = 1e9  # Clipping limit that no probability ratio and no squared value error reaches: it turns clipping off.


class RawAdvantages(GeneralAdvantageEstimation):
    """RLlib's GAE connector, but with raw instead of standardized advantages, for A2C on RLlib's own learner.

    The parent leaves value targets and *standardised* advantages in the batch. The raw ones are the targets minus the
    values, and the weights, which have not changed since then, give the same values again.
    """

    def __call__(self, *, rl_module: Any, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Compute the batch's advantages as RLlib does, then replace them by value targets minus values."""
        result: dict[str, Any] = super().__call__(rl_module=rl_module, batch=batch, **kwargs)
        for module_id, columns in result.items():
            with torch.no_grad():
                values: Tensor = rl_module[module_id].compute_values(columns)
            columns[Postprocessing.ADVANTAGES] = columns[Postprocessing.VALUE_TARGETS] - values
        return result


class A2CTorchLearner(PPOTorchLearner):
    """RLlib's PPO learner with RMSProp and raw advantages."""

    def build(self) -> None:
        """Build PPO's learner, then let the GAE connector of its pipeline return raw advantages."""
        super().build()
        pipeline = read_learner_pipeline(self)
        if pipeline is not None and isinstance(pipeline.connectors[-1], GeneralAdvantageEstimation):
            raw = RawAdvantages(gamma=self.config.gamma, lambda_=self.config.lambda_)
            pipeline.connectors[-1] = raw

    def configure_optimizers_for_module(self, module_id: str, config: Any = None) -> None:
        """Register an RMSProp optimizer with the config's ``rmsprop_*`` settings."""
        params = self.get_parameters(self.module[module_id])
        optimizer = torch.optim.RMSprop(params, alpha=config.rmsprop_alpha, eps=config.rmsprop_epsilon)
        self.register_optimizer(module_id=module_id, optimizer=optimizer, params=params, lr_or_lr_schedule=config.lr)


class A2C(PPO):
    """A2C on RLlib's own training loop, without our fast engine."""

    @classmethod
    def get_default_config(cls) -> A2CConfig:
        """Return A2C's default config."""
        return A2CConfig()


class A2CConfig(PPOConfig):
    """PPO's config with A2C's default values and settings of RMSProp; each can be set to another value.

    Args:
        algo_class: The algorithm to build; stock A2C by default.
    """

    def __init__(self, algo_class: type | None = None) -> None:
        super().__init__(algo_class=algo_class or A2C)
        self.lr = 7e-4
        self.num_epochs = 1
        self.minibatch_size = None
        self.train_batch_size_per_learner = 512
        self.clip_param = UNCLIPPED
        self.vf_clip_param = UNCLIPPED
        self.use_kl_loss = False
        self.vf_loss_coeff = 0.5
        self.entropy_coeff = 0.0
        self.grad_clip = 0.5
        self.grad_clip_by = "global_norm"
        self.lambda_ = 1.0
        self.rmsprop_alpha = 0.99
        self.rmsprop_epsilon = 1e-5

    def get_default_learner_class(self) -> type:
        """Return the learner class, which trains with RMSProp and raw advantages."""
        return A2CTorchLearner

    def training(
        self, *, rmsprop_alpha: float | None = None, rmsprop_epsilon: float | None = None, **kwargs: Any
    ) -> A2CConfig:
        """Set the arguments of PPO's ``training()`` and those of the RMSProp optimizer.

        Args:
            rmsprop_alpha: Smoothing of the squared gradients; None leaves it.
            rmsprop_epsilon: Added to their root; None leaves it.
            kwargs: PPO's settings.
        """
        super().training(**kwargs)
        if rmsprop_alpha is not None:
            self.rmsprop_alpha = rmsprop_alpha
        if rmsprop_epsilon is not None:
            self.rmsprop_epsilon = rmsprop_epsilon
        return self
