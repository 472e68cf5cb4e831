"""Train SAC on an array hot loop, with RLlib's configuration, module, loss and checkpoints.

Soft actor-critic (Haarnoja et al. 2018) for continuous actions, with twin critics, Huber losses and a tuned
temperature: the losses of ``SACTorchLearner`` of ray 2.60. As in RLlib all gradients are taken at the same weights,
then the four optimizers step.
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
from rltune.engine.networks.actor_critic import find_network
from rltune.engine.networks.critics import Critic, make_critic
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mlp import MLP, NUMPY_FLOPS, parse_layers
from rltune.engine.networks.optimizers import FlatAdam, clip_gradients, compile_step
from rltune.engine.off_policy.algorithm import OffPolicy, TargetNetworks, TransitionRunner, compute_huber_loss
from rltune.engine.off_policy.transitions import RowLayout

Array = NDArray[Any]
LOG_SQRT_2PI = 0.5 * math.log(2.0 * math.pi)


def make_policy(module: Any, flat: FlatParameters | None) -> MLP:
    """Build the policy of RLlib's default SAC module.

    Args:
        flat: Its policy's parameters; None for a copy that only samples.

    Raises:
        UnsupportedError: For policies that are not perceptrons.
    """
    linears = parse_layers(find_network(module.pi_encoder), module.pi.net)
    if linears is None or hasattr(module.pi, "log_std") or getattr(module.pi, "clip_log_std", False):
        raise UnsupportedError("SAC networks other than perceptrons of tanh or relu")
    return MLP(linears, flat)


class PolicyRunner(TransitionRunner):
    """Draws actions from the policy."""

    def bind_module(self) -> None:
        """Read the module's tensors anew, after they were moved to other memory."""
        self.policy = make_policy(self.module, None)

    def choose(self, obs: Array, clock: int) -> Array:
        """Draw actions [envs, ...] as the distribution gives them; the most likely ones without exploration."""
        if len(obs) * self.policy.flops <= NUMPY_FLOPS:
            inputs = self.policy.infer_numpy(obs)
        else:
            inputs = self.policy.infer(torch.from_numpy(obs)).numpy()
        chosen: Array = self.actions.sample(inputs) if self.config.explore else self.actions.best(inputs)
        return chosen


def squash(dist: Tensor, noise: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Draw from the squashed Gaussian.

    Log standard deviations are bounded as ``TorchSquashedGaussian.from_logits`` bounds them, not by the network. The
    tanh's Jacobian is in the stable form of Spinning Up: log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2u)). Written
    directly, the left-hand side is log(0) for large u in float32.

    Args:
        dist: Means and log standard deviations [rows, 2 * size].
        noise: Standard normal [rows, size].

    Returns:
        Actions [rows, size], log probabilities [rows], standard deviations [rows, size].
    """
    mean, log_std = dist.chunk(2, dim=1)
    log_std = log_std.clamp(MIN_LOG_NN_OUTPUT, MAX_LOG_NN_OUTPUT)
    std = log_std.exp()
    raw = torch.addcmul(mean, std, noise)
    jacobian = 2.0 * (math.log(2.0) - raw - torch.nn.functional.softplus(-2.0 * raw))
    logp = (-0.5 * noise.square() - log_std - LOG_SQRT_2PI - jacobian).sum(1)
    return raw.tanh(), logp, std


class SACUpdate:
    """Learns from batches of transitions: one gradient step each on the flat parameters of RLlib's module.

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
        self.policy = make_policy(module, self.flat)
        # Before the target critics: it moves the targets' parameters into flat tensors, of which those take views.
        self.targets = TargetNetworks(module, [self.flats[name] for name in names])
        self.critics = [self._make_critic(module, name, self.flats[name]) for name in names]
        self.target_critics = [self._make_critic(module, f"target_{name}", None) for name in names]
        self.log_alpha = learner.curr_log_alpha[DEFAULT_MODULE_ID].detach()
        self.target_entropy = float(learner.target_entropy[DEFAULT_MODULE_ID])
        self._device = self.flat.data.device
        self._generator = torch.Generator(self._device)
        self._generator.manual_seed(config.seed if config.seed is not None else torch.seed())
        self._read_rates()
        self._last: dict[str, Tensor] | None = None
        # For the policy's gradient two critics share the rows, half of the work each. How many rows each gets is known
        # only at run time: a GPU would have to be waited for, and a compiled graph would be traced anew.
        self.split_rows = len(names) == 2 and self._device.type == "cpu" and not config.torch_compile_learner
        self._step = compile_step(self._gradient_step, list(self.optimizers.values()), config)

    def _make_critic(self, module: Any, name: str, flat: FlatParameters | None) -> Critic:
        return make_critic(getattr(module, f"{name}_encoder"), getattr(module, name), flat)

    def _read_rates(self) -> None:
        self._rates = {name: float(x.optimizer.param_groups[0]["lr"]) for name, x in self.optimizers.items()}

    def noise(self, rows: int, size: int) -> Tensor:
        """Draw standard normal numbers for the present and for the next actions [2, rows, size]."""
        return torch.randn(2, rows, size, generator=self._generator, device=self._device)

    def step(self, batch: Array, weights: Array) -> Tensor:
        """Update on ``batch`` [rows, width] with importance ``weights``; absolute temporal-difference errors [rows]."""
        rows, importance = torch.from_numpy(batch), torch.from_numpy(weights)
        if self._device.type != "cpu":
            rows, importance = rows.to(self._device, non_blocking=True), importance.to(self._device, non_blocking=True)
        self.learner._weights_seq_no += 1
        error: Tensor = self._step(rows, importance)
        return error

    def _gradient_step(self, rows: Tensor, importance: Tensor) -> Tensor:
        obs, after, action, rewards, discounts = self.layout.views(rows)
        alpha = self.log_alpha.exp()
        noise = self.noise(len(rows), action.shape[1])
        next_value = self._next_value(after, alpha, noise)
        wanted = torch.addcmul(rewards, discounts, next_value)
        errors, losses = self._critic_gradients(obs, action, wanted, importance)
        policy_loss, logp, current = self._policy_gradient(obs, alpha, noise)
        # The temperature's loss is log_alpha * surplus, so its gradient is the surplus itself.
        surplus = -(logp + self.target_entropy).mean()
        self.flats["alpha"].grads[0].fill_(surplus)
        # RLlib reports the last update only: keep its tensors, compute and move nothing until statistics() wants them.
        self._last = {
            "policy_loss": policy_loss, "alpha_loss": self.log_alpha * surplus, "alpha_value": alpha,
            "logps": logp, "q": current, "td_error_mean": errors, **losses,
        }  # fmt: skip
        for name, flat in self.flats.items():
            norm = clip_gradients(flat, self.config.grad_clip, self.config.grad_clip_by)
            if norm is not None:
                self._last[f"gradients_{name}_global_norm"] = norm
            self.optimizers[name].step(self._rates[name])
        return errors

    def _next_value(self, after: Tensor, alpha: Tensor, noise: Tensor) -> Tensor:
        """Compute the soft value of the next observations by the target critics [rows]."""
        action, logp, _ = squash(self.policy.infer(after), noise[1])
        return self._least(self.target_critics, after, action).squeeze(1) - alpha * logp

    @staticmethod
    def _least(critics: list[Critic], obs: Tensor, action: Tensor) -> Tensor:
        values = [c.infer(obs, action) for c in critics]
        return values[0] if len(values) == 1 else torch.minimum(*values)

    def _critic_gradients(
        self, obs: Tensor, action: Tensor, wanted: Tensor, importance: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Fill the critics' gradients.

        Returns:
            Absolute errors, the mean of the critics' [rows]; weights and errors by loss, for `statistics`.
        """
        weight = importance / len(wanted)
        sizes, losses = [], {}
        for name, net in zip(self.flats, self.critics, strict=False):
            error = net.forward(obs, action).squeeze(1) - wanted
            # The Huber loss's derivative is the clipped error.
            net.backward((error.clamp(-1.0, 1.0) * weight).unsqueeze(1))
            sizes.append(error.abs())
            losses[f"{name}_loss"] = torch.stack([importance, error])
        return (sizes[0] if len(sizes) == 1 else (sizes[0] + sizes[1]) * 0.5), losses

    def _policy_gradient(self, obs: Tensor, alpha: Tensor, noise: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Fill the policy's gradient; return its losses, log probabilities and values of its actions [rows].

        The loss is the mean of alpha * logp - min(Q1, Q2), differentiated through the drawn action.
        """
        share = 1.0 / len(obs)
        dist = self.policy.forward(obs)
        action, logp, std = squash(dist, noise[0])
        values = [net.forward(obs, action) for net in self.critics]
        least = values[0] if len(values) == 1 else torch.minimum(*values)
        # The gradient goes to the smaller value, and to one of them where both are the same.
        first = values[0] <= least
        grad = torch.zeros_like(action)
        for net, value, smaller in zip(self.critics, values, (first, ~first), strict=False):
            if self.split_rows:
                rows = smaller.squeeze(1).nonzero().squeeze(1)
                grad.index_add_(0, rows, net.action_gradient(value.new_full((len(rows), 1), -share), rows))
            else:
                grad += net.action_gradient(smaller * -share)
        # d action / d raw = 1 - action^2; the Jacobian's part of logp has d / d raw = 2 action.
        raw_grad = grad * (1.0 - action.square()) + (2.0 * share) * alpha * action
        # raw = mean + std * noise, so log_std gets raw's gradient times std * noise, and -1 from logp's own -log_std.
        std_grad = raw_grad * std * noise[0] - alpha * share
        # This is torch.clamp's gradient: zero beyond the bounds, unchanged on and within them.
        log_std = dist.chunk(2, dim=1)[1]
        std_grad *= log_std == log_std.clamp(MIN_LOG_NN_OUTPUT, MAX_LOG_NN_OUTPUT)
        self.policy.backward(torch.cat([raw_grad, std_grad], 1))
        least = least.squeeze(1)
        return alpha * logp - least, logp, least

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
        last = dict(self._last)
        values = last.pop("q")
        for name in ("qf_loss", "qf_twin_loss"):
            if name in last:
                importance, error = last[name]
                last[name] = importance * compute_huber_loss(error)
        last |= {"qf_mean": values, "qf_max": values.max(), "qf_min": values.min()}
        last["log_alpha_value"] = last["alpha_value"].log()
        numbers = torch.stack([value.mean() for value in last.values()]).tolist()
        stats = dict(zip(last, numbers, strict=True))
        parts = ("policy_loss", "qf_loss", "qf_twin_loss", "alpha_loss")
        stats["total_loss"] = sum(stats.get(name, 0.0) for name in parts)
        return {**stats, "target_entropy": self.target_entropy}

    def state(self) -> dict[str, Any]:
        """Return the temperature (which RLlib's checkpoints lose) and the noise generator's state."""
        return {"log_alpha": float(self.log_alpha), "noise": self._generator.get_state().numpy()}

    def load(self, state: dict[str, Any]) -> None:
        """Set what :meth:`state` returned."""
        self.log_alpha.fill_(state["log_alpha"])
        self._generator.set_state(torch.from_numpy(np.asarray(state["noise"])))


class FastSAC(OffPolicy, SAC):
    """RLlib's SAC with its hot loop replaced."""

    stock_class = SAC
    runner_class = PolicyRunner

    def make_update(self) -> SACUpdate:
        """Build the update on the learner's module."""
        return SACUpdate(self.learner, self.config, self.row_layout)
