"""Train RLlib's PPO on an array hot loop; configuration, module, loss and checkpoints are RLlib's."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.core import DEFAULT_MODULE_ID
from torch import Tensor

from rltune.engine.algorithm import FastAlgorithm
from rltune.engine.kernels.ppo import update
from rltune.engine.kernels.steps import BY_GLOBAL_NORM
from rltune.engine.networks.actor_critic import CompiledActorCritic, make_actor_critic
from rltune.engine.networks.flat_parameters import FlatParameters
from rltune.engine.networks.mixed_precision import BFLOAT16, FLOAT32, in_precision
from rltune.engine.networks.optimizers import clip_gradients, compile_step, make_flat_optimizer
from rltune.engine.on_policy.advantages import compute_advantages, compute_artificial_advantages
from rltune.engine.on_policy.chunks import find_chunks
from rltune.engine.on_policy.ppo_loss import (
    ActionDistribution,
    PPOBatch,
    PPOCoefficients,
    loss_statistics,
)
from rltune.engine.on_policy.rollout import Rollout
from rltune.engine.sampling.action_distributions import count_parts
from rltune.engine.sampling.remote import collect_remotely

Array = NDArray[Any]
NORM = "gradients_default_optimizer_global_norm"
"""RLlib's name of the gradient's norm, which it reports if it clips by that."""


@dataclass
class TrainBatch:
    """The training data of one iteration.

    Attributes:
        rows: The steps, in the order in which RLlib's learner has them (`Chunks`).
        artificial: Advantages of RLlib's artificial steps [chunks].
        loss_mask: [steps + artificial steps] on the CPU; False where an artificial step lies between the steps.
    """

    rows: PPOBatch
    artificial: Tensor
    loss_mask: Tensor

    def standardise(self) -> None:
        """Standardise the advantages exactly as RLlib does, including its artificial steps in mean and deviation."""
        std, mean = torch.std_mean(torch.cat([self.rows.advantages, self.artificial]), correction=0)
        self.rows.advantages.sub_(mean).div_(std.clamp_(min=1e-4))


class PPOUpdate:
    """PPO's gradient updates on minibatches, with all parameters in a flat tensor.

    Args:
        learner: RLlib's, already built; it stays the owner of module, optimizer, schedules and KL coefficient.
        seed: The seed of the shuffling; None for a random one.
        precision: The precision of the network's products, ``float32`` or ``bfloat16``.
    """

    def __init__(self, learner: Any, config: Any, seed: int | None, precision: str = FLOAT32) -> None:
        self.learner, self.config = learner, config
        module = learner.module[DEFAULT_MODULE_ID].unwrapped()
        optimizer = learner.get_optimizer(DEFAULT_MODULE_ID)
        self.flat = FlatParameters(optimizer.param_groups[0]["params"])
        self.optimizer = make_flat_optimizer(self.flat, optimizer)
        plain = precision == FLOAT32 and not config.torch_compile_learner
        network = make_actor_critic(module, self.flat.data, compiled=plain)
        self.network: Any = in_precision(network, precision, self.flat.data.device)
        self.generator = torch.Generator()
        if seed is not None:
            self.generator.manual_seed(seed)
        else:
            self.generator.seed()
        self.distribution = ActionDistribution(*count_parts(module.action_space), self.flat.data.device)
        self._parameters: Any = self.optimizer.describe(config)
        self._step = compile_step(self._minibatch, [self.optimizer], config)

    @property
    def kl_coeff(self) -> float:
        """The current KL coefficient, which the learner adapts."""
        return float(self.learner.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID])

    @kl_coeff.setter
    def kl_coeff(self, value: float) -> None:
        self.learner.curr_kl_coeffs_per_module[DEFAULT_MODULE_ID].data.fill_(value)

    @property
    def lr(self) -> float:
        """The current learning rate of RLlib's schedule."""
        return float(self.optimizer.optimizer.param_groups[0]["lr"])

    def coefficients(self) -> PPOCoefficients:
        """Return the coefficients of the loss with their current values."""
        schedule = self.learner.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID]
        c = self.config
        return PPOCoefficients(
            float(c.clip_param),
            float(c.vf_clip_param if c.vf_clip_param is not None else math.inf),
            float(c.vf_loss_coeff),
            float(schedule.get_current_value()),
            self.kl_coeff,
            bool(c.use_kl_loss),
            bool(c.use_critic),
        )

    def prepare(self, rollouts: list[Rollout]) -> TrainBatch:
        """Convert rollouts to training data; the advantages are not standardised yet."""
        # Values are computed for all rollouts before any gradient step, because each step changes the value network.
        parts = [self._prepare_one(rollout) for rollout in rollouts]
        rows, first_returns, last_values, masks = zip(*parts, strict=True)
        artificial = compute_artificial_advantages(
            np.concatenate(first_returns), np.concatenate(last_values), self.config.gamma
        )
        return TrainBatch(
            PPOBatch.concat(list(rows)), self._to_device(artificial), torch.from_numpy(np.concatenate(masks))
        )

    def _prepare_one(self, rollout: Rollout) -> tuple[PPOBatch, Array, Array, Array]:
        """Return the training rows of one rollout, and what RLlib's artificial steps need of its chunks."""
        gamma, lambda_ = self.config.gamma, self.config.lambda_
        obs = self._to_device(rollout.obs)
        # All values are computed in one pass over T + 1 rows, as in RLlib; during sampling it would take T small
        # passes.
        values = self.network.values(obs.flatten(0, 1)).view(obs.shape[:2]).cpu().numpy()
        advantages = compute_advantages(rollout, values, gamma, lambda_)
        targets = advantages + values[:-1]
        dist, actions = self._to_device(rollout.dist).flatten(0, 1), self._to_device(rollout.actions).flatten(0, 1)
        # Log probabilities are computed for the whole rollout at once, because that is faster than at each sampling
        # step.
        actions, dist, logp = self.distribution.sampled(dist, actions)
        gains, wanted = self._to_device(advantages).flatten(), self._to_device(targets).flatten()
        steps = PPOBatch(obs[:-1].flatten(0, 1), actions, dist, logp, gains, wanted)
        chunks = find_chunks(rollout)
        first = chunks.first, chunks.env
        return (
            steps.take(self._to_device(chunks.order_steps(obs.shape[1]))),
            values[first] + lambda_ * advantages[first],
            values[chunks.last + 1, chunks.env],
            chunks.loss_mask(),
        )

    def _to_device(self, array: Any) -> Tensor:
        array = np.ascontiguousarray(array)
        # Arrays from Ray's object store are read-only, about which torch.from_numpy warns.
        if not array.flags.writeable:
            array = array.copy()
        return torch.from_numpy(array).to(self.flat.data.device, non_blocking=True)

    def update(self, batch: TrainBatch, timestep: int) -> dict[str, float]:
        """Train on a batch for the configured number of epochs, then advance RLlib's schedules.

        Args:
            batch: Advantages as the loss takes them (already standardised).
            timestep: Environment steps sampled so far, the schedules' clock.

        Returns:
            RLlib's learner statistics, of the last minibatch as in RLlib; the explained variance without its artificial
            steps.
        """
        order, sizes = self._order_rows(batch)
        learn = self._learn_compiled if isinstance(self.network, CompiledActorCritic) else self._learn_with_autograd
        stats = learn(batch.rows, order, sizes, self.coefficients())
        # All statistics are read at once, because on a GPU each separate read would wait for the device.
        values = torch.stack([value.float() for value in stats.values()]).tolist()
        numbers = dict(zip(stats, values, strict=True))
        self.learner._weights_seq_no += 1
        return {**numbers, **self._advance(numbers["mean_kl_loss"], timestep)}

    def _learn_compiled(self, rows: PPOBatch, order: Tensor, sizes: Tensor, c: PPOCoefficients) -> dict[str, Tensor]:
        """Take one gradient step per minibatch with kernels; return the statistics of the last minibatch."""
        dist, values, norm = update(
            self._parameters,
            self.network.network,
            PPOBatch(*(column.numpy() for column in rows)),
            order.numpy(),
            sizes.numpy(),
            c,
            self.lr,
        )
        last = rows.take(order[len(order) - len(values) :])
        outputs = self.distribution.statistics(torch.from_numpy(dist), last), torch.from_numpy(values)
        stats = loss_statistics(*outputs, last, c)
        return stats | ({NORM: torch.tensor(norm)} if self._parameters.clip_by == BY_GLOBAL_NORM else {})

    def _learn_with_autograd(
        self, rows: PPOBatch, order: Tensor, sizes: Tensor, c: PPOCoefficients
    ) -> dict[str, Tensor]:
        """Take one gradient step per minibatch with torch; return the statistics of the last minibatch."""
        order, lr, stats = order.to(rows.obs.device), self.lr, {}
        # Rows are gathered for about one epoch at a time and then split into views, because gathering each minibatch
        # separately would take many more calls.
        start, count = 0, max(1, rows.num_rows // int(sizes.max()))
        for part in torch.split(sizes, count):
            mixed = rows.take(order[start : start + int(part.sum())])
            start += mixed.num_rows
            for minibatch in mixed.split(part.tolist()):
                stats = self._step(minibatch, c, lr)
        return stats

    def _order_rows(self, batch: TrainBatch) -> tuple[Tensor, Tensor]:
        """Return the concatenated row indices of all minibatches, and the size of each minibatch.

        They are those of RLlib's ``MiniBatchCyclicIterator``, without the steps that its loss masks. RLlib lays the
        epochs end to end, cuts minibatches of equal size, and completes the last one from one more epoch. The first
        epoch keeps the steps' order; the others are shuffled.
        """
        config, places = self.config, len(batch.loss_mask)
        size = min(config.minibatch_size or places, places)
        if size == places:
            rows = torch.arange(batch.rows.num_rows)
            return rows.repeat(config.num_epochs), torch.full([config.num_epochs], len(rows))
        count = math.ceil(config.num_epochs * places / size)
        order = self._order_epochs(places, math.ceil(count * size / places))[: count * size]
        counted = batch.loss_mask[order]
        row_of_place = batch.loss_mask.cumsum(0) - 1
        sizes = counted.view(count, size).sum(1)
        # RLlib's artificial steps are masked, so a minibatch of nothing else has no loss and is left out.
        return row_of_place[order[counted]], sizes[sizes > 0]

    def _order_epochs(self, places: int, epochs: int) -> Tensor:
        """Return the concatenated orders of the batch's steps in all epochs."""
        if not (self.config.shuffle_batch_per_epoch and self.config.num_epochs > 1):
            return torch.arange(places).repeat(epochs)
        return torch.cat([torch.arange(places), *(self._permutation(places) for _ in range(epochs - 1))])

    def _permutation(self, rows: int) -> Tensor:
        return torch.randperm(rows, generator=self.generator)

    def _minibatch(self, batch: PPOBatch, c: PPOCoefficients, lr: float) -> dict[str, Tensor]:
        with torch.enable_grad():
            dist, values = self.network.forward(batch.obs)
            stats = loss_statistics(self.distribution.statistics(dist, batch), values, batch, c)
        self.flat.attach_grads()
        torch.autograd.backward([stats["total_loss"]])
        norm = clip_gradients(self.flat, self.config.grad_clip, self.config.grad_clip_by)
        self.optimizer.step(lr)
        return stats | ({} if norm is None else {NORM: norm})

    def _advance(self, kl: float, timestep: int) -> dict[str, float]:
        """Advance RLlib's schedules and its adaptive KL coefficient, and return their new values."""
        learner, config = self.learner, self.config
        optimizer = self.optimizer.optimizer
        schedule = learner._optimizer_lr_schedules.get(optimizer)
        if schedule is not None:
            learner._set_optimizer_lr(optimizer, lr=schedule.update(timestep=timestep))
        entropy = learner.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID].update(timestep=timestep)
        stats = {"curr_entropy_coeff": float(entropy), "default_optimizer_learning_rate": self.lr}
        if config.use_kl_loss:  # This is what RLlib's PPOTorchLearner._update_module_kl_coeff does.
            if kl > 2.0 * config.kl_target:
                self.kl_coeff *= 1.5
            elif kl < 0.5 * config.kl_target:
                self.kl_coeff *= 0.5
            stats["curr_kl_coeff"] = self.kl_coeff
        return stats


class FastPPO(FastAlgorithm, PPO):
    """RLlib's PPO with the fast engine's hot loop."""

    stock_class = PPO
    kernels = "ppo"
    precisions = (FLOAT32, BFLOAT16)
    standardise_advantages = True

    def build_loop(self) -> None:
        """Build the gradient update on the learner's module."""
        self.loop = PPOUpdate(self.learner, self.config, self.config.seed, self.precision)

    def training_step(self) -> None:
        """Sample a batch, train on it, and give the new weights to the env runners."""
        start = time.perf_counter()
        rollouts = self.collect_rollouts(self.config.total_train_batch_size)
        with torch.no_grad():
            batch = self.loop.prepare(rollouts)
            sampled = time.perf_counter()
            if self.standardise_advantages:
                batch.standardise()
            for rollout in rollouts:
                self.count(rollout.num_steps, rollout.episodes)
            self.learner_stats = self.loop.update(batch, self.counters["num_env_steps_sampled_lifetime"])
        self.check_finite(self.learner_stats, self.loop.flat.data)
        if self.device.type != "cpu":
            self.publish_weights()
        self.timers_s["env_runner_sampling_timer"] += sampled - start
        self.timers_s["learner_update_timer"] += time.perf_counter() - sampled

    def collect_rollouts(self, steps: int) -> list[Rollout]:
        """Sample at least ``steps`` environment steps with the current policy; returns one rollout per env runner."""
        if self.config.num_env_runners == 0:
            return [self.env_runner_group.local_env_runner.collect(steps)]
        return collect_remotely(self, steps)

    def engine_state(self) -> dict[str, Any]:
        """Return counters, KL coefficient (which RLlib's checkpoints lack) and the state of the shuffling generator."""
        return {
            **super().engine_state(),
            "kl_coeff": self.loop.kl_coeff,
            "shuffle": self.loop.generator.get_state().numpy(),
        }

    def load_engine_state(self, state: dict[str, Any]) -> None:
        """Restore the state that :meth:`engine_state` returned."""
        super().load_engine_state(state)
        # RLlib's checkpoints do not contain its schedules, so that of the entropy coefficient is advanced to the
        # present step, as those of the learning rates are in `_set_rates`.
        schedule = self.learner.entropy_coeff_schedulers_per_module[DEFAULT_MODULE_ID]
        schedule.update(timestep=self.counters["num_env_steps_sampled_lifetime"])
        self.loop.kl_coeff = state["kl_coeff"]
        self.loop.generator.set_state(torch.from_numpy(state["shuffle"]))
