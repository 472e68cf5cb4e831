"""The gradients in closed form against autograd on the loss itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rltune.engine.on_policy.ppo_loss import (
    PPOBatch,
    PPOCoefficients,
    categorical_gradient,
    categorical_statistics,
    gaussian_gradient,
    gaussian_statistics,
    loss_statistics,
    value_gradient,
)
from tests.engine.ppo_learner import ROWS, our_batch, random_batch

CASES: dict[str, dict[str, Any]] = {
    "everything": {},
    "tight clips": {"clip_param": 0.01, "vf_clip_param": 1.0},
    "no KL": {"use_kl_loss": False},
    "no entropy": {"entropy": 0.0},
    "no critic": {"use_critic": False},
}


@pytest.mark.parametrize("space", ["discrete", "continuous"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_equal_autograds(case: str, space: str) -> None:
    settings: dict[str, Any] = {
        "clip_param": 0.3, "vf_clip_param": 10.0, "vf_loss_coeff": 0.5, "entropy": 0.02, "kl": 0.4,
        "use_kl_loss": True, "use_critic": True,
    }  # fmt: skip
    c = PPOCoefficients(**settings | CASES[case])
    batch = our_batch(space, random_batch(space))
    dist = (batch.dist + 0.3 * torch.randn(batch.dist.shape)).requires_grad_()
    values = torch.randn(ROWS, requires_grad=True)
    measure, slope = {
        "discrete": (categorical_statistics, categorical_gradient),
        "continuous": (gaussian_statistics, gaussian_gradient),
    }[space]
    loss_statistics(measure(dist, batch), values, batch, c)["total_loss"].backward()
    with torch.no_grad():
        torch.testing.assert_close(slope(dist, batch, c), dist.grad, atol=1e-6, rtol=1e-4)
        expected = torch.zeros(ROWS) if values.grad is None else values.grad
        torch.testing.assert_close(value_gradient(values, batch, c), expected, atol=1e-6, rtol=1e-4)


def test_parts_of_a_batch_make_the_batch_again() -> None:
    batch = our_batch("continuous", random_batch("continuous"))
    parts = batch.split([40, 40, 16])
    assert [len(part) for part in parts] == [40, 40, 16]
    for ours, wanted in zip(PPOBatch.concat(parts).columns(), batch.columns(), strict=True):
        torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(batch.take(torch.tensor([3, 1])).obs, batch.obs[[3, 1]])
