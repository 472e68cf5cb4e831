"""Rows of the replay memory against the steps that they are made of."""

from __future__ import annotations

import numpy as np
import pytest

from rltune.engine.off_policy.transitions import RowLayout, Stepper, TransitionPacker
from rltune.engine.sampling.action_distributions import make_actions
from rltune.engine.sampling.vector_envs import SyncEnvs
from rltune.envs.build import make_training_env
from rltune.envs.episode import EpisodeRecord
from rltune.envs.spec import EnvSpec
from tests.engine.engine_toy import CountEnv


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("length", [2, 5])
@pytest.mark.parametrize("envs", [1, 2])
def test_every_step_begins_a_window_in_its_episode(n_step: int, truncate: bool, length: int, envs: int) -> None:
    """Windows are shortened at an episode's end, and only a termination is not bootstrapped from."""
    gamma, episodes = 0.5, 4
    vector = SyncEnvs(lambda i: CountEnv(length=length, truncate=truncate), envs)
    actions = make_actions(vector.single_action_space, envs, np.random.default_rng(0), None)
    layout = RowLayout((2,), 1)
    stepper = Stepper(
        vector,
        actions,
        lambda obs, clock: np.zeros(len(obs), np.int64),
        TransitionPacker(layout, envs, n_step, gamma),
        normaliser=None,
        seeds=None,
    )
    (rows, *_), taken, ended = stepper.collect(episodes * length * envs, 0)
    assert taken == episodes * length * envs
    total = sum(range(length + 1))
    assert ended == [EpisodeRecord(total, length, total)] * (episodes * envs)
    obs, after, _, rewards, discounts = layout.views(rows)
    begins = sorted(map(tuple, obs.tolist()))
    assert begins == sorted([(episode, step) for episode in range(episodes) for step in range(length)] * envs)
    np.testing.assert_array_equal(after[:, 0], obs[:, 0])  # one episode
    steps = np.minimum(n_step, length - obs[:, 1])
    np.testing.assert_array_equal(after[:, 1], obs[:, 1] + steps)
    returns = [
        sum(gamma**k * (begin + 1 + k) for k in range(int(n))) for begin, n in zip(obs[:, 1], steps, strict=True)
    ]
    np.testing.assert_allclose(rewards, returns)
    terminated = (after[:, 1] == length) & (not truncate)
    np.testing.assert_allclose(discounts, np.where(terminated, 0.0, gamma**steps))


def test_episodes_that_end_at_different_steps_keep_apart() -> None:
    layout, gamma = RowLayout((1,), 1), 0.5
    packer = TransitionPacker(layout, 2, 3, gamma)
    ends = np.array([[0, 0], [0, 1], [0, 0], [1, 0], [0, 1]], bool)  # the second environment resets at the third step
    windows: list[tuple[float, ...]] = []
    for t, over in enumerate(ends):
        obs, valid = np.array([[t], [10.0 + t]]), np.array([t != 4, t != 2])
        rows = packer.add(obs, np.zeros(2), np.ones(2), over & valid, over, valid, obs + 1)
        windows += [tuple(row[[0, 1, 3, 4]].tolist()) for row in rows]
    assert windows == [
        (10.0, 12.0, 1.5, 0.0), (11.0, 12.0, 1.0, 0.0),
        (0.0, 3.0, 1.75, 0.125),
        (1.0, 4.0, 1.75, 0.0), (2.0, 4.0, 1.5, 0.0), (3.0, 4.0, 1.0, 0.0),
        (13.0, 15.0, 1.5, 0.0), (14.0, 15.0, 1.0, 0.0),
    ]  # fmt: skip


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_failure_leaves_the_transitions_of_a_truncation(n_step: int, at: int) -> None:
    """The failed step is no transition; the windows before it end in the observation in which the copy failed."""

    def collect(**kwargs: int) -> tuple[list[list[float]], EpisodeRecord]:
        spec = EnvSpec("failing:Failing-v0", {"length": 5, **kwargs}, restarts=9)
        vector, layout = SyncEnvs(lambda index: make_training_env(spec), 1), RowLayout((2,), 1)
        actions = make_actions(vector.single_action_space, 1, np.random.default_rng(0), None)
        packer = TransitionPacker(layout, 1, n_step, 0.5)
        stepper = Stepper(
            vector, actions, lambda obs, clock: np.zeros(len(obs), np.int64), packer, normaliser=None, seeds=None
        )
        (rows, *_), taken, ended = stepper.collect(at + 1, 0)
        assert taken == at + 1
        return rows[:at].tolist(), ended[0]

    (failed, first), (truncated, second) = collect(fail_at=at + 1), collect(truncate_at=at)
    assert failed == truncated
    assert (first.cut, first.total, first.length) == (True, second.total, second.length)
