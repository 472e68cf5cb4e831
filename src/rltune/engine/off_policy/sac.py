"""Train RLlib's SAC on an array hot loop; configuration, module, loss and checkpoints are RLlib's.

Soft actor-critic (Haarnoja et al. 2018) for continuous actions, with twin critics and a tuned temperature: the losses
of ``SACTorchLearner`` of ray 2.60, whose critics have Huber losses, or those of
`rltune.compat.sac_learner.SquaredErrorSACLearner`. As in RLlib all gradients are taken at the same weights, then the
four optimizers step.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.sac import SAC
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.numpy import MAX_LOG_NN_OUTPUT, MIN_LOG_NN_OUTPUT
from torch import Tensor

from rltune.engine.features import UnsupportedError
from rltune.engine.kernels.compiler import load_kernels
from rltune.engine.kernels.perceptron import Linears, make_table, parse_layers
from rltune.engine.kernels.ppo import compute_outputs
from rltune.engine.kernels.sac import update
from rltune.engine.networks.actor_critic import find_network
from rltune.engine.networks.flat_parameters import FlatParameters, find_memory
from rltune.engine.networks.optimizers import FlatAdam, clip_gradients, compile_step
from rltune.engine.off_policy.algorithm import OffPolicy, TargetNetworks, TransitionRunner, compute_huber_loss
from rltune.engine.off_policy.transitions import RowLayout

Array = NDArray[Any]
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


NONE = np.zeros((0, 5), np.int64)
"""A table without layers."""


def parse_network(encoder: Any, head: Any) -> Linears:
    """Return the linear layers of the policy or of a critic in RLlib's default SAC module.

    Raises:
        UnsupportedError: For other networks than perceptrons, such as critics with a stream for each input.
    """
    linears = None if hasattr(encoder, "base_encoders") else parse_layers(find_network(encoder), head.net)
    if linears is None or hasattr(head, "log_std") or getattr(head, "clip_log_std", False):
        raise UnsupportedError("SAC networks other than perceptrons of tanh or relu")
    return linears


def compute_dist(module: Any, obs: Tensor) -> Tensor:
    """Return the Gaussian policy's means and log standard deviations [rows, 2 * size]."""
    dist: Tensor = module.pi(module.pi_encoder({"obs": obs})["encoder_out"])
    return dist


class PolicyRunner(TransitionRunner):
    """An env runner that samples actions from SAC's policy."""

    def bind_module(self) -> None:
        """Build the network on the module's current memory, after the parameters were moved."""
        linears = parse_network(self.module.pi_encoder, self.module.pi)
        self._layers, self._data = NONE, NONE
        if load_kernels("sac"):
            data = find_memory([param for layer, _ in linears for param in layer.parameters()])
            self._layers, self._data = make_table(linears, data), data.numpy()

    def choose(self, obs: Array, clock: int) -> Array:
        """Sample actions [envs, ...] from the policy; without exploration, return the most likely ones."""
        if self._layers.size:
            inputs = compute_outputs(obs, NONE, self._layers, self._data)
        else:
            inputs = compute_dist(self.module, torch.from_numpy(obs)).numpy()
        chosen: Array = self.actions.sample(inputs) if self.config.explore else self.actions.best(inputs)
        return chosen


def squash(dist: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Sample an action from the squashed Gaussian, and compute its log probability.

    Log standard deviations are bounded as ``TorchSquashedGaussian.from_logits`` bounds them, not by the network. The
    tanh's Jacobian is in the stable form of Spinning Up: log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)). Written
    directly, the left-hand side is log(0) for large u in float32.

    Args:
        dist: Means and log standard deviations [rows, 2 * size].
        noise: Standard normal [rows, size].

    Returns:
        Actions [rows, size] and log probabilities [rows].
    """
    mean, log_std = dist.chunk(2, dim=1)
    log_std = log_std.clamp(MIN_LOG_NN_OUTPUT, MAX_LOG_NN_OUTPUT)
    raw = torch.addcmul(mean, log_std.exp(), noise)
    jacobian = 2.0 * (math.log(2.0) - raw - torch.nn.functional.softplus(-2.0 * raw))
    logp = (-0.5 * noise.square() - log_std - LOG_SQRT_2PI - jacobian).sum(1)
    return raw.tanh(), logp


class SACUpdate:
    """SAC's gradient update on a batch of transitions, with all parameters in flat tensors.

    Args:
        learner: RLlib's, already built; stays the owner of module, optimizers and temperature.
    """

    def __init__(self, learner: Any, config: Any, layout: RowLayout) -> None:
        self.learner, self.config, self.layout = learner, config, layout
        module = learner.module[DEFAULT_MODULE_ID].unwrapped()
        if hasattr(module.action_space, "n"):
            raise UnsupportedError("SAC with discrete actions")
        names = ["qf", "qf_twin"] if config.twin_q else ["qf"]
        self.flats, self.optimizers = {}, {}
        for name in [*names, "policy", "alpha"]:
            optimizer = learner.get_optimizer(DEFAULT_MODULE_ID, name)
            self.flats[name] = FlatParameters(optimizer.param_groups[0]["params"])
            self.optimizers[name] = FlatAdam(self.flats[name], optimizer)
        self.flat = self.flats["policy"]
        self.targets = TargetNetworks(module, [self.flats[name] for name in names])
        self.module, self._names = module, names
        critics = [parse_network(getattr(module, f"{name}_encoder"), getattr(module, name)) for name in names]
        policy = parse_network(module.pi_encoder, module.pi)
        self.log_alpha = learner.curr_log_alpha[DEFAULT_MODULE_ID].detach()
        self.target_entropy = float(learner.target_entropy[DEFAULT_MODULE_ID])
        self._device = self.flat.data.device
        self._generator = torch.Generator(self._device)
        self._generator.manual_seed(config.seed if config.seed is not None else torch.seed())
        self._read_rates()
        # RLlib's own SACConfig lacks the setting, and its critics have Huber losses.
        self._huber = getattr(config, "td_error_loss_fn", "huber") == "huber"
        self._last: tuple[Any, ...] | None = None
        self._step = compile_step(self._gradient_step, list(self.optimizers.values()), config)
        self._network: tuple[Any, ...] | None = None
        if self._device.type == "cpu" and not config.torch_compile_learner and load_kernels("sac"):
            described = [optimizer.describe(config) for optimizer in self.optimizers.values()]
            pair = described[0], described[len(names) - 1]
            online = make_table(policy, self.flat.data), make_table(critics[0], self.flats["qf"].data)
            targets = self.targets.data[0].numpy(), self.targets.data[-1].numpy()
            self._network = described[-2], pair, len(names), described[-1], *online, targets, self._huber

    def _read_rates(self) -> None:
        self._rates = {name: float(x.optimizer.param_groups[0]["lr"]) for name, x in self.optimizers.items()}

    def noise(self, rows: int, size: int) -> Tensor:
        """Draw standard normal noise for the actions at the present and the next observations [2, rows, size]."""
        return torch.randn(2, rows, size, generator=self._generator, device=self._device)

    def step(self, batch: Array, weights: Array) -> None:
        """Update on a batch [rows, width] with importance weights; the next draw overwrites both arrays."""
        self.learner._weights_seq_no += 1
        importance: Any = weights.copy()
        noise = self.noise(len(batch), self.layout.action_size)
        if self._network is not None:
            rates = self._rates["qf"], self._rates["policy"], self._rates["alpha"]
            numbers = update(*self._network, batch, weights, noise.numpy(), self.target_entropy, rates)
        else:
            rows, importance = (torch.from_numpy(x).to(self._device, non_blocking=True) for x in (batch, importance))
            numbers = self._step(rows, importance, noise)
        # Only the last update of an iteration is reported, so its results are kept, and become statistics on
        # demand.
        self._last = *numbers, importance

    def read_errors(self) -> Array:
        """Return the absolute temporal-difference errors [rows] of the last update, averaged over both critics."""
        assert self._last is not None
        errors: Array = torch.as_tensor(self._last[0]).abs().mean(0).cpu().numpy()
        return errors

    def _gradient_step(self, rows: Tensor, importance: Tensor, noise: Tensor) -> tuple[Any, ...]:
        """Compute the same update as the kernel with torch."""
        module = self.module
        obs, after, action, rewards, discounts = self.layout.views(rows)
        alpha = self.log_alpha.exp()
        drawn, logp = squash(compute_dist(module, after), noise[1])
        values = module.forward_target({"obs": after, "actions": drawn})
        wanted = torch.addcmul(rewards, discounts, values - alpha * logp)
        with torch.enable_grad():
            errors = torch.stack([self._compute_values(name, obs, action) - wanted for name in self._names])
            drawn, logp = squash(compute_dist(module, obs), noise[0])
            values = [self._compute_values(name, obs, drawn) for name in self._names]
            least = values[0] if len(values) == 1 else torch.minimum(*values)
            losses = (self._compute_loss(errors) * importance).mean(1).sum(), (alpha * logp - least).mean()
        for flat in self.flats.values():
            flat.attach_grads()
        critics = [param for name in self._names for param in self.flats[name].params]
        # If the losses were computed by a compiled function, they share one graph, which the next backward pass needs
        # again.
        torch.autograd.backward([losses[0]], inputs=critics, retain_graph=True)
        torch.autograd.backward([losses[1]], inputs=self.flat.params)
        # The loss of the temperature is log_alpha * surplus, so its gradient is the surplus.
        surplus = -(logp.detach() + self.target_entropy).mean()
        self.flats["alpha"].grads[0].fill_(surplus)
        norms = []
        for name, flat in self.flats.items():
            norms.append(clip_gradients(flat, self.config.grad_clip, self.config.grad_clip_by))
            self.optimizers[name].step(self._rates[name])
        norms = [norms[-2], *norms[:-2], norms[-1]]
        return errors.detach(), logp.detach(), least.detach(), alpha, surplus, norms

    def _compute_loss(self, error: Tensor) -> Tensor:
        """Return the critics' loss of their errors, elementwise."""
        return compute_huber_loss(error) if self._huber else 0.5 * error.square()

    def _compute_values(self, name: str, obs: Tensor, action: Tensor) -> Tensor:
        """Return a critic's Q values [rows]."""
        encoder, head = getattr(self.module, f"{name}_encoder"), getattr(self.module, name)
        values: Tensor = head(encoder({"obs": obs, "actions": action})["encoder_out"]).squeeze(1)
        return values

    def advance(self, clock: int) -> None:
        """Advance RLlib's learning rate schedules to ``clock`` environment steps."""
        for flat_adam in self.optimizers.values():
            schedule = self.learner._optimizer_lr_schedules.get(flat_adam.optimizer)
            if schedule is not None and schedule.use_schedule:
                self.learner._set_optimizer_lr(flat_adam.optimizer, lr=schedule.update(timestep=clock))
                self._read_rates()

    def statistics(self) -> dict[str, float]:
        """Return RLlib's learner statistics of the last update; empty before the first."""
        if self._last is None:
            return {}
        *numbers, norms, importance = self._last
        errors, logp, least, alpha, surplus, importance = map(torch.as_tensor, (*numbers, importance))
        last = {
            "policy_loss": alpha * logp - least, "alpha_loss": alpha.log() * surplus, "alpha_value": alpha,
            "log_alpha_value": alpha.log(), "logps": logp, "td_error_mean": errors.abs(),
            "qf_mean": least, "qf_max": least.max(), "qf_min": least.min(),
        }  # fmt: skip
        for name, error in zip(self._names, errors, strict=True):
            last[f"{name}_loss"] = importance * self._compute_loss(error)
        if self.config.grad_clip and self.config.grad_clip_by == "global_norm":
            names = ["policy", *self._names, "alpha"]
            last |= {
                f"gradients_{name}_global_norm": torch.as_tensor(norm) for name, norm in zip(names, norms, strict=True)
            }
        numbers = torch.stack([value.mean() for value in last.values()]).tolist()
        stats = dict(zip(last, numbers, strict=True))
        parts = ("policy_loss", "qf_loss", "qf_twin_loss", "alpha_loss")
        stats["total_loss"] = sum(stats.get(name, 0.0) for name in parts)
        return {**stats, "target_entropy": self.target_entropy}

    def state(self) -> dict[str, Any]:
        """Return the temperature, which RLlib's checkpoints lack, and the state of the noise generator."""
        return {"log_alpha": float(self.log_alpha), "noise": self._generator.get_state().numpy()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`state` returned."""
        self.log_alpha.fill_(state["log_alpha"])
        self._generator.set_state(torch.from_numpy(np.asarray(state["noise"])))


class FastSAC(OffPolicy, SAC):
    """RLlib's SAC with the fast engine's hot loop."""

    stock_class = SAC
    kernels = "sac"
    runner_class = PolicyRunner

    def make_update(self) -> SACUpdate:
        """Build the gradient update on the learner's module."""
        return SACUpdate(self.learner, self.config, self.row_layout)
