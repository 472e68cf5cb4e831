"""The hand-written perceptron against torch's own modules and autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mlp import MLP, parse_layers


class Network(nn.Module):
    """Holds its layers as RLlib's ``TorchMLP`` does.

    Args:
        inputs: Above and below `rltune.engine.networks.mlp.NARROW` the weights' gradient is computed in two ways.
        activation: After each layer but the last.
    """

    def __init__(self, inputs: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(inputs, 24), activation(), nn.Linear(24, 20), activation(), nn.Linear(20, 3))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.mlp(x)
        return out


def make(network: Network) -> tuple[MLP, FlatParameters]:
    flat = FlatParameters(list(network.parameters()))
    layers = parse_layers(network)
    assert layers is not None
    return MLP(layers, flat), flat


@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU])
@pytest.mark.parametrize("inputs", [4, 40])
def test_outputs_and_gradients_equal_autograds(inputs: int, activation: type[nn.Module]) -> None:
    network, obs, grad = Network(inputs, activation), torch.randn(8, inputs, requires_grad=True), torch.randn(8, 3)
    ours, flat = make(network)
    out = network(obs)
    out.backward(grad)
    with torch.no_grad():
        data = obs.detach()
        torch.testing.assert_close(ours.forward(data), out, atol=1e-5, rtol=0)
        torch.testing.assert_close(ours.infer(data), out, atol=1e-5, rtol=0)
        torch.testing.assert_close(torch.from_numpy(ours.infer_numpy(data.numpy())), out, atol=1e-5, rtol=0)
        into_input = ours.backward(grad, into_input=True)
    assert obs.grad is not None
    torch.testing.assert_close(into_input, obs.grad, atol=1e-5, rtol=0)
    for view, param in zip(flat.grads, network.parameters(), strict=True):
        assert param.grad is not None
        torch.testing.assert_close(view, param.grad, atol=1e-5, rtol=0)


def test_a_gradient_of_some_rows_leaves_the_parameters_alone() -> None:
    network, obs, rows = Network(4, nn.ReLU), torch.randn(8, 4), torch.tensor([1, 6])
    ours, flat = make(network)
    with torch.no_grad():
        ours.forward(obs)
        everything = ours.backward(torch.ones(8, 3), into_input=True, into_params=False)
        some = ours.backward(torch.ones(2, 3), into_input=True, into_params=False, rows=rows)
    torch.testing.assert_close(some, everything[rows])
    assert flat.grad.abs().sum() == 0


def test_anything_but_perceptrons_of_known_activations_is_not_parsed() -> None:
    assert parse_layers(nn.Conv2d(1, 1, 1)) is None
    assert parse_layers(Network(4, nn.GELU)) is None
    assert parse_layers(Network(4, nn.ReLU)) is not None
