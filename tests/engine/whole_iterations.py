"""Iterations of the engine, each of which RLlib's own learner repeats on the same episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rltune.engine import build_algorithm
from rltune.engine.on_policy.rollout import Rollout


def episodes_of(rollout: Rollout, runner: Any) -> list[SingleAgentEpisode]:
    """Chunks in the order of RLlib's env runner: ended episodes by time, then the running ones.

    Args:
        rollout: Collected by ``runner``.
        runner: An env runner of the engine, for spaces and distribution.
    """
    done, running = [], []
    logp = log_probabilities(rollout, runner.module)
    steps, envs = rollout.valid.shape
    for env in range(envs):
        start = 0 if rollout.valid[0, env] else 1
        for step in range(steps):
            over = rollout.terminated[step, env] or rollout.truncated[step, env]
            if step < start or not (over or step == steps - 1):
                continue
            span = slice(start, step + 1)
            episode = SingleAgentEpisode(
                observations=list(rollout.obs[start : step + 2, env]),
                actions=list(rollout.actions[span, env]),
                rewards=[float(x) for x in rollout.rewards[span, env]],
                terminated=bool(rollout.terminated[step, env]),
                truncated=bool(rollout.truncated[step, env]),
                extra_model_outputs={
                    "action_dist_inputs": list(rollout.dist[span, env]),
                    "action_logp": list(logp[span, env]),
                },
                observation_space=runner.env.single_observation_space,
                action_space=runner.env.single_action_space,
                len_lookback_buffer=0,
            )
            (done if over else running).append((step if over else 0, env, episode.to_numpy()))
            start = step + 2
    return [episode for _, _, episode in sorted(done, key=lambda x: x[:2]) + running]


def log_probabilities(rollout: Rollout, module: Any) -> np.ndarray:
    """Of the actions [T, N], by RLlib's distribution, as its env runner stores them."""
    distribution = module.get_exploration_action_dist_cls()
    dist, actions = torch.from_numpy(rollout.dist), torch.from_numpy(rollout.actions)
    return distribution.from_logits(dist).logp(actions).numpy()


class Iterations:
    """Iterations of the engine, each of which RLlib's own learner repeats on the same episodes.

    Args:
        config: The algorithm's.
        monkeypatch: For the numbers that both draw.
    """

    def __init__(self, config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.config = config
        self.algorithm: Any = build_algorithm(config)
        self.runner = self.algorithm.env_runner_group.local_env_runner
        self.stock = config.build_learner(spaces=self.algorithm.spaces)
        self.stock.module.set_state(self.algorithm.learner.module.get_state())
        self.steps = {"engine": 0, "RLlib": 0}
        self.orders: list[np.ndarray] = []
        self.rollouts: list[Any] = []
        self._watch(monkeypatch)

    def _watch(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Count gradient steps, keep the rollouts, and let RLlib draw the permutations that the engine drew."""
        loop, collect = self.algorithm.loop, self.algorithm.collect_rollouts
        order_rows, update, draw = loop._order_rows, self.stock._update, loop._permutation

        def our_order(*args: Any) -> Any:
            order, sizes = order_rows(*args)
            self.steps["engine"] += len(sizes)
            return order, sizes

        def their_step(*args: Any, **kwargs: Any) -> Any:
            self.steps["RLlib"] += 1
            return update(*args, **kwargs)

        def permutation(rows: int) -> torch.Tensor:
            self.orders.append(draw(rows).numpy())
            return torch.from_numpy(self.orders[-1])

        def collect_rollouts(steps: int) -> Any:
            self.rollouts = collect(steps)
            return self.rollouts

        monkeypatch.setattr(loop, "_order_rows", our_order)
        monkeypatch.setattr(self.stock, "_update", their_step)
        monkeypatch.setattr(loop, "_permutation", permutation)
        monkeypatch.setattr(self.algorithm, "collect_rollouts", collect_rollouts)
        monkeypatch.setattr(np.random, "permutation", self._their_permutation)
        self._last = np.zeros(0)

    def _their_permutation(self, rows: int) -> np.ndarray:
        # RLlib shuffles what is shuffled already; it also shuffles once more after the last epoch.
        wanted = self.orders.pop(0) if self.orders else np.arange(rows)
        before = self._last if len(self._last) == rows else np.arange(rows)
        self._last = wanted
        return np.argsort(before)[wanted]

    def run(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One iteration of both; all weights, the engine's and RLlib's."""
        self.algorithm.train()
        self._last = np.zeros(0)
        config = self.config
        self.stock.update(
            episodes=episodes_of(self.rollouts[0], self.runner),
            timesteps={"num_env_steps_sampled_lifetime": self.algorithm.counters["num_env_steps_sampled_lifetime"]},
            num_epochs=config.num_epochs,
            minibatch_size=config.minibatch_size,
            shuffle_batch_per_epoch=config.shuffle_batch_per_epoch,
        )
        self.orders.clear()
        ours, theirs = (
            torch.cat([value.detach().flatten() for value in x.module["default_policy"].parameters()])
            for x in (self.algorithm.learner, self.stock)
        )
        return ours, theirs


def compare_iterations(config: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Assert as many gradient steps as RLlib's, over the same rows, to the same weights."""
    both = Iterations(config, monkeypatch)
    for _ in range(3):  # a later rollout begins inside episodes
        ours, theirs = both.run()
        assert both.steps["engine"] == both.steps["RLlib"] > 0
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)
    both.algorithm.stop()
