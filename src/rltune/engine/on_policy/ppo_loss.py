"""Compute RLlib's PPO loss and its gradient by the network's outputs, in closed form.

The loss is ``PPOTorchLearner.compute_loss_for_module`` of ray 2.60: clipped surrogate (Schulman et al. 2017), value
loss clipped at its square, entropy bonus, KL penalty. Its gradient by the distribution's inputs and by the values is
elementary, so neither an autograd graph nor ``torch.distributions`` is needed: on small minibatches recording the graph
costs more than the arithmetic.

Gradients are of the *mean* loss over a minibatch; rows are steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


@dataclass
class PPOBatch:
    """Steps to learn from, one row each.

    Attributes:
        obs: [rows, ...].
        actions: One-hot [rows, actions], or [rows, size].
        dist: Log probabilities [rows, actions], or means and log standard deviations of the sampling policy.
        logp: Log probability of the action when it was sampled [rows].
        advantages: [rows].
        targets: The values' targets [rows].
    """

    obs: Tensor
    actions: Tensor
    dist: Tensor
    logp: Tensor
    advantages: Tensor
    targets: Tensor

    def take(self, index: Tensor) -> PPOBatch:
        """Return the rows at ``index``, copied."""
        return PPOBatch(*(column.index_select(0, index) for column in self.columns()))

    def split(self, sizes: list[int]) -> list[PPOBatch]:
        """Return consecutive parts of so many rows, as views."""
        return [PPOBatch(*part) for part in zip(*(torch.split(c, sizes) for c in self.columns()), strict=True)]

    def columns(self) -> tuple[Tensor, ...]:
        """Return all columns, in the order of the constructor."""
        return (self.obs, self.actions, self.dist, self.logp, self.advantages, self.targets)

    @staticmethod
    def concat(parts: list[PPOBatch]) -> PPOBatch:
        """Return the rows of all parts, one after another."""
        if len(parts) == 1:
            return parts[0]
        return PPOBatch(*(torch.cat(column) for column in zip(*(p.columns() for p in parts), strict=True)))

    def __len__(self) -> int:
        return len(self.advantages)


@dataclass
class PPOCoefficients:
    """The numbers in the loss, under RLlib's names; ``kl`` and ``entropy`` are the current values."""

    clip_param: float
    vf_clip_param: float
    vf_loss_coeff: float
    entropy: float
    kl: float
    use_kl_loss: bool
    use_critic: bool


def categorical_terms(logits: Tensor, actions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities and probabilities [rows, actions], and the log probability of the chosen ones [rows]."""
    logp_all = torch.log_softmax(logits, 1)
    return logp_all, logp_all.exp(), (logp_all * actions).sum(1)


def gaussian_logp(dist: Tensor, actions: Tensor) -> Tensor:
    """Return the log probability of ``actions`` under diagonal Gaussians [rows]."""
    mean, log_std = dist.chunk(2, dim=1)
    scaled = (actions - mean) * torch.exp(-log_std)
    return (-0.5 * scaled.square() - log_std - LOG_SQRT_2PI).sum(1)


def surrogate_gradient(logp: Tensor, batch: PPOBatch, clip_param: float) -> Tensor:
    """Return the gradient of the summed surrogate *loss* by the log probability of the action, [rows]."""
    ratio = torch.exp(logp - batch.logp)
    plain = batch.advantages * ratio
    clipped = batch.advantages * ratio.clamp(1.0 - clip_param, 1.0 + clip_param)
    # d ratio / d logp = ratio. Inside the range both terms are equal and the gradient is the plain one; outside, the
    # minimum is the clipped term, which is constant, or the plain one, which is not.
    return -plain * (plain <= clipped)


def categorical_gradient(logits: Tensor, batch: PPOBatch, c: PPOCoefficients) -> Tensor:
    """Return the gradient of the mean loss by the logits [rows, actions]."""
    logp_all, probs, logp = categorical_terms(logits, batch.actions)
    # d logp(action) / d logits = one-hot - probs. That is why actions are kept one-hot: indexing would need a scatter.
    grad = (batch.actions - probs).mul_(surrogate_gradient(logp, batch, c.clip_param).unsqueeze(1))
    if c.use_kl_loss:  # KL(old || new): d / d logits = new - old probabilities
        grad.add_(probs - batch.dist.exp(), alpha=c.kl)
    if c.entropy:  # the loss holds -H; dH / d logit_j = -p_j (log p_j + H), with H = -sum(p log p)
        weighted = probs * logp_all
        grad.add_(weighted - probs * weighted.sum(1, keepdim=True), alpha=c.entropy)
    return grad.mul_(1.0 / len(batch))


def gaussian_gradient(dist: Tensor, batch: PPOBatch, c: PPOCoefficients) -> Tensor:
    """Return the gradient of the mean loss by means and log standard deviations [rows, 2 * size]."""
    mean, log_std = dist.chunk(2, dim=1)
    inverse = torch.exp(-log_std)
    scaled = (batch.actions - mean) * inverse
    square = scaled.square()
    logp = (-0.5 * square - log_std - LOG_SQRT_2PI).sum(1)
    weight = surrogate_gradient(logp, batch, c.clip_param).unsqueeze(1)
    # d logp / d mean = (a - mean) / std^2;  d logp / d log_std = ((a - mean) / std)^2 - 1
    mean_grad = scaled * inverse * weight
    std_grad = (square - 1.0) * weight
    if c.use_kl_loss:  # KL(old || new), in which the old policy's figures are constants
        old_mean, old_log_std = batch.dist.chunk(2, dim=1)
        shift = (mean - old_mean) * inverse
        mean_grad.add_(shift * inverse, alpha=c.kl)
        std_grad.add_(1.0 - torch.exp(2.0 * (old_log_std - log_std)) - shift.square(), alpha=c.kl)
    if c.entropy:  # a Gaussian's entropy is its log_std plus a constant
        std_grad.sub_(c.entropy)
    return torch.cat([mean_grad, std_grad], 1).mul_(1.0 / len(batch))


def value_gradient(values: Tensor, batch: PPOBatch, c: PPOCoefficients) -> Tensor:
    """Return the gradient of the mean clipped value loss by the values [rows]."""
    if not c.use_critic:
        return torch.zeros_like(values)
    error = values - batch.targets
    # RLlib clips the squared error itself, unlike the PPO paper's clipped value: beyond the limit the loss is flat.
    return error * (error.square() <= c.vf_clip_param) * (2.0 * c.vf_loss_coeff / len(batch))


def categorical_statistics(logits: Tensor, batch: PPOBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probability of the actions, entropy, and KL divergence from the sampling policy, [rows] each."""
    logp_all, probs, logp = categorical_terms(logits, batch.actions)
    kl = (batch.dist.exp() * (batch.dist - logp_all)).sum(1)
    return logp, -(probs * logp_all).sum(1), kl


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
