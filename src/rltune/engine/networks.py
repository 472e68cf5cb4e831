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

from rltune.engine.parameters import FlatParameters

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


class Stack:
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


def parse(*modules: nn.Module) -> list[tuple[nn.Linear, Activation | None]] | None:
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


class MLPActorCritic:
    """RLlib's default PPO module made of perceptrons, shared encoder or not.

    Args:
        encoder: Encoder shared by both heads; None when each head's stack includes its own.
        policy: Up to the distribution's inputs.
        value: Up to the value.
        log_std: Free log standard deviation parameter with its gradient view, or None.
        log_std_limit: RLlib's ``log_std_clip_param`` where the head clips, or None.
    """

    def __init__(
        self,
        encoder: Stack | None,
        policy: Stack,
        value: Stack,
        log_std: tuple[Tensor, Tensor] | None,
        log_std_limit: float | None,
    ) -> None:
        self.encoder, self.policy, self.value = encoder, policy, value
        self.log_std, self.log_std_limit = log_std, log_std_limit
        self._clipped: Tensor | None = None

    def _assemble(self, out: Tensor) -> Tensor:
        """Append or clip the log standard deviations as RLlib's heads do; ``out`` is overwritten."""
        if self.log_std is not None:
            out = torch.cat([out, self.log_std[0].expand_as(out)], 1)
        if self.log_std_limit is not None:
            out[:, out.shape[1] // 2 :].clamp_(-self.log_std_limit, self.log_std_limit)
            self._clipped = out
        return out

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution inputs [rows, inputs] and values [rows], ready for :meth:`backward`."""
        hidden = obs if self.encoder is None else self.encoder.forward(obs)
        dist = self._assemble(self.policy.forward(hidden))
        return dist, self.value.forward(hidden).squeeze(1)

    def backward(self, dist_grad: Tensor, value_grad: Tensor) -> None:
        """Fill the flat gradient from the gradients by the two outputs."""
        shared = self.encoder is not None
        if self.log_std_limit is not None or self.log_std is not None:
            dist_grad = self._through_log_std(dist_grad)
        policy = self.policy.backward(dist_grad, into_input=shared)
        value = self.value.backward(value_grad.unsqueeze(1), into_input=shared)
        if self.encoder is not None:
            self.encoder.backward(policy.add_(value))

    def _through_log_std(self, grad: Tensor) -> Tensor:
        mean_grad, std_grad = grad.chunk(2, dim=1)
        if self.log_std_limit is not None and self._clipped is not None:
            # A value at its limit was clipped (or is there by a chance of one in 2**24): no gradient.
            std_grad = std_grad * (self._clipped.chunk(2, dim=1)[1].abs() < self.log_std_limit)
        if self.log_std is None:
            return torch.cat([mean_grad, std_grad], 1)
        torch.sum(std_grad, 0, out=self.log_std[1])
        return mean_grad.contiguous()

    def values(self, obs: Tensor) -> Tensor:
        """Values [rows] without a trace."""
        hidden = obs if self.encoder is None else self.encoder.infer(obs)
        return self.value.infer(hidden).squeeze(1)

    def dist_inputs(self, obs: Array) -> Array:
        """Distribution inputs of a few rows, for sampling (CPU)."""
        stacks = [self.policy] if self.encoder is None else [self.encoder, self.policy]
        if len(obs) * max(stack.flops for stack in stacks) <= NUMPY_FLOPS:
            out = obs
            for stack in stacks:
                out = stack.infer_numpy(out)
            if self.log_std is None and self.log_std_limit is not None:
                scale = out[:, out.shape[1] // 2 :]
                np.clip(scale, -self.log_std_limit, self.log_std_limit, out=scale)
                return out
            return out if self.log_std is None else self._assemble(torch.from_numpy(out)).numpy()
        tensor = torch.from_numpy(obs)
        for stack in stacks:
            tensor = stack.infer(tensor)
        return self._assemble(tensor).numpy()


class AutogradActorCritic:
    """Any stateless module with RLlib's ``_forward_train`` and ``compute_values`` (convolutions, layer norm).

    Args:
        module: The module.
        flat: Its parameters.
    """

    def __init__(self, module: Any, flat: FlatParameters | None) -> None:
        self.module, self.flat = module, flat
        self._outputs: tuple[Tensor, Tensor] | None = None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Distribution inputs and values; keeps the graph for :meth:`backward`."""
        with torch.enable_grad():
            out = self.module._forward_train({"obs": obs})
            values = self.module.compute_values({"obs": obs}, embeddings=out.get("embeddings"))
        self._outputs = (out["action_dist_inputs"], values)
        return self._outputs[0].detach(), values.detach()

    def backward(self, dist_grad: Tensor, value_grad: Tensor) -> None:
        """Fill the flat gradient from the gradients by the two outputs."""
        if self._outputs is None or self.flat is None:
            raise RuntimeError("backward() needs a forward() and trainable parameters")
        self.flat.attach_grads()
        torch.autograd.backward(list(self._outputs), [dist_grad, value_grad])
        self._outputs = None

    def values(self, obs: Tensor) -> Tensor:
        """Values without a trace, in slices that bound the memory of convolutions."""
        parts = [self.module.compute_values({"obs": part}) for part in torch.split(obs, 4096)]
        return torch.cat(parts)

    def dist_inputs(self, obs: Array) -> Array:
        """Distribution inputs of a few rows, for sampling."""
        out: Tensor = self.module._forward({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
        return out.numpy()


ActorCritic = MLPActorCritic | AutogradActorCritic


def actor_critic(module: Any, flat: FlatParameters | None) -> ActorCritic:
    """The fastest network that computes what ``module`` (RLlib's default PPO module) computes.

    Args:
        module: With or without its critic (``inference_only``).
        flat: Its parameters; None for a copy that only samples.
    """
    encoder = module.encoder
    shared = getattr(encoder, "encoder", None)
    critic = getattr(encoder, "critic_encoder", None)
    value_head = getattr(module, "vf", None)
    if shared is not None:
        parts = (parse(network_of(shared)), parse(module.pi.net), parse(value_head.net) if value_head else [])
    else:
        actor = getattr(encoder, "actor_encoder", None)
        head = parse(network_of(critic), value_head.net) if critic is not None and value_head else []
        parts = ([], parse(network_of(actor), module.pi.net), head)
    if any(part is None for part in parts):
        return AutogradActorCritic(module, flat)
    stacks = [Stack(part or [], flat) for part in parts]
    log_std = getattr(module.pi, "log_std", None)
    free = None
    if log_std is not None:
        free = (log_std.detach(), flat.grad_of[id(log_std)] if flat else log_std.detach())
    limit = float(module.pi.log_std_clip_param) if getattr(module.pi, "clip_log_std", False) else None
    return MLPActorCritic(stacks[0] if shared is not None else None, stacks[1], stacks[2], free, limit)


def network_of(encoder: Any) -> nn.Module:
    """An encoder's perceptron; RLlib's other encoders have a different ``net`` and do not parse."""
    net = getattr(encoder, "net", None)
    return net if isinstance(net, nn.Module) else nn.Module()
