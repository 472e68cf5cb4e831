"""Compute RLlib's PPO loss and its statistics.

The loss is ``PPOTorchLearner.compute_loss_for_module`` of ray 2.60: clipped surrogate (Schulman et al. 2017), value
loss clipped at its square, entropy bonus, KL penalty, the mean over a minibatch's rows. torch differentiates it where
`rltune.engine.kernels.ppo` does not.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class PPOBatch(NamedTuple):
    """Steps to learn from, one row each: tensors, or NumPy's arrays for the kernels.

    Attributes:
        obs: [rows, ...].
        actions: One-hot [rows, actions], or [rows, size].
        dist: Log probabilities [rows, actions], or means and log standard deviations of the sampling policy.
        logp: Log probability of the action when it was sampled [rows].
        advantages: [rows].
        targets: The values' targets [rows].
    """

    obs: Any
    actions: Any
    dist: Any
    logp: Any
    advantages: Any
    targets: Any

    @property
    def num_rows(self) -> int:
        """Return the number of steps."""
        return len(self.advantages)

    def take(self, index: Tensor) -> PPOBatch:
        """Return the rows at ``index``, copied."""
        return PPOBatch(*(column.index_select(0, index) for column in self))

    def split(self, sizes: list[int]) -> list[PPOBatch]:
        """Return consecutive parts of so many rows, as views."""
        return [PPOBatch(*part) for part in zip(*(torch.split(column, sizes) for column in self), strict=True)]

    @staticmethod
    def concat(parts: list[PPOBatch]) -> PPOBatch:
        """Return the rows of all parts, one after another."""
        return parts[0] if len(parts) == 1 else PPOBatch(*map(torch.cat, zip(*parts, strict=True)))


class PPOCoefficients(NamedTuple):
    """The numbers in the loss, under RLlib's names; ``kl`` and ``entropy`` are the current values."""

    clip_param: float
    vf_clip_param: float
    vf_loss_coeff: float
    entropy: float
    kl: float
    use_kl_loss: bool
    use_critic: bool


def gaussian_logp(dist: Tensor, actions: Tensor) -> Tensor:
    """Return the log probability of ``actions`` under diagonal Gaussians [rows]."""
    mean, log_std = dist.chunk(2, dim=1)
    scaled = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * scaled.square() - log_std - LOG_SQRT_2PI).sum(1)


def categorical_statistics(logits: Tensor, batch: PPOBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probability of the actions, entropy, and KL divergence from the sampling policy, [rows] each."""
    logp_all = torch.log_softmax(logits, 1)
    kl = (batch.dist.exp() * (batch.dist - logp_all)).sum(1)
    return (logp_all * batch.actions).sum(1), -(logp_all.exp() * logp_all).sum(1), kl


def gaussian_statistics(dist: Tensor, batch: PPOBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probability of the actions, entropy, and KL divergence from the sampling policy, [rows] each."""
    mean, log_std = dist.chunk(2, dim=1)
    old_mean, old_log_std = batch.dist.chunk(2, dim=1)
    shift = (mean - old_mean) * torch.exp(-log_std)
    ratio = torch.exp(2.0 * (old_log_std - log_std))
    kl = 0.5 * (ratio + shift.square() - 1.0 - 2.0 * (old_log_std - log_std)).sum(1)
    return gaussian_logp(dist, batch.actions), (log_std + 0.5 + LOG_SQRT_2PI).sum(1), kl


def loss_statistics(
    statistics: tuple[Tensor, Tensor, Tensor], values: Tensor, batch: PPOBatch, c: PPOCoefficients
) -> dict[str, Tensor]:
    """Return the loss and its parts under RLlib's names, as tensors that stay on the device.

    Args:
        statistics: What `categorical_statistics` or `gaussian_statistics` gave.
        values: [rows].
    """
    logp, entropy, kl = statistics
    ratio = torch.exp(logp - batch.logp)
    plain = batch.advantages * ratio
    surrogate = torch.minimum(plain, batch.advantages * ratio.clamp(1.0 - c.clip_param, 1.0 + c.clip_param))
    zero = torch.zeros((), device=values.device)
    error = (values - batch.targets).square() if c.use_critic else torch.zeros_like(values)
    clipped = error.clamp(0.0, c.vf_clip_param)
    variance = torch.var(batch.targets)
    explained = 1.0 - torch.var(batch.targets - values) / (variance + 1e-6)
    total = (-surrogate + c.vf_loss_coeff * clipped - c.entropy * entropy).mean()
    mean_kl = kl.mean() if c.use_kl_loss else zero
    if c.use_kl_loss:
        total = total + c.kl * mean_kl
    return {
        "total_loss": total,
        "policy_loss": -surrogate.mean(),
        "vf_loss": clipped.mean(),
        "vf_loss_unclipped": error.mean(),
        "vf_explained_var": explained.clamp_(min=-1.0),
        "entropy": entropy.mean(),
        "mean_kl_loss": mean_kl,
    }
