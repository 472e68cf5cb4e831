"""Multi-layer perceptrons of RLlib's modules with a hand-written backward pass.

A layer's gradient is two matrix products and a column sum, written straight into the flat gradient: no
graph, no per-parameter tensors. Modules that are anything else keep autograd (see ``AutogradActorCritic``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rltune.engine.networks.flat_parameters import FlatParameters

Array = NDArray[Any]

NUMPY_FLOPS = 250_000
"""Largest layer (rows x inputs x outputs) that goes to NumPy: it costs less to call than torch, but above
262,144 multiplications OpenBLAS takes every core, whatever share of them the trial was given."""


class Activation(NamedTuple):
    """An activation: in place on torch, in place on NumPy, and the gradient from its *output*."""

    torch_: Callable[[Tensor], Tensor]
    numpy_: Callable[[Array], Any]
    backward: Callable[[Tensor, Tensor], Tensor]


_aten = torch.ops.aten

NARROW = 16
"""Inputs up to which a weight gradient is computed transposed: BLAS is several times faster that way."""


def _tanh_(x: Tensor) -> Tensor:
    """``tanh`` as ``2 sigmoid(2 x) - 1``: exact to 1e-7 and 2.5 times faster than ``torch.tanh`` on AVX2."""
    if x.is_cuda:
        return x.tanh_()
    return x.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)


ACTIVATIONS: dict[type[nn.Module], Activation] = {
    nn.Tanh: Activation(_tanh_, lambda x: np.tanh(x, out=x), _aten.tanh_backward.default),
    nn.ReLU: Activation(
        torch.relu_,
        lambda x: np.maximum(x, 0.0, out=x),
        lambda grad, out: _aten.threshold_backward.default(grad, out, 0),
    ),
}


class Layer(NamedTuple):
    """One linear layer, its gradient views, its activation and (on the CPU) NumPy views of its weights."""

    weight: Tensor
    weight_t: Tensor
    bias: Tensor
    weight_grad: Tensor
    bias_grad: Tensor
    activation: Activation | None
    weight_np: Array | None
    bias_np: Array | None


class MLP:
    """A sequence of linear layers and activations.

    Args:
        linears: The layers with the activation after each (None for none).
        flat: Holds the layers' parameters. None for networks that are never trained (targets).
    """

    def __init__(self, linears: list[tuple[nn.Linear, Activation | None]], flat: FlatParameters | None = None) -> None:
        self.layers: list[Layer] = []
        for linear, activation in linears:
            weight, bias = linear.weight.detach(), linear.bias.detach()
            on_cpu = weight.device.type == "cpu"
            grads = flat.grad_of if flat else {}
            self.layers.append(
                Layer(
                    weight,
                    weight.t(),
                    bias,
                    grads.get(id(linear.weight), weight),
                    grads.get(id(linear.bias), bias),
                    activation,
                    weight.t().numpy() if on_cpu else None,
                    bias.numpy() if on_cpu else None,
                )
            )
        self._inputs: list[Tensor] = []
        self.flops = max((layer.weight.numel() for layer in self.layers), default=0)
        """Multiplications of the largest layer, per row."""

    def forward(self, x: Tensor) -> Tensor:
        """Forward pass that remembers what :meth:`backward` needs. ``x`` [rows, inputs]."""
        self._inputs = inputs = []
        for layer in self.layers:
            inputs.append(x)
            x = torch.addmm(layer.bias, x, layer.weight_t)
            if layer.activation is not None:
                x = layer.activation.torch_(x)
        inputs.append(x)
        return x

    def infer(self, x: Tensor) -> Tensor:
        """Forward pass that remembers nothing."""
        for layer in self.layers:
            x = torch.addmm(layer.bias, x, layer.weight_t)
            if layer.activation is not None:
                x = layer.activation.torch_(x)
        return x

    def infer_numpy(self, x: Array) -> Array:
        """Forward pass for a few rows; reads the same memory as the torch parameters (CPU only)."""
        for layer in self.layers:
            x = x @ layer.weight_np
            x += layer.bias_np
            if layer.activation is not None:
                layer.activation.numpy_(x)
        return x

    def backward(
        self, grad: Tensor, *, into_input: bool = False, into_params: bool = True, rows: Tensor | None = None
    ) -> Tensor:
        """Backpropagate through the last :meth:`forward`.

        Args:
            grad: Gradient of the loss by the output [rows, outputs].
            into_input: Whether the gradient by the input is wanted.
            into_params: Whether to *overwrite* the parameters' gradients.
            rows: Which rows of the forward pass ``grad`` is of, without ``into_params``; None: all.

        Returns:
            The gradient by the input, or by the first layer's output where it is not wanted.
        """
        inputs = self._inputs
        for index in range(len(self.layers) - 1, -1, -1):
            layer = self.layers[index]
            if layer.activation is not None:
                out = inputs[index + 1]
                grad = layer.activation.backward(grad, out if rows is None else out[rows])
            if into_params:
                if inputs[index].shape[1] < NARROW:
                    layer.weight_grad.copy_(torch.mm(inputs[index].t(), grad).t())
                else:
                    torch.mm(grad.t(), inputs[index], out=layer.weight_grad)
                torch.sum(grad, 0, out=layer.bias_grad)
            if index or into_input:
                grad = torch.mm(grad, layer.weight)
        return grad


def parse_layers(*modules: nn.Module) -> list[tuple[nn.Linear, Activation | None]] | None:
    """The linear layers and activations of RLlib's ``TorchMLP``s in sequence; None if there is anything else."""
    linears: list[tuple[nn.Linear, Activation | None]] = []
    pieces = [piece for module in modules for piece in getattr(module, "mlp", [None])]
    for piece in pieces:
        if isinstance(piece, nn.Linear) and piece.bias is not None:
            linears.append((piece, None))
        elif type(piece) in ACTIVATIONS and linears and linears[-1][1] is None:
            linears[-1] = (linears[-1][0], ACTIVATIONS[type(piece)])
        elif not isinstance(piece, nn.Identity):
            return None
    return linears
