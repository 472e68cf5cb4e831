"""Clipping and optimizer steps against torch's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from rltune.engine.kernels.steps import step
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.optimizers import clip_gradients, make_flat_optimizer

OPTIMIZERS = {"adam": torch.optim.Adam, "rmsprop": torch.optim.RMSprop}


def make(name: str) -> tuple[FlatParameters, Any]:
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(7, 3)), nn.Parameter(torch.randn(5))]
    flat = FlatParameters(params)
    return flat, make_flat_optimizer(flat, OPTIMIZERS[name](params, lr=1.0))


@pytest.mark.parametrize("limit", [0.1, 100.0])
@pytest.mark.parametrize("by", [None, "value", "norm", "global_norm"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps_equal_torchs(name: str, by: str | None, limit: float) -> None:
    """Three steps: the parameters, the running averages and the count, which RLlib's optimizer sees."""
    (flat, optimizer), (theirs, other) = make(name), make(name)
    parameters = optimizer.describe(SimpleNamespace(grad_clip=limit if by else None, grad_clip_by=by or "value"))
    for seed in range(3):
        gradient = torch.randn(flat.grads[0].shape, generator=torch.Generator().manual_seed(seed)) * 3
        for each in (flat, theirs):
            each.grad.zero_()
            each.grads[0].copy_(gradient)
            each.grads[1].fill_(0.01)
        norm = step(parameters, 1e-2)
        expected = clip_gradients(theirs, limit if by else None, by or "value")
        with torch.no_grad():
            other.step(1e-2)
        if by == "global_norm":
            assert norm == pytest.approx(float(expected), rel=1e-6)
        torch.testing.assert_close(flat.data, theirs.data, atol=1e-6, rtol=1e-6)
        for ours, wanted in zip(optimizer.moments, other.moments, strict=True):
            torch.testing.assert_close(ours, wanted, atol=1e-6, rtol=1e-5)
    assert optimizer.optimizer.state[flat.params[0]]["step"] == 3.0


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("by", [None, "value", "norm", "global_norm"])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_gradient_that_is_not_finite_is_seen(name: str, by: str | None, bad: float) -> None:
    """Whatever is not finite with torch is not finite here."""
    (flat, optimizer), (theirs, other) = make(name), make(name)
    parameters = optimizer.describe(SimpleNamespace(grad_clip=0.5 if by else None, grad_clip_by=by or "value"))
    for each in (flat, theirs):
        each.grads[0].fill_(0.1)
        each.grads[0][2, 1] = bad
    step(parameters, 1e-2)
    with torch.no_grad():
        clip_gradients(theirs, 0.5 if by else None, by or "value")
        other.step(1e-2)
    assert not (torch.isfinite(flat.data) & ~torch.isfinite(theirs.data)).any()
    assert by == "value" or not torch.isfinite(flat.data).all()
