"""Run the multi-layer perceptrons of RLlib's modules, with a hand-written backward pass.

A layer's gradient is two matrix products and a column sum, written straight into the flat gradient. Autograd would
record a graph at each forward pass and allocate a tensor for each parameter's gradient; with layers this small, that
costs more than the products. Modules that are anything else keep autograd (see ``AutogradActorCritic``).
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
    """An activation: in place on torch, in place on NumPy, and the gradient from its *output*.

    From the output, because the forward pass overwrites the input; tanh and relu, unlike gelu or silu, allow that.
    """

    torch_: Callable[[Tensor], Tensor]
    numpy_: Callable[[Array], Any]
    backward: Callable[[Tensor, Tensor], Tensor]


_aten = torch.ops.aten

NARROW = 16
"""Inputs below which a weight gradient is computed transposed: BLAS is several times faster that way."""


def _tanh_(x: Tensor) -> Tensor:
    """Compute ``tanh`` in place as ``2 sigmoid(2 x) - 1``: exact to 1e-7, 2.5 times faster than torch's on AVX2."""
    if x.is_cuda:  # there one kernel is faster than four
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
            # Detached views share the parameter's memory: they follow every update, and autograd ignores them.
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
                    weight.t().numpy() if on_cpu else None,  # the same memory once more
                    bias.numpy() if on_cpu else None,
                )
            )
        self._inputs: list[Tensor] = []
        self.flops = max((layer.weight.numel() for layer in self.layers), default=0)
        """Multiplications of the largest layer, per row."""

    def forward(self, x: Tensor) -> Tensor:
        """Run a forward pass that remembers what `backward` needs.

        Args:
            x: [rows, inputs]; kept until the next call, so it must not be overwritten before `backward`.
        """
        self._inputs = inputs = []
        for layer in self.layers:
            inputs.append(x)
            x = torch.addmm(layer.bias, x, layer.weight_t)
            if layer.activation is not None:
                x = layer.activation.torch_(x)  # It works in place, to avoid a second tensor of this size.
        inputs.append(x)
        return x

    def infer(self, x: Tensor) -> Tensor:
        """Run a forward pass that remembers nothing. ``x`` [rows, inputs]."""
        for layer in self.layers:
            x = torch.addmm(layer.bias, x, layer.weight_t)
            if layer.activation is not None:
                x = layer.activation.torch_(x)
        return x

    def infer_numpy(self, x: Array) -> Array:
        """Run a forward pass for a few rows on the CPU; it reads the same memory as the torch parameters."""
        for layer in self.layers:
            x = x @ layer.weight_np
            x += layer.bias_np
            if layer.activation is not None:
                layer.activation.numpy_(x)
        return x

    def backward(
        self, grad: Tensor, *, into_input: bool = False, into_params: bool = True, rows: Tensor | None = None
    ) -> Tensor:
        """Backpropagate through the last `forward`.

        Args:
            grad: Gradient of the loss by the output [rows, outputs].
            into_input: Whether the gradient by the input is wanted.
            into_params: Whether to *overwrite* the parameters' gradients.
            rows: The rows of the forward pass that ``grad`` belongs to, without ``into_params``; None is all.

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
                # Overwritten, not added: there is one backward pass per step, and so no zero_grad().
                if inputs[index].shape[1] < NARROW:
                    layer.weight_grad.copy_(torch.mm(inputs[index].t(), grad).t())
                elif inputs[index].dtype == grad.dtype == layer.weight_grad.dtype:
                    torch.mm(grad.t(), inputs[index], out=layer.weight_grad)
                else:  # Autocast does not cast calls that are given an output tensor.
                    layer.weight_grad.copy_(torch.mm(grad.t(), inputs[index]))
                torch.sum(grad, 0, out=layer.bias_grad)
            if index or into_input:  # observations need no gradient
                grad = torch.mm(grad, layer.weight)
        return grad


def parse_layers(*modules: nn.Module) -> list[tuple[nn.Linear, Activation | None]] | None:
    """Read linear layers and activations off RLlib's ``TorchMLP``s in sequence; None if there is anything else."""
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
