"""Run state-action value networks: that of RLlib's default SAC module, and a plain one with concatenated inputs."""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor, nn

from rltune.engine.features import UnsupportedError
from rltune.engine.networks.actor_critic import find_network
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mlp import ACTIVATIONS, MLP, parse_layers


class Critic(Protocol):
    """A value network: of observation and action, or of the observation for each discrete action."""

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values [rows, 1], ready for `backward` and `action_gradient`."""

    def infer(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values; nothing is kept for `backward`."""

    def backward(self, grad: Tensor) -> None:
        """Fill the parameters' gradient from that by the values."""

    def action_gradient(self, grad: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient by the action [rows, size]; the parameters' gradients stay as they are.

        Args:
            grad: By the values [rows, 1].
            rows: Which rows of the forward pass ``grad`` is of; None: all.
        """


class ConcatCritic:
    """Plain critic.

    Args:
        stack: On the concatenated inputs.
    """

    def __init__(self, stack: MLP) -> None:
        self.stack, self._actions = stack, 0

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values [rows, 1]."""
        self._actions = action.shape[1]  # the last columns of the input's gradient belong to the action
        return self.stack.forward(torch.cat([obs, action], 1))

    def infer(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values; nothing is kept for `backward`."""
        return self.stack.infer(torch.cat([obs, action], 1))

    def backward(self, grad: Tensor) -> None:
        """Fill the parameters' gradient from that by the values."""
        self.stack.backward(grad)

    def action_gradient(self, grad: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient by the action [rows, size]."""
        return self.stack.backward(grad, into_input=True, into_params=False, rows=rows)[:, -self._actions :]


class DiscreteCritic:
    """Values of all discrete actions from the observation; the action argument is not used.

    Args:
        stack: On the observation.
    """

    def __init__(self, stack: MLP) -> None:
        self.stack = stack

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values [rows, actions]."""
        return self.stack.forward(obs)

    def infer(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values; nothing is kept for `backward`."""
        return self.stack.infer(obs)

    def backward(self, grad: Tensor) -> None:
        """Fill the parameters' gradient from that by the values."""
        self.stack.backward(grad)

    def action_gradient(self, grad: Tensor, rows: Tensor | None = None) -> Tensor:
        """Raise: discrete actions have no gradient."""
        raise NotImplementedError("discrete actions have no gradient")


class FusionCritic:
    """RLlib's ``TorchMultiStreamEncoder`` and head: two streams, then layers that also see both streams' ends.

    The outputs of both streams ("ends") enter every fusion layer again beside the layer before it, so that their
    gradient is a sum over all fusion layers.

    Args:
        action: Stream of the action.
        obs: Stream of the observation.
        fusion: The fusion layers and the encoder's output layer, one stack each.
        head: From the encoder's output to the value.
    """

    def __init__(self, action: MLP, obs: MLP, fusion: list[MLP], head: MLP) -> None:
        self.action, self.obs, self.fusion, self.head = action, obs, fusion, head
        self._split = 0

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values [rows, 1]."""
        # Actions before observations, as RLlib concatenates the streams: in the order of their names.
        left = self.action.forward(action)
        self._split = left.shape[1]
        ends = out = torch.cat([left, self.obs.forward(obs)], 1)
        for index, layer in enumerate(self.fusion):
            out = layer.forward(out if index == 0 else torch.cat([out, ends], 1))
        return self.head.forward(out)

    def infer(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values; nothing is kept for `backward`."""
        ends = out = torch.cat([self.action.infer(action), self.obs.infer(obs)], 1)
        for index, layer in enumerate(self.fusion):
            out = layer.infer(out if index == 0 else torch.cat([out, ends], 1))
        return self.head.infer(out)

    def _ends_gradient(self, grad: Tensor, into_params: bool, rows: Tensor | None = None) -> Tensor:
        """Return the gradient by the streams' ends, through head and fusion layers."""
        grad = self.head.backward(grad, into_input=True, into_params=into_params, rows=rows)
        ends: Tensor | None = None
        # All but the first fusion layer have [previous layer | ends] as inputs; the first has the ends alone.
        for layer in reversed(self.fusion[1:]):
            both = layer.backward(grad, into_input=True, into_params=into_params, rows=rows)
            grad, part = both[:, : -self._width], both[:, -self._width :]
            grad = grad.contiguous()
            ends = part if ends is None else ends + part
        if self.fusion:
            grad = self.fusion[0].backward(grad, into_input=True, into_params=into_params, rows=rows)
        return grad if ends is None else grad + ends

    @property
    def _width(self) -> int:
        """Floats of both streams' ends."""
        return self.fusion[0].layers[0].weight.shape[1]

    def backward(self, grad: Tensor) -> None:
        """Fill the parameters' gradient from that by the values."""
        ends = self._ends_gradient(grad, into_params=True)
        self.action.backward(ends[:, : self._split])
        self.obs.backward(ends[:, self._split :])

    def action_gradient(self, grad: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient by the action [rows, size]."""
        # The observation's stream is left out: the action is no input of it.
        ends = self._ends_gradient(grad, into_params=False, rows=rows)
        return self.action.backward(ends[:, : self._split], into_input=True, into_params=False, rows=rows)


def make_critic(encoder: Any, head: Any, flat: FlatParameters | None, discrete: bool) -> Critic:
    """Build the hand-written counterpart of RLlib's critic made of ``encoder`` and ``head``.

    Args:
        encoder: Of observations and actions, or of observations alone.
        head: From the encoder's output to the values.
        flat: Their parameters; None for a critic that is not trained (a target).
        discrete: Whether there is a value for each action.

    Raises:
        UnsupportedError: For critics that are not perceptrons.
    """
    if hasattr(encoder, "base_encoders"):
        return _make_fusion_critic(encoder, head, flat)
    linears = parse_layers(find_network(encoder), head.net)
    if linears is None:
        raise UnsupportedError("SAC networks other than perceptrons of tanh or relu")
    stack = MLP(linears, flat)
    return DiscreteCritic(stack) if discrete else ConcatCritic(stack)


def _make_fusion_critic(encoder: Any, head: Any, flat: FlatParameters | None) -> FusionCritic:
    streams = [parse_layers(find_network(encoder.base_encoders[name])) for name in ("actions", "obs")]
    tail = parse_layers(head.net)
    classes = [encoder.hidden_activation] * len(encoder.fusion_layers)
    linears = list(encoder.fusion_layers)
    if encoder.output_layer is not None:
        linears.append(encoder.output_layer)
        classes.append(encoder.output_activation)
    known = all(cls in ACTIVATIONS or cls is nn.Identity for cls in classes)
    if tail is None or None in streams or not known or not linears:
        raise UnsupportedError("SAC networks other than perceptrons of tanh or relu")
    # A stack of its own for each layer, because its input is more than what the layer before gives.
    fusion = [MLP([(x, ACTIVATIONS.get(cls))], flat) for x, cls in zip(linears, classes, strict=True)]
    return FusionCritic(MLP(streams[0] or [], flat), MLP(streams[1] or [], flat), fusion, MLP(tail, flat))
