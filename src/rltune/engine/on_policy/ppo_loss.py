"""Compute RLlib's PPO loss and its statistics.

The loss is ``PPOTorchLearner.compute_loss_for_module`` of ray 2.60: clipped surrogate (Schulman et al. 2017), value
loss clipped at its square, entropy bonus, KL penalty, the mean over a minibatch's rows. torch differentiates it where
`rltune.engine.kernels.ppo` does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from rltune.policies.bundle_reader import Segments

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


class PPOBatch(NamedTuple):
    """Steps to learn from, one row each: tensors, or NumPy's arrays for the kernels.

    Attributes:
        obs: [rows, ...].
        actions: One-hot columns of all choices, and then numbers [rows, values + numbers].
        dist: Of the sampling policy: log probabilities of all choices, and then means and log standard deviations.
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


Statistics = tuple[Tensor, Tensor, Tensor]


class ActionDistribution:
    """The distribution of actions: independent choices, and independent Gaussian numbers.

    Args:
        sizes: The number of values of each choice.
        num_numbers: How many numbers there are.
        device: Where the network computes.
    """

    def __init__(self, sizes: Sequence[int], num_numbers: int, device: Any = "cpu") -> None:
        self.segments, self.num_numbers = Segments(sizes, device), num_numbers

    def sampled(self, dist: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the columns ``actions``, ``dist`` and ``logp`` of a `PPOBatch`.

        Args:
            dist: The distribution's inputs [rows, inputs].
            actions: What was drawn, [rows] or [rows, choices + numbers].
        """
        count, width = self.segments.count, self.segments.width
        if not count:
            return actions, dist, gaussian_logp(dist, actions)
        logp_all = self._log_softmax(dist)
        rows = actions.reshape(len(actions), -1)
        one_hot = torch.zeros_like(logp_all).scatter_(1, rows[:, :count].long() + self.segments.begins, 1.0)
        logp = (logp_all * one_hot).sum(1)
        if not self.num_numbers:
            return one_hot, logp_all, logp
        dist, numbers = dist[:, width:], rows[:, count:]
        logp = logp + gaussian_logp(dist, numbers)
        return torch.cat([one_hot, numbers], 1), torch.cat([logp_all, dist], 1), logp

    def statistics(self, dist: Tensor, batch: PPOBatch) -> Statistics:
        """Return log probability of the actions, entropy, and KL divergence from the sampling policy, [rows] each."""
        width = self.segments.width
        if not width:
            return _compare_gaussians(dist, batch.dist, batch.actions)
        if not self.num_numbers:
            return self._compare_choices(dist, batch.dist, batch.actions)
        choices = self._compare_choices(dist, batch.dist[:, :width], batch.actions[:, :width])
        numbers = _compare_gaussians(dist[:, width:], batch.dist[:, width:], batch.actions[:, width:])
        return choices[0] + numbers[0], choices[1] + numbers[1], choices[2] + numbers[2]

    def _log_softmax(self, logits: Tensor) -> Tensor:
        if self.segments.count == 1:
            return torch.log_softmax(logits[:, : self.segments.width], 1)
        return self.segments.join(torch.log_softmax(self.segments.split(logits), 2))

    def _compare_choices(self, logits: Tensor, old: Tensor, actions: Tensor) -> Statistics:
        logp_all = self._log_softmax(logits)
        kl = (old.exp() * (old - logp_all)).sum(1)
        return (logp_all * actions).sum(1), -(logp_all.exp() * logp_all).sum(1), kl


def _compare_gaussians(dist: Tensor, old: Tensor, actions: Tensor) -> Statistics:
    mean, log_std = dist.chunk(2, dim=1)
    old_mean, old_log_std = old.chunk(2, dim=1)
    shift = (mean - old_mean) * torch.exp(-log_std)
    ratio = torch.exp(2.0 * (old_log_std - log_std))
    kl = 0.5 * (ratio + shift.square() - 1.0 - 2.0 * (old_log_std - log_std)).sum(1)
    return gaussian_logp(dist, actions), (log_std + 0.5 + LOG_SQRT_2PI).sum(1), kl


def loss_statistics(statistics: Statistics, values: Tensor, batch: PPOBatch, c: PPOCoefficients) -> dict[str, Tensor]:
    """Return the loss and its parts under RLlib's names, as tensors that stay on the device.

    Args:
        statistics: What `ActionDistribution.statistics` gave.
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
