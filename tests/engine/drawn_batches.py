"""Hundreds of drawn weights, settings and batches for RLlib's learner and the engine's, which cross every edge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from rltune.engine.on_policy.ppo import PPOUpdate, TrainBatch
from rltune.engine.on_policy.ppo_loss import gaussian_logp
from tests.engine.ppo_learner import INPUTS, our_batch

DRAWS = 125
"""For each of four networks: 500 in all."""
STEPS = 48
MODULE = "default_policy"
LOG_STD_LIMIT = 1.0
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "discrete": ("discrete", {}),
    "discrete, shared": ("discrete", {"vf_share_layers": True, "fcnet_activation": "relu"}),
    "continuous": ("continuous", {"log_std_clip_param": LOG_STD_LIMIT}),
    "continuous, free": ("continuous", {"free_log_std": True, "log_std_clip_param": LOG_STD_LIMIT}),
}
"""Space and network of each pair of learners."""
ALWAYS_CROSSED = {f"gradient {how} by {by}" for how in ("clipped", "free") for by in ("value", "norm", "global_norm")}
LOG_STD_CROSSED = {"log std at its upper limit", "log std at its lower limit"}
LOSS_CROSSED = {
    "ratio above, advantage positive", "ratio above, advantage negative", "ratio below, advantage positive",
    "ratio below, advantage negative", "value clipped", "value free", "KL coefficient -1", "KL coefficient +0",
    "KL coefficient +1",
}  # fmt: skip
"""Edges that every run of draws must have crossed, several times."""


def between(rng: np.random.Generator, low: float, high: float) -> float:
    """A positive number of any size between these."""
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def one_of(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


def draw_clipping(rng: np.random.Generator) -> dict[str, Any]:
    by = one_of(rng, None, "value", "norm", "global_norm")
    low, high = (1e-3, 1.0) if by == "value" else (1e-2, 10.0)
    return {"grad_clip": between(rng, low, high), "grad_clip_by": by} if by else {"grad_clip": None}


def draw_schedule(rng: np.random.Generator, low: float, high: float) -> Any:
    """A constant, or a line that the timesteps of `LearnerPair` are on."""
    first = between(rng, low, high)
    return one_of(rng, first, [[0, first], [1000, between(rng, low, high)]])


class LearnerPair:
    """RLlib's learner and the engine's, built once and restarted for each draw.

    Args:
        space: Of the actions.
        make_config: From training settings to the algorithm's config.
    """

    def __init__(self, space: str, make_config: Callable[..., Any]) -> None:
        self.space, self.make_config = space, make_config
        self.theirs, self.ours = (make_config().build_learner() for _ in range(2))
        self.crossed: Counter[str] = Counter()

    def restart(self, rng: np.random.Generator, settings: dict[str, Any]) -> None:
        """Draw weights, and let RLlib's learners read these settings as when they are built."""
        self.config = self.make_config(**settings)
        for learner in (self.theirs, self.ours):
            learner.config = self.config
            learner.entropy_coeff_schedulers_per_module.clear()
            learner.curr_kl_coeffs_per_module.clear()
            for known in (learner._named_optimizers, learner._module_optimizers, learner._optimizer_parameters):
                known.clear()
            learner.configure_optimizers_for_module(MODULE, config=self.config)
        modules = [learner.module[MODULE] for learner in (self.theirs, self.ours)]
        for (name, theirs), ours in zip(modules[0].named_parameters(), modules[1].parameters(), strict=True):
            # The log standard deviation, free or of the head, lies beyond both of its limits now and then.
            scale = 1.2 if "log_std" in name else 0.5
            theirs.data = torch.from_numpy(rng.normal(scale=scale, size=theirs.shape).astype(np.float32))
            ours.data = theirs.data.clone()
        self.update_of_ours = PPOUpdate(self.ours, self.config, 0)

    def draw_columns(self, rng: np.random.Generator, steps: int) -> dict[str, torch.Tensor]:
        """Steps of a policy near the present one."""

        def normal(*shape: int) -> torch.Tensor:
            return torch.from_numpy(rng.normal(size=shape).astype(np.float32))

        obs = normal(steps, INPUTS)
        dist, values = self.network_outputs(obs)
        old = dist + between(rng, 0.01, 0.5) * normal(*dist.shape)
        if self.space == "discrete":
            actions = torch.distributions.Categorical(logits=old).sample()
            logp = torch.log_softmax(old, 1).gather(1, actions[:, None]).squeeze(1)
        else:
            actions = old[:, :2] + normal(steps, 2) * old[:, 2:].exp()
            logp = gaussian_logp(old, actions)
        return {
            "obs": obs,
            "actions": actions,
            "action_dist_inputs": old,
            "action_logp": logp,
            "advantages": normal(steps) * between(rng, 0.1, 3.0),
            "value_targets": values + normal(steps) * between(rng, 0.1, 10.0),
        }

    def network_outputs(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        module = self.theirs.module[MODULE]
        with torch.no_grad():
            out = module._forward_train({"obs": obs})
            return out["action_dist_inputs"], module.compute_values({"obs": obs}, embeddings=out.get("embeddings"))

    def update(self, rng: np.random.Generator, artificial: int) -> dict[str, tuple[float, float]]:
        """Update both on one drawn batch; what must be equal, by name: ours and RLlib's."""
        columns = self.draw_columns(rng, STEPS + artificial)
        mask = torch.ones(STEPS + artificial, dtype=torch.bool)
        mask[torch.from_numpy(rng.choice(STEPS, artificial, replace=False))] = False
        kept = {name: column[mask] for name, column in columns.items()}
        self._count_crossings(kept)
        config, timestep = self.config, int(rng.integers(1000))
        before = self.update_of_ours.kl_coeff
        stats = self.theirs.update(
            batch=MultiAgentBatch({MODULE: SampleBatch(columns | {"loss_mask": mask})}, env_steps=STEPS + artificial),
            timesteps={"num_env_steps_sampled_lifetime": timestep},
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            shuffle_batch_per_epoch=False,
        )[MODULE]
        with torch.no_grad():
            batch = TrainBatch(our_batch(self.space, kept), torch.zeros(0), mask)
            statistics = self.update_of_ours.update(batch, timestep)
        if config.use_kl_loss:
            self.crossed[f"KL coefficient {np.sign(self.update_of_ours.kl_coeff - before):+.0f}"] += 1
        self._count_clipping()
        if artificial:
            del statistics["vf_explained_var"]  # RLlib's counts the artificial steps
        return {name: (value, float(stats[name].peek())) for name, value in statistics.items()}

    def largest_difference(self) -> float:
        """Between a weight of ours and RLlib's."""
        optimizer = self.theirs.get_optimizer(MODULE)
        params = list(zip(self.ours.module[MODULE].parameters(), optimizer.param_groups[0]["params"], strict=True))
        differences = []
        for ours, theirs in params:
            difference = (ours - theirs).detach().abs()
            square = optimizer.state[theirs].get("exp_avg_sq")
            if square is not None:
                # Adam divides the gradient by its size + 1e-8: of one below 1e-6, such as that of a relu nearly dead,
                # it makes a step out of what float32 rounds off.
                difference[(square > 0) & (square < 1e-15)] = 0.0
            differences.append(difference.max())
        return float(torch.stack(differences).max())

    def compare(self, draw: int, settings: dict[str, Any], updates: int = 1) -> None:
        """Restart both, update both, and assert that loss, statistics and weights are equal to 1e-5."""
        rng = np.random.default_rng(draw)
        self.restart(rng, settings)
        for _ in range(updates):
            for name, (ours, expected) in self.update(rng, artificial=int(rng.integers(5))).items():
                assert ours == pytest.approx(expected, abs=1e-5, rel=1e-5), f"draw {draw}: {name}"
            assert self.largest_difference() < 1e-5, f"draw {draw}: weights"

    def assert_crossed(self, edges: set[str]) -> None:
        """Assert that at least three batches lay beyond each edge."""
        if self.space == "continuous":
            edges = edges | LOG_STD_CROSSED
        assert not {edge: self.crossed[edge] for edge in edges if self.crossed[edge] < 3}

    def _count_crossings(self, columns: dict[str, torch.Tensor]) -> None:
        """Count the batches with a row beyond each of the loss's limits, at the first gradient step."""
        dist, values = self.network_outputs(columns["obs"])
        if self.space == "discrete":
            logp = torch.log_softmax(dist, 1).gather(1, columns["actions"][:, None]).squeeze(1)
        else:
            logp = gaussian_logp(dist, columns["actions"])
            self.crossed["log std at its upper limit"] += bool((dist[:, 2:] == LOG_STD_LIMIT).any())
            self.crossed["log std at its lower limit"] += bool((dist[:, 2:] == -LOG_STD_LIMIT).any())
        change, gain = torch.exp(logp - columns["action_logp"]) - 1.0, columns["advantages"] > 0
        limit = self.config.clip_param
        for name, rows in {
            "ratio above, advantage positive": (change > limit) & gain,
            "ratio above, advantage negative": (change > limit) & ~gain,
            "ratio below, advantage positive": (change < -limit) & gain,
            "ratio below, advantage negative": (change < -limit) & ~gain,
            "value clipped": (values - columns["value_targets"]).square() > self.config.vf_clip_param,
            "value free": (values - columns["value_targets"]).square() < self.config.vf_clip_param,
        }.items():
            self.crossed[name] += bool(rows.any())

    def _count_clipping(self) -> None:
        """Count the batches whose last gradient was clipped, and whose was not."""
        by, flat = self.config.grad_clip_by, self.update_of_ours.flat
        if self.config.grad_clip is None:
            return
        sizes = {
            "value": lambda: flat.grad.abs().max(),
            "norm": lambda: torch.stack([grad.norm() for grad in flat.grads]).max(),
            "global_norm": lambda: flat.grad.norm(),
        }
        clipped = abs(float(sizes[by]()) / self.config.grad_clip - 1.0) < 1e-4
        self.crossed[f"gradient {'clipped' if clipped else 'free'} by {by}"] += 1
