"""Run RLlib's default PPO module: on the CPU, perceptrons by compiled kernels; all others by torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rltune.engine.kernels.compiler import load_kernels
from rltune.engine.kernels.perceptron import Linears, find_offset, make_table, parse_layers
from rltune.engine.kernels.ppo import Network, compute_outputs, infer_dist
from rltune.engine.networks.flat_parameters import find_memory
from rltune.engine.sampling.action_distributions import count_parts

Array = NDArray[Any]


class CompiledActorCritic:
    """RLlib's default PPO module computed by kernels: perceptrons on the CPU, with or without a shared encoder.

    Args:
        encoder: The encoder that both heads share; empty where each head's stack includes its own.
        policy: The layers up to the distribution's inputs.
        value: The layers up to the value.
        head: RLlib's policy head.
        data: The flat parameters that all layers are views of.
        sizes: The number of values of each choice; none if the distribution is a Gaussian.
    """

    def __init__(
        self, encoder: Linears, policy: Linears, value: Linears, head: Any, data: Tensor, sizes: Sequence[int]
    ) -> None:
        log_std = getattr(head, "log_std", None)
        self.data: Array = data.numpy()
        self.network = Network(
            make_table(encoder, data),
            make_table(policy, data),
            make_table(value, data),
            find_offset(log_std, data) if log_std is not None else -1,
            float(head.log_std_clip_param) if getattr(head, "clip_log_std", False) else math.inf,
            np.array(sizes, np.int64),
        )

    def values(self, obs: Tensor) -> Tensor:
        """Return value estimates [rows]."""
        network = self.network
        return torch.from_numpy(compute_outputs(obs.numpy(), network.encoder, network.value, self.data)[:, 0])

    def dist_inputs(self, obs: Array) -> Array:
        """Return the action distribution's parameters [rows, inputs], for sampling."""
        n = self.network
        inputs: Array = infer_dist(obs, n.encoder, n.policy, self.data, n.log_std, n.log_std_limit, n.sizes)
        return inputs


class AutogradActorCritic:
    """RLlib's PPO module computed by torch, for all networks and devices; the module must be stateless."""

    def __init__(self, module: Any) -> None:
        self.module = module

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action distribution's parameters [rows, inputs] and value estimates [rows]."""
        out = self.module._forward_train({"obs": obs})
        return out["action_dist_inputs"], self.module.compute_values({"obs": obs}, embeddings=out.get("embeddings"))

    def values(self, obs: Tensor) -> Tensor:
        """Return value estimates [rows], in slices of rows to limit the memory of convolutions."""
        most = 4096 if obs.dtype == torch.float32 else 512
        parts = [self.module.compute_values({"obs": part}) for part in torch.split(obs, most)]
        return torch.cat(parts)

    def dist_inputs(self, obs: Array) -> Array:
        """Return the action distribution's parameters [rows, inputs] for a few rows, for sampling."""
        out: Tensor = self.module._forward({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
        return out.numpy()


ActorCritic = CompiledActorCritic | AutogradActorCritic


def make_actor_critic(module: Any, data: Tensor | None = None, *, compiled: bool = True) -> ActorCritic:
    """Build the fastest network that computes the same as RLlib's default PPO module.

    Args:
        module: RLlib's module, with or without its critic (``inference_only``).
        data: The flat parameters that are trained; None for a copy that only samples.
        compiled: Whether kernels may compute it; they know float32 alone.
    """
    params, linears = list(module.parameters()), _parse(module)
    is_plain = {(param.device.type, param.dtype) for param in params} == {("cpu", torch.float32)}
    sizes, num_numbers = count_parts(module.action_space)
    is_mixed = bool(sizes and num_numbers)
    if linears is None or is_mixed or not (compiled and is_plain and load_kernels("ppo")):
        return AutogradActorCritic(module)
    data = find_memory(params) if data is None else data
    return CompiledActorCritic(*linears, module.pi, data, sizes)


def _parse(module: Any) -> tuple[Linears, Linears, Linears] | None:
    """Return the linear layers of shared encoder, policy and value network; None if there are other layers."""
    encoder, value_head = module.encoder, getattr(module, "vf", None)
    shared = getattr(encoder, "encoder", None)
    if shared is not None:
        parts = [find_network(shared)], [module.pi.net], [value_head.net] if value_head else []
    else:  # A module that was built for inference has no critic, so its list of value layers is empty.
        critic = getattr(encoder, "critic_encoder", None)
        value = [find_network(critic), value_head.net] if critic is not None and value_head else []
        parts = [], [find_network(getattr(encoder, "actor_encoder", None)), module.pi.net], value
    encoder_layers, policy, value_layers = (parse_layers(*part) for part in parts)
    if encoder_layers is None or policy is None or value_layers is None:
        return None
    return encoder_layers, policy, value_layers


def find_network(encoder: Any) -> nn.Module:
    """Return the torch network of an RLlib encoder; for encoders without one, a module that `parse_layers` rejects."""
    net = getattr(encoder, "net", None)
    return net if isinstance(net, nn.Module) else nn.Module()
