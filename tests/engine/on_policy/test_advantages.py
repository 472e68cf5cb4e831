"""Advantages, and the batch made with them, are those of RLlib's learner connectors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from ray.tune import register_env

from rltune.engine import build_algorithm
from rltune.engine.on_policy.advantages import compute_advantages
from rltune.engine.on_policy.rollout import Rollout
from rltune.engine.sampling.vector_envs import SyncEnvs
from tests.engine.engine_toy import CountEnv, make_collector, make_count_env, ppo_config
from tests.engine.whole_iterations import episodes_of

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("envs", [1, 3, 16])
@pytest.mark.parametrize("truncate", [False, True])
def test_advantages_equal_rllibs_on_each_episode(envs: int, truncate: bool) -> None:
    rollout = make_collector(SyncEnvs(lambda i: CountEnv(length=3 + i % 4, truncate=truncate), envs)).collect(40 * envs)
    values = RNG.normal(size=rollout.obs.shape[:2]).astype(np.float32)
    advantages = compute_advantages(rollout, values, 0.9, 0.7)
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
            np.testing.assert_allclose(advantages[span, env] + values[span, env], targets, atol=1e-4)


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


@pytest.mark.parametrize("truncate", [False, True])
def test_standardised_advantages_and_targets_equal_rllibs(truncate: bool) -> None:
    register_env("count", make_count_env)
    config = ppo_config("count", envs=3).environment(env_config={"length": 7, "truncate": truncate})
    algorithm: Any = build_algorithm(config)
    runner = algorithm.env_runner_group.local_env_runner
    # Two rollouts in one batch, as two env runners give them; the second begins inside episodes.
    rollouts = [copy.deepcopy(algorithm.collect_rollouts(50)[0]) for _ in range(2)]
    batch = algorithm.learner._learner_connector(
        rl_module=algorithm.learner.module,
        batch={},
        episodes=[episode for rollout in rollouts for episode in episodes_of(rollout, runner)],
        shared_data={},
    )["default_policy"]
    kept = batch["loss_mask"]
    with torch.no_grad():
        ours = algorithm.loop.prepare(rollouts)
    ours.standardise()
    assert torch.equal(ours.loss_mask, kept)
    np.testing.assert_array_equal(ours.rows.obs, batch["obs"][kept])
    for column, expected in ((ours.rows.advantages, "advantages"), (ours.rows.targets, "value_targets")):
        np.testing.assert_allclose(column, batch[expected][kept].detach(), atol=1e-5)
    algorithm.stop()
