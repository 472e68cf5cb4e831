"""Run policy and value networks of RLlib's default PPO module with hand-written forward and backward passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mlp import MLP, NUMPY_FLOPS, parse_layers

Array = NDArray[Any]


class MLPActorCritic:
    """RLlib's default PPO module made of perceptrons, shared encoder or not.

    Args:
        encoder: Encoder shared by both heads; None when each head's stack includes its own.
        policy: The layers up to the distribution's inputs.
        value: The layers up to the value.
        log_std: Free log standard deviation parameter with its gradient view, or None.
        log_std_limit: RLlib's ``log_std_clip_param`` where the head clips, or None.
    """

    def __init__(
        self,
        encoder: MLP | None,
        policy: MLP,
        value: MLP,
        log_std: tuple[Tensor, Tensor] | None,
        log_std_limit: float | None,
    ) -> None:
        self.encoder, self.policy, self.value = encoder, policy, value
        self.log_std, self.log_std_limit = log_std, log_std_limit
        self._clipped: Tensor | None = None

    def _assemble(self, out: Tensor) -> Tensor:
        """Append or clip the log standard deviations as RLlib's heads do; ``out`` is overwritten."""
        if self.log_std is not None:  # one free parameter, the same for every row
            out = torch.cat([out, self.log_std[0].expand_as(out)], 1)
        if self.log_std_limit is not None:
            out[:, out.shape[1] // 2 :].clamp_(-self.log_std_limit, self.log_std_limit)
            self._clipped = out
        return out

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution inputs [rows, inputs] and values [rows], ready for `backward`."""
        hidden = obs if self.encoder is None else self.encoder.forward(obs)  # a shared encoder runs once for both heads
        dist = self._assemble(self.policy.forward(hidden))
        return dist, self.value.forward(hidden).squeeze(1)

    def backward(self, dist_grad: Tensor, value_grad: Tensor) -> None:
        """Fill the flat gradient from the gradients by the two outputs.

        Args:
            dist_grad: [rows, inputs].
            value_grad: [rows].
        """
        shared = self.encoder is not None
        if self.log_std_limit is not None or self.log_std is not None:
            dist_grad = self._through_log_std(dist_grad)
        policy = self.policy.backward(dist_grad, into_input=shared)
        value = self.value.backward(value_grad.unsqueeze(1), into_input=shared)
        if self.encoder is not None:
            # Both heads' gradients meet here. In place: `policy` is a fresh product that nobody else holds.
            self.encoder.backward(policy.add_(value))

    def _through_log_std(self, grad: Tensor) -> Tensor:
        """Backpropagate through `_assemble`: from the distribution's inputs to the policy head's outputs."""
        mean_grad, std_grad = grad.chunk(2, dim=1)
        if self.log_std_limit is not None and self._clipped is not None:
            # Clipping happened in place, so what the value was before is gone. One at its limit was clipped (or is
            # there by a chance of one in 2**24): no gradient.
            std_grad = std_grad * (self._clipped.chunk(2, dim=1)[1].abs() < self.log_std_limit)
        if self.log_std is None:
            return torch.cat([mean_grad, std_grad], 1)
        # One parameter serves all rows: its gradient is their sum.
        torch.sum(std_grad, 0, out=self.log_std[1])
        return mean_grad.contiguous()

    def values(self, obs: Tensor) -> Tensor:
        """Return values [rows]; nothing is kept for `backward`."""
        hidden = obs if self.encoder is None else self.encoder.infer(obs)
        return self.value.infer(hidden).squeeze(1)

    def dist_inputs(self, obs: Array) -> Array:
        """Return distribution inputs [rows, inputs] of a few rows on the CPU, for sampling."""
        # This runs at every step, on as many rows as there are environments: the calls cost more than the products, so
        # small networks go through NumPy, whose calls are the cheaper ones.
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
    """Any stateless module with RLlib's ``_forward_train`` and ``compute_values`` (convolutions, layer norm)."""

    def __init__(self, module: Any, flat: FlatParameters | None) -> None:
        self.module, self.flat = module, flat
        self._outputs: tuple[Tensor, Tensor] | None = None

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return distribution inputs and values; keep the graph for `backward`."""
        with torch.enable_grad():
            out = self.module._forward_train({"obs": obs})
            values = self.module.compute_values({"obs": obs}, embeddings=out.get("embeddings"))
        self._outputs = (out["action_dist_inputs"], values)
        # Detached, so that the loss in closed form does not record into the graph as well.
        return self._outputs[0].detach(), values.detach()

    def backward(self, dist_grad: Tensor, value_grad: Tensor) -> None:
        """Fill the flat gradient from the gradients by the two outputs."""
        if self._outputs is None or self.flat is None:
            raise RuntimeError("backward() needs a forward() and trainable parameters")
        self.flat.attach_grads()
        # One call for both outputs walks a shared encoder once.
        grads = [grad.to(out.dtype) for grad, out in zip((dist_grad, value_grad), self._outputs, strict=True)]
        torch.autograd.backward(list(self._outputs), grads)
        self._outputs = None

    def values(self, obs: Tensor) -> Tensor:
        """Return values [rows], in slices that bound the memory of convolutions; nothing is kept for `backward`."""
        parts = [self.module.compute_values({"obs": part}) for part in torch.split(obs, 4096)]
        return torch.cat(parts)

    def dist_inputs(self, obs: Array) -> Array:
        """Return distribution inputs [rows, inputs] of a few rows, for sampling."""
        out: Tensor = self.module._forward({"obs": torch.from_numpy(obs)})["action_dist_inputs"]
        return out.numpy()


ActorCritic = MLPActorCritic | AutogradActorCritic


def make_actor_critic(module: Any, flat: FlatParameters | None) -> ActorCritic:
    """Build the fastest network that computes what ``module`` (RLlib's default PPO module) computes.

    Args:
        module: RLlib's module, with or without its critic (``inference_only``).
        flat: Its parameters; None for a copy that only samples.
    """
    encoder = module.encoder
    shared = getattr(encoder, "encoder", None)
    critic = getattr(encoder, "critic_encoder", None)
    value_head = getattr(module, "vf", None)
    if shared is not None:
        parts = (
            parse_layers(find_network(shared)),
            parse_layers(module.pi.net),
            parse_layers(value_head.net) if value_head else [],
        )
    else:  # an inference-only module has no critic, and its value network stays empty
        actor = getattr(encoder, "actor_encoder", None)
        head = parse_layers(find_network(critic), value_head.net) if critic is not None and value_head else []
        parts = ([], parse_layers(find_network(actor), module.pi.net), head)
    if any(
        part is None for part in parts
    ):  # all or nothing: the graph of one part would have to run through the others
        return AutogradActorCritic(module, flat)
    stacks = [MLP(part or [], flat) for part in parts]
    log_std = getattr(module.pi, "log_std", None)
    free = None
    if log_std is not None:
        free = (log_std.detach(), flat.grad_of[id(log_std)] if flat else log_std.detach())
    limit = float(module.pi.log_std_clip_param) if getattr(module.pi, "clip_log_std", False) else None
    return MLPActorCritic(stacks[0] if shared is not None else None, stacks[1], stacks[2], free, limit)


def find_network(encoder: Any) -> nn.Module:
    """Return an encoder's perceptron; what RLlib's other encoders have in its place does not parse."""
    net = getattr(encoder, "net", None)
    return net if isinstance(net, nn.Module) else nn.Module()
