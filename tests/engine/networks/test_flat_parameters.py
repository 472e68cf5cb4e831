"""A module keeps its numbers when its parameters move into one flat tensor."""

from __future__ import annotations

import torch
from torch import nn

from rltune.engine.networks.flat_parameters import ALIGN, FlatParameters


def test_the_module_computes_the_same_on_the_flat_tensor() -> None:
    module, obs = nn.Linear(3, 5), torch.randn(4, 3)
    expected = module(obs).detach()
    flat = FlatParameters(list(module.parameters()))
    torch.testing.assert_close(module(obs).detach(), expected)
    flat.data.zero_()
    assert module(obs).abs().sum() == 0


def test_each_tensor_starts_on_a_cache_line_and_gaps_stay_zero() -> None:
    module = nn.Linear(3, 5)
    flat = FlatParameters(list(module.parameters()))
    assert flat.data.numel() == 2 * ALIGN
    assert module.bias.data_ptr() - module.weight.data_ptr() == 4 * ALIGN
    assert flat.data[15:16].item() == 0


def test_autograd_fills_the_flat_gradient_anew_at_each_pass() -> None:
    module, obs = nn.Linear(3, 5), torch.randn(4, 3)
    flat = FlatParameters(list(module.parameters()))
    for _ in range(2):
        flat.attach_grads()
        module(obs).sum().backward()
    torch.testing.assert_close(flat.grads[0], obs.sum(0).expand(5, 3))
    torch.testing.assert_close(flat.grads[1], torch.full((5,), 4.0))


def test_adopting_keeps_what_is_there_and_fills_up_with_zeros() -> None:
    flat = FlatParameters(list(nn.Linear(3, 5).parameters()))
    adopted = flat.adopt([torch.ones(5, 3), None])
    weight, bias = flat.views(adopted)
    assert bool((weight == 1).all())
    assert bool((bias == 0).all())
