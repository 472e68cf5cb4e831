"""Advantages, and the batch made with them, are those of RLlib's learner connectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from engine_toy import CountEnv, make_collector, make_count_env, ppo_config
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from ray.tune import register_env

from rltune.engine import build_algorithm
from rltune.engine.on_policy.advantages import compute_advantages
from rltune.engine.on_policy.rollout import Rollout
from rltune.engine.sampling.vector_envs import SyncEnvs

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("envs", [1, 3, 16])
@pytest.mark.parametrize("truncate", [False, True])
def test_advantages_equal_rllibs_on_each_episode(envs: int, truncate: bool) -> None:
    rollout = make_collector(SyncEnvs(lambda i: CountEnv(length=3 + i % 4, truncate=truncate), envs)).collect(40 * envs)
    values = RNG.normal(size=rollout.obs.shape[:2]).astype(np.float32)
    found = compute_advantages(rollout, values, 0.9, 0.7)
    for env in range(envs):
        start, steps = 0, len(rollout.rewards)
        for step in range(steps):
            if not rollout.valid[step, env]:
                start = step + 1
                continue
            ended = bool(rollout.terminated[step, env] or rollout.truncated[step, env])
            if not ended and step < steps - 1:
                continue
            span = slice(start, step + 1)
            flags = np.zeros(step + 2 - start)
            terminated, cut = flags.copy(), flags.copy()
            terminated[-2] = rollout.terminated[step, env]
            cut[-2] = not rollout.terminated[step, env]  # truncated, or the rollout ends inside the episode
            targets = compute_value_targets(
                values[start : step + 2, env],
                np.append(rollout.rewards[span, env], 0.0),
                terminated,
                cut,
                0.9,
                0.7,
            )[:-1]
            np.testing.assert_allclose(found[span, env] + values[span, env], targets, atol=1e-4)


def test_a_truncation_is_bootstrapped_and_a_termination_not() -> None:
    """With the value of its last observation."""
    shape = (1, 1)
    values = np.array([[0.0], [10.0]], np.float32)

    def single(terminated: bool, truncated: bool) -> float:
        flags = (np.full(shape, terminated), np.full(shape, truncated))
        ones = np.ones(shape, np.float32)
        rollout = Rollout(np.zeros((2, 1, 1)), ones, ones, ones, *flags, np.ones(shape, np.bool_), [])
        return float(compute_advantages(rollout, values, 0.5, 1.0)[0, 0])

    assert single(True, False) == 1.0
    assert single(False, True) == 6.0


def episodes_of(rollout: Rollout) -> list[SingleAgentEpisode]:
    """Chunks in the order of RLlib's env runner: ended episodes by time, then the running ones."""
    space = CountEnv()
    done, running = [], []
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
                extra_model_outputs={"action_dist_inputs": list(rollout.dist[span, env])},
                observation_space=space.observation_space,
                action_space=space.action_space,
                len_lookback_buffer=0,
            )
            (done if over else running).append((step if over else 0, env, episode.to_numpy()))
            start = step + 2
    return [episode for _, _, episode in sorted(done, key=lambda x: x[:2]) + running]


@pytest.mark.parametrize("truncate", [False, True])
def test_standardised_advantages_and_targets_equal_rllibs(truncate: bool) -> None:
    register_env("count", make_count_env)
    config = ppo_config("count", envs=3).environment(env_config={"length": 7, "truncate": truncate})
    algorithm: Any = build_algorithm(config)
    for _ in range(2):  # the second rollout begins inside episodes
        rollout = algorithm.collect_rollouts(50)[0]
        batch = algorithm.learner._learner_connector(
            rl_module=algorithm.learner.module, batch={}, episodes=episodes_of(rollout), shared_data={}
        )["default_policy"]
        kept = batch["loss_mask"]
        with torch.no_grad():
            ours, artificial = algorithm.loop.prepare(rollout)
        everything = torch.cat([ours.advantages, artificial])
        standardised = (ours.advantages - everything.mean()) / everything.std(correction=0)
        order = np.lexsort(ours.obs.numpy().T)
        their_order = np.lexsort(batch["obs"][kept].numpy().T)
        for found, expected in ((standardised, "advantages"), (ours.targets, "value_targets")):
            np.testing.assert_allclose(found[order], batch[expected][kept][their_order].detach(), atol=1e-4)
    algorithm.stop()
