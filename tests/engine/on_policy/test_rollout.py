"""Rollouts against what the environments did, written out by hand."""

from __future__ import annotations

import numpy as np

from rltune.engine.sampling.observation_filter import RunningMoments
from rltune.engine.sampling.vector_envs import SyncEnvs
from tests.engine.engine_toy import CountEnv, make_collector


def test_a_step_after_an_episodes_end_resets_and_is_not_counted() -> None:
    rollout = make_collector(SyncEnvs(lambda i: CountEnv(length=2), 1)).collect(4)
    # obs: start, 1, 2 (last one of the episode), start of the next, 1, 2
    np.testing.assert_array_equal(rollout.obs[:, 0, 1], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(rollout.valid[:, 0], [True, True, False, True, True])
    np.testing.assert_array_equal(rollout.rewards[:, 0], [1, 2, 0, 1, 2])
    assert rollout.num_steps == 4
    assert rollout.episodes == [(3.0, 2), (3.0, 2)]


def test_an_episode_runs_on_through_the_next_rollout() -> None:
    source = make_collector(SyncEnvs(lambda i: CountEnv(length=5), 1))
    assert source.collect(3).episodes == []
    second = source.collect(4)
    np.testing.assert_array_equal(second.obs[:, 0, 1], [3, 4, 5, 0, 1, 2])
    assert second.episodes == [(15.0, 5)]


def test_a_policy_sees_normalised_observations() -> None:
    envs = SyncEnvs(lambda i: CountEnv(length=50), 4)
    rollout = make_collector(envs, RunningMoments((2,), 4)).collect(2000)
    steps = rollout.obs[200:, :, 1]
    assert abs(steps.mean()) < 0.3
    assert 0.7 < steps.std() < 1.3
