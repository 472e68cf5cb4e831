"""Outputs and gradients of perceptrons against torch in float64, no further off than torch in float32 is."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from rltune.engine.kernels import perceptron
from rltune.engine.networks.flat_parameters import FlatParameters

SHAPES = {"two layers": [5, 16, 3], "one output": [4, 64, 64, 1], "no hidden layer": [7, 2], "wide": [3, 256, 130, 8]}


class Stack:
    """Layers of torch, and the same as a table."""

    def __init__(self, sizes: list[int], activation: type[nn.Module]) -> None:
        torch.manual_seed(0)
        pieces: list[nn.Module] = []
        for inputs, outputs in itertools.pairwise(sizes):
            pieces += [nn.Linear(inputs, outputs), activation()]
        self.net = nn.Sequential(*pieces[:-1])
        self.net.mlp = list(self.net)  # type: ignore[assignment]  # RLlib's name
        self.flat = FlatParameters(list(self.net.parameters()))
        linears = perceptron.parse_layers(self.net)
        assert linears is not None
        self.table = perceptron.make_table(linears, self.flat.data)

    def run(self, x: NDArray[np.float32], slope: NDArray[np.float32]) -> list[NDArray[np.float32]]:
        """Return outputs, gradients of all parameters, and gradient by the inputs, all by kernels."""
        rows, room = len(x), len(x) * perceptron.find_width(self.table)
        outputs = np.empty(rows * perceptron.count_outputs(self.table), np.float32)
        data, grad = self.flat.data.numpy(), self.flat.grad.numpy()
        out = perceptron.forward(x, self.table, data, outputs).copy()
        delta, spare = np.empty(room, np.float32), np.empty(room, np.float32)
        delta[: slope.size] = slope.ravel()
        into = perceptron.backward(x, self.table, data, grad, outputs, delta, spare, True)
        return [out, *(part.numpy().copy() for part in self.flat.grads), into[: x.size].reshape(x.shape).copy()]

    def run_torch(
        self, x: NDArray[np.float32], slope: NDArray[np.float32], dtype: torch.dtype
    ) -> list[NDArray[np.float32]]:
        """Return the same by autograd, computed in a precision."""
        net = self.net.to(dtype)
        inputs = torch.from_numpy(x).to(dtype).requires_grad_()
        out = net(inputs)
        params = list(net.parameters())
        grads = torch.autograd.grad(out, [*params, inputs], torch.from_numpy(slope).to(dtype))
        result = [part.detach().numpy().copy() for part in (out, *grads)]
        net.to(torch.float32)
        return result


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("rows", [1, 33])
@pytest.mark.parametrize("shape", SHAPES)
def test_outputs_and_gradients_are_as_exact_as_torchs(shape: str, rows: int, activation: type[nn.Module]) -> None:
    sizes = SHAPES[shape]
    rng = np.random.default_rng(rows)
    # A single number of float32 may be right by luck, so that the errors of several batches are taken together.
    errors = []
    for _ in range(20):
        x = rng.normal(size=(rows, sizes[0])).astype(np.float32) * 2
        slope = rng.normal(size=(rows, sizes[-1])).astype(np.float32)
        kernels = Stack(sizes, activation).run(x, slope)
        single, exact = (Stack(sizes, activation).run_torch(x, slope, kind) for kind in (torch.float32, torch.float64))
        parts = zip(kernels, single, exact, strict=True)
        errors.append([[np.linalg.norm(part - wanted) for part in (a, b, wanted)] for a, b, wanted in parts])
    ours, theirs, size = np.linalg.norm(errors, axis=0).T
    assert (ours <= 2.0 * theirs + 1e-7 * size).all()


def test_sums_over_many_rows_are_exact() -> None:
    rows = 200_000
    stack, ones = Stack([1, 1], nn.Tanh), np.ones((rows, 1), np.float32)
    _, weight, bias, _ = stack.run(ones, np.full((rows, 1), 0.1, np.float32))
    assert weight.item() == pytest.approx(0.1 * rows, rel=1e-5)
    assert bias.item() == pytest.approx(0.1 * rows, rel=1e-5)


def test_tanh_is_exact_to_a_few_units_in_the_last_place() -> None:
    x = np.concatenate([np.linspace(-12.0, 12.0, 10_001), [0.0, 1e-30, 1e30, -1e30]]).astype(np.float32)
    activations = x.copy()
    perceptron.tanh_in_place(activations)
    wanted = np.tanh(x.astype(np.float64))
    assert (
        np.abs(activations - wanted) <= 4.0 * np.spacing(np.abs(wanted).astype(np.float32)) + 1e-7 * np.abs(wanted)
    ).all()


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_so(bad: float, activation: type[nn.Module]) -> None:
    """A NaN of an input, and an infinity of a weight, reach the output and the gradients."""
    x, slope = np.ones((3, 5), np.float32), np.ones((3, 3), np.float32)
    stack = Stack([5, 16, 3], activation)
    x[1, 2] = np.nan
    out, *_ = stack.run(x, slope)
    assert np.isnan(out[1]).all()
    assert np.isfinite(out[[0, 2]]).all()
    assert np.isnan(stack.flat.grads[0].numpy()).any()
    stack.flat.data[stack.table[-1, 0]] = bad
    out, *_ = stack.run(np.ones((3, 5), np.float32), slope)
    assert not np.isfinite(out[:, 0]).any() or activation is nn.ReLU  # a unit at zero hides an infinity as NaN
    if activation is nn.Tanh:
        assert not np.isfinite(stack.flat.grads[0].numpy()).all()


def test_other_layers_do_not_parse() -> None:
    for piece in (nn.LayerNorm(4), nn.SiLU(), nn.Linear(4, 4, bias=False)):
        net = nn.Module()
        net.mlp = [nn.Linear(4, 4), piece]  # type: ignore[assignment]
        assert perceptron.parse_layers(net) is None
