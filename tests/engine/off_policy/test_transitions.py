"""Rows of the replay memory against the steps that they are made of."""

from __future__ import annotations

import numpy as np
import pytest
from engine_toy import CountEnv

from rltune.engine.off_policy.transitions import RowLayout, Stepper, TransitionPacker
from rltune.engine.sampling.action_distributions import (
    CategoricalActions,
)
from rltune.engine.sampling.vector_envs import SyncEnvs


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("envs", [1, 2])
def test_transitions_are_full_windows_inside_one_episode(n_step: int, truncate: bool, envs: int) -> None:
    length, gamma = 5, 0.5
    vector = SyncEnvs(lambda i: CountEnv(length=length, truncate=truncate), envs)
    actions = CategoricalActions(vector.single_action_space, envs, np.random.default_rng(0))
    layout = RowLayout((2,), 1)
    stepper = Stepper(
        vector,
        actions,
        lambda obs, clock: np.zeros(len(obs), np.int64),
        TransitionPacker(layout, envs, n_step, gamma),
        normaliser=None,
        seeds=None,
    )
    rows, taken, episodes = stepper.collect(20 * envs, 0)
    assert taken == 20 * envs
    assert episodes == [(15.0, 5)] * (4 * envs)
    obs, after, _, rewards, discounts = layout.views(rows)
    assert len(rows) == 4 * envs * (length - n_step + 1)
    np.testing.assert_array_equal(after[:, 0], obs[:, 0])  # one episode
    np.testing.assert_array_equal(after[:, 1], obs[:, 1] + n_step)
    np.testing.assert_allclose(rewards, sum(gamma**k * (obs[:, 1] + 1 + k) for k in range(n_step)))
    ends = after[:, 1] == length
    np.testing.assert_allclose(discounts[~ends], gamma**n_step)
    np.testing.assert_allclose(discounts[ends], gamma**n_step if truncate else 0.0)
