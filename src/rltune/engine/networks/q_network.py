"""Run RLlib's default DQN module: on the CPU, perceptrons by compiled kernels; all others by torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rltune.engine.kernels.compiler import load_kernels
from rltune.engine.kernels.dqn import Network, choose_actions, explore
from rltune.engine.kernels.perceptron import Linears, make_table, parse_layers
from rltune.engine.networks.actor_critic import find_network
from rltune.engine.networks.flat_parameters import find_memory

Array = NDArray[Any]


class CompiledValues:
    """DQN's action values computed by kernels: perceptrons on the CPU.

    Args:
        encoder: The layers that the heads share.
        advantage: The layers to one output an action.
        value: The layers to one output; none without dueling (Wang et al. 2016).
        data: The flat parameters that all layers are views of.
    """

    def __init__(self, encoder: Linears, advantage: Linears, value: Linears, data: Tensor) -> None:
        self.data: Array = data.numpy()
        self.network = Network(*(make_table(part, data) for part in (encoder, advantage, value)))
        self._policy = np.concatenate(self.network[:2])

    def choose(self, obs: Array, draws: Array, epsilon: float) -> Array:
        """Choose greedy actions [rows], or random actions where ``draws`` [rows] are below ``epsilon``."""
        # The value head of a dueling network adds the same number to all actions, so it does not change the greedy
        # action.
        actions: Array = choose_actions(obs, self._policy, self.data, draws, epsilon)
        return actions


class AutogradValues:
    """DQN's action values computed by torch, for all stateless modules and devices.

    Args:
        target: Compute with the target network.
    """

    def __init__(self, module: Any, target: bool) -> None:
        self._compute = module.forward_target if target else module.compute_q_values
        self._split = getattr(module, "split", None)  # Modules of masked environments have it.

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values [rows, actions]."""
        out: Tensor = self._compute({"obs": obs})["qf_preds"]
        return out

    def choose(self, obs: Array, draws: Array, epsilon: float) -> Array:
        """Choose greedy actions [rows], or random actions where ``draws`` [rows] are below ``epsilon``."""
        rows = torch.from_numpy(obs)
        values = self.forward(rows)
        actions: Array = values.argmax(1).numpy()
        flags = torch.empty(len(obs), 0) if self._split is None else self._split({"obs": rows})[1].float()
        explore(actions, draws, epsilon, values.shape[1], flags.numpy())
        return actions


Values = CompiledValues | AutogradValues


def make_action_values(module: Any, *, target: bool = False, compiled: bool = True) -> Values:
    """Build the fastest network that computes the action values of RLlib's default DQN module or its target network.

    Args:
        module: RLlib's module, with its target networks if ``target``.
        target: The target network instead of the online one.
        compiled: Whether kernels may compute it; they know float32 alone.
    """
    prefix = "_target_" if target else ""
    # RLlib's attribute "af" is the advantage head; without dueling there is no "vf", and "af" gives the action values.
    networks = [find_network(getattr(module, prefix + "encoder")), getattr(module, prefix + "af").net]
    if module.uses_dueling:
        networks.append(getattr(module, prefix + "vf").net)
    parts = [parse_layers(network) for network in networks]
    linears = [part for part in parts if part is not None]
    params = [param for part in linears for layer, _ in part for param in layer.parameters()]
    if len(linears) < len(parts) or not compiled or params[0].device.type != "cpu" or not load_kernels("dqn"):
        return AutogradValues(module, target)
    encoder, advantage, value = (*linears, [])[:3]
    return CompiledValues(encoder, advantage, value, find_memory(params))
