"""Run action-value networks of RLlib's default DQN module, with and without dueling heads."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rltune.engine.networks.actor_critic import find_network
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mlp import MLP, NUMPY_FLOPS, parse_layers

Array = NDArray[Any]


class MLPValues:
    """Action values by perceptrons: an encoder, an advantage head, and a value head when dueling.

    Args:
        encoder: Shared by the heads.
        advantage: The layers to one output an action.
        value: The layers to one output, or None without dueling (Wang et al. 2016).
    """

    def __init__(self, encoder: MLP, advantage: MLP, value: MLP | None) -> None:
        self.encoder, self.advantage, self.value = encoder, advantage, value
        self._flops = max(encoder.flops, advantage.flops)

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values [rows, actions], ready for `backward`."""
        hidden = self.encoder.forward(obs)
        out = self.advantage.forward(hidden)
        if self.value is None:
            return out
        # Less the mean: otherwise a constant could wander between advantages and value (Wang et al. 2016, equation 9).
        return out - out.mean(1, keepdim=True) + self.value.forward(hidden)

    def infer(self, obs: Tensor) -> Tensor:
        """Return action values [rows, actions]; nothing is kept for `backward`."""
        hidden = self.encoder.infer(obs)
        out = self.advantage.infer(hidden)
        if self.value is None:
            return out
        return out - out.mean(1, keepdim=True) + self.value.infer(hidden)

    def backward(self, grad: Tensor) -> None:
        """Fill the flat gradient from the gradient by the action values."""
        if self.value is None:
            self.encoder.backward(self.advantage.backward(grad, into_input=True))
            return
        # out = advantage - mean(advantage) + value: the value gets the sum of all gradients, and each advantage its own
        # less the mean.
        total = grad.sum(1, keepdim=True)
        hidden = self.advantage.backward(grad - total / grad.shape[1], into_input=True)
        self.encoder.backward(hidden.add_(self.value.backward(total, into_input=True)))

    def best(self, obs: Array) -> Array:
        """Choose the greedy actions [rows] for a few rows on the CPU; the value head does not change them."""
        # At every environment step, on a few rows: there the calls are what costs, and NumPy's are cheaper.
        if len(obs) * self._flops <= NUMPY_FLOPS:
            values = self.advantage.infer_numpy(self.encoder.infer_numpy(obs))
        else:
            values = self.advantage.infer(self.encoder.infer(torch.from_numpy(obs))).numpy()
        best: Array = values.argmax(1)
        return best


class AutogradValues:
    """Action values by any other stateless default module (convolutions, layer norm).

    Args:
        flat: Its trained parameters, or None.
        target: Compute with the target network.
    """

    def __init__(self, module: Any, flat: FlatParameters | None, target: bool) -> None:
        self.flat = flat
        self._compute = module.forward_target if target else module.compute_q_values
        self._out: Tensor | None = None

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values [rows, actions]; keep the graph for `backward`."""
        with torch.enable_grad():
            self._out = self._compute({"obs": obs})["qf_preds"]
        return self._out.detach()

    def infer(self, obs: Tensor) -> Tensor:
        """Return action values [rows, actions]; nothing is kept for `backward`."""
        out: Tensor = self._compute({"obs": obs})["qf_preds"]
        return out

    def backward(self, grad: Tensor) -> None:
        """Fill the flat gradient from the gradient by the action values."""
        if self._out is None or self.flat is None:
            raise RuntimeError("backward() needs a forward() and trainable parameters")
        self.flat.attach_grads()
        torch.autograd.backward([self._out], [grad.to(self._out.dtype)])
        self._out = None

    def best(self, obs: Array) -> Array:
        """Choose the greedy actions [rows] for a few rows."""
        best: Array = self.infer(torch.from_numpy(np.ascontiguousarray(obs))).numpy().argmax(1)
        return best


Values = MLPValues | AutogradValues


def make_action_values(module: Any, flat: FlatParameters | None, *, target: bool = False) -> Values:
    """Build the fastest network that computes the (target) action values of ``module``, RLlib's default one.

    Args:
        module: RLlib's module, with its target networks if ``target``.
        flat: The trained parameters; None for a copy that is not trained.
        target: The target network instead of the online one.
    """
    prefix = "_target_" if target else ""
    # RLlib's names: af is the advantage head, or the head of the action values where there is no vf.
    heads = [getattr(module, prefix + "af")]
    if module.uses_dueling:
        heads.append(getattr(module, prefix + "vf"))
    encoder = parse_layers(find_network(getattr(module, prefix + "encoder")))
    parts = [parse_layers(head.net) for head in heads]
    if encoder is None or any(part is None for part in parts):
        return AutogradValues(module, flat, target)
    stacks = [MLP(part or [], flat) for part in parts]
    return MLPValues(MLP(encoder, flat), stacks[0], stacks[1] if module.uses_dueling else None)
