"""Train RLlib's DQN on an array hot loop; configuration, module, loss and checkpoints are RLlib's.

Double (van Hasselt et al. 2016), dueling (Wang et al. 2016), n-step returns and prioritised replay (Schaul
et al. 2016) as RLlib names them; the loss is ``DQNTorchLearner.compute_loss_for_module`` of ray 2.60.
"""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.dqn import DQN
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor

from rltune.engine.kernels.dqn import Loss, update
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mixed_precision import BFLOAT16, FLOAT32, in_precision
from rltune.engine.networks.optimizers import clip_gradients, compile_step, make_flat_optimizer
from rltune.engine.networks.q_network import CompiledValues, Values, make_action_values
from rltune.engine.off_policy.algorithm import OffPolicy, TargetNetworks, TransitionRunner, compute_huber_loss
from rltune.engine.off_policy.transitions import RowLayout, to_tensors

Array = NDArray[Any]


class GreedyRunner(TransitionRunner):
    """An env runner that acts epsilon-greedily, with RLlib's schedule of epsilon."""

    network: Values

    def bind_module(self) -> None:
        """Build the network on the module's current memory, after the parameters were moved."""
        self.network = make_action_values(self.module)

    def choose(self, obs: Array, clock: int) -> Array:
        """Choose greedy actions [envs]; each is replaced by a random one with probability epsilon."""
        epsilon = 0.0
        if self.config.explore:
            # RLlib computes epsilon in the module's forward_exploration, which this loop does not call.
            schedule = self.module.epsilon_schedule
            epsilon = schedule._schedule.value(t=clock) if schedule.use_schedule else schedule.get_current_value()
        return self.network.choose(obs, self._rng.random(len(obs)), float(epsilon))


class DQNUpdate:
    """DQN's gradient update on a batch of transitions, with all parameters in a flat tensor.

    Args:
        learner: RLlib's, already built.
        precision: The precision of the networks' products, ``float32`` or ``bfloat16``.
    """

    def __init__(self, learner: Any, config: Any, layout: RowLayout, precision: str = FLOAT32) -> None:
        self.learner, self.config, self.layout = learner, config, layout
        module = learner.module[DEFAULT_MODULE_ID].unwrapped()
        optimizer = learner.get_optimizer(DEFAULT_MODULE_ID)
        self.flat = FlatParameters(optimizer.param_groups[0]["params"])
        self.optimizer = make_flat_optimizer(self.flat, optimizer)
        self.targets = TargetNetworks(module, [self.flat])
        plain = precision == FLOAT32 and not config.torch_compile_learner
        networks = [make_action_values(module, target=target, compiled=plain) for target in (False, True)]
        self.online: Any
        self.target: Any
        self.online, self.target = (in_precision(network, precision, self.flat.data.device) for network in networks)
        self._parameters = self.optimizer.describe(config)
        self._loss = Loss(bool(config.double_q), config.td_error_loss_fn == "huber")
        self.lr = float(optimizer.param_groups[0]["lr"])
        self._last: tuple[Any, Any, Any, Any] | None = None
        self._step = compile_step(self._gradient_step, [self.optimizer], config)

    def step(self, batch: Any, weights: Array) -> None:
        """Update on a batch [rows, width] or a `Batch`, with importance weights; the next draw overwrites them."""
        self.learner._weights_seq_no += 1
        importance: Any = weights.copy()
        if isinstance(self.online, CompiledValues):
            selected, error, norm = update(
                self._parameters, self.online.network, self.target.data, batch, weights, self._loss, self.lr
            )
        else:
            device = self.flat.data.device
            rows, importance = (to_tensors(part, device) for part in (batch, importance))
            selected, error, norm = self._step(rows, importance)
        # Only the last update of an iteration is reported, so its results are kept, and become statistics on
        # demand.
        self._last = selected, error, importance, norm

    def read_errors(self) -> Array:
        """Return the absolute temporal-difference errors [rows] of the last update."""
        assert self._last is not None
        errors: Array = torch.as_tensor(self._last[1]).abs().cpu().numpy()
        return errors

    def _gradient_step(self, rows: Any, importance: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Compute the same update as the kernel with torch."""
        obs, after, action, rewards, discounts = self.layout.views(rows)
        values = self.target.forward(after)
        # Double DQN: the online network chooses the action, and the target network evaluates it (van Hasselt et al.
        # 2016).
        if self._loss.double:
            best = values.gather(1, self.online.forward(after).argmax(1, keepdim=True)).squeeze(1)
        else:
            best = values.amax(1)
        # If the episode terminated, the stored discount is zero, so the next value needs no mask.
        wanted = torch.addcmul(rewards, discounts, best)
        with torch.enable_grad():
            selected = self.online.forward(obs).gather(1, action.long()).squeeze(1)
            loss = self._compute_loss(selected - wanted, importance)
        self.flat.attach_grads()
        torch.autograd.backward([loss])
        norm = clip_gradients(self.flat, self.config.grad_clip, self.config.grad_clip_by)
        self.optimizer.step(self.lr)
        selected = selected.detach()
        return selected, selected - wanted, norm

    def _compute_loss(self, error: Tensor, importance: Tensor) -> Tensor:
        losses = compute_huber_loss(error) if self._loss.huber else error.square()
        return (importance * losses).mean()

    def advance(self, clock: int) -> None:
        """Advance RLlib's learning rate schedule to ``clock`` environment steps."""
        optimizer = self.optimizer.optimizer
        schedule = self.learner._optimizer_lr_schedules.get(optimizer)
        if schedule is not None and schedule.use_schedule:
            self.lr = float(schedule.update(timestep=clock))
            self.learner._set_optimizer_lr(optimizer, lr=self.lr)

    def statistics(self) -> dict[str, float]:
        """Return RLlib's learner statistics of the last update; empty before the first."""
        if self._last is None:
            return {}
        selected, error, importance = map(torch.as_tensor, self._last[:3])
        tensors = {
            "qf_loss": self._compute_loss(error, importance),
            "qf_mean": selected.mean(),
            "qf_max": selected.max(),
            "qf_min": selected.min(),
            "td_error_mean": error.abs().mean(),
        }
        tensors["total_loss"] = tensors["qf_loss"]
        if self.config.grad_clip and self.config.grad_clip_by == "global_norm":
            tensors["gradients_default_optimizer_global_norm"] = torch.as_tensor(self._last[3])
        numbers = torch.stack(list(tensors.values())).tolist()
        return {**dict(zip(tensors, numbers, strict=True)), "default_optimizer_learning_rate": self.lr}

    def state(self) -> dict[str, Any]:
        """DQN's update has no state beyond RLlib's checkpoint, so this is empty."""
        return {}

    def load(self, state: dict[str, Any]) -> None:
        """There is no state to restore."""


class FastDQN(OffPolicy, DQN):
    """RLlib's DQN with the fast engine's hot loop."""

    stock_class = DQN
    kernels = "dqn"
    precisions = (FLOAT32, BFLOAT16)
    runner_class = GreedyRunner

    def make_update(self) -> DQNUpdate:
        """Build the gradient update on the learner's module."""
        return DQNUpdate(self.learner, self.config, self.row_layout, self.precision)
