"""Run the state-action value networks of SAC: perceptrons on the concatenated observation and action."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from rltune.engine.features import UnsupportedError
from rltune.engine.networks.actor_critic import find_network
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mlp import MLP, parse_layers


class Critic:
    """A value network of observation and action.

    Args:
        stack: The layers that take the concatenated inputs.
    """

    def __init__(self, stack: MLP) -> None:
        self.stack, self._actions = stack, 0

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values [rows, 1], ready for `backward` and `action_gradient`."""
        self._actions = action.shape[1]  # the last columns of the input's gradient belong to the action
        return self.stack.forward(torch.cat([obs, action], 1))

    def infer(self, obs: Tensor, action: Tensor) -> Tensor:
        """Return values; nothing is kept for `backward`."""
        return self.stack.infer(torch.cat([obs, action], 1))

    def backward(self, grad: Tensor) -> None:
        """Fill the parameters' gradient from that by the values."""
        self.stack.backward(grad)

    def action_gradient(self, grad: Tensor, rows: Tensor | None = None) -> Tensor:
        """Return the gradient by the action [rows, size]; the parameters' gradients stay as they are.

        Args:
            grad: The loss's gradient by the values [rows, 1].
            rows: The rows of the forward pass that ``grad`` belongs to; None is all.
        """
        return self.stack.backward(grad, into_input=True, into_params=False, rows=rows)[:, -self._actions :]


def make_critic(encoder: Any, head: Any, flat: FlatParameters | None) -> Critic:
    """Build the hand-written counterpart of RLlib's critic made of ``encoder`` and ``head``.

    Args:
        encoder: The layers that take observations and actions.
        head: The layers from the encoder's output to the values.
        flat: Their parameters; None for a critic that is not trained (a target).

    Raises:
        UnsupportedError: For critics that are not perceptrons, such as RLlib's own with a stream for each input.
    """
    linears = None if hasattr(encoder, "base_encoders") else parse_layers(find_network(encoder), head.net)
    if linears is None:
        raise UnsupportedError("SAC networks other than perceptrons of tanh or relu")
    return Critic(MLP(linears, flat))
