"""Env runners that hand back arrays, in the trial's process."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray.tune import register_env

from rltune.engine.features import UnsupportedError
from rltune.engine.sampling.env_runner import ArrayEnvRunner, LocalRunners, check_spaces
from rltune.engine.sampling.observation_filter import normalise_observations
from tests.engine.engine_toy import CountEnv, ppo_config


def make_runner(config: Any) -> ArrayEnvRunner:
    config.env_runner_cls = ArrayEnvRunner
    runner: ArrayEnvRunner = LocalRunners(config).local_env_runner
    return runner


@pytest.mark.parametrize(
    ("space", "name"),
    [
        (gym.spaces.Box(0, 255, (3,), np.uint8), "Box of uint8"),
        (gym.spaces.Discrete(4), "Discrete of int64"),
        (gym.spaces.Dict({"a": gym.spaces.Discrete(2)}), "observation space Dict$"),
    ],
)
def test_observations_that_arrays_do_not_serve_are_named(space: gym.Space[Any], name: str) -> None:
    with pytest.raises(UnsupportedError, match=name):
        check_spaces(space, gym.spaces.Discrete(2), ppo_config())


class RefusedEnv(CountEnv):
    """At module level: Ray's registry pickles closures by value."""

    closed = 0

    def __init__(self) -> None:
        super().__init__()
        self.action_space = gym.spaces.MultiBinary(2)  # type: ignore[assignment]

    def close(self) -> None:
        RefusedEnv.closed += 1


def test_environments_with_refused_spaces_are_closed() -> None:
    register_env("refused", lambda config: RefusedEnv())
    RefusedEnv.closed = 0
    with pytest.raises(UnsupportedError, match="MultiBinary"):
        make_runner(ppo_config("refused", envs=2))
    assert RefusedEnv.closed == 2


def begin_runners(mode: str, runners: int, envs: int, seed: int) -> np.ndarray:
    """Initial observations [runners * envs, ...], as the algorithm's remote runners would have them."""
    config = ppo_config("CartPole-v1", envs=envs, seed=seed).env_runners(gym_env_vectorize_mode=mode)
    starts = []
    for index in range(1, runners + 1):
        runner = ArrayEnvRunner(config=config, worker_index=index, num_workers=runners)
        starts.append(runner.collect(1).obs[0].copy())
        runner.stop()
    return np.concatenate(starts)


@pytest.mark.parametrize(("mode", "runners", "envs"), [("sync", 4, 4), ("sync", 2, 12), ("async", 2, 2)])
def test_every_environment_begins_differently(mode: str, runners: int, envs: int) -> None:
    """Over all env runners; twelve are one native vector environment."""
    starts = begin_runners(mode, runners, envs, seed=5)
    assert len(np.unique(starts, axis=0)) == runners * envs
    np.testing.assert_array_equal(begin_runners(mode, runners, envs, seed=5), starts)
    assert not np.isin(begin_runners(mode, runners, envs, seed=6), starts).any()


def test_a_runners_state_carries_the_normalisers_statistics() -> None:
    runner = make_runner(normalise_observations(ppo_config("count", envs=2)))
    runner.collect(100)
    other = make_runner(normalise_observations(ppo_config("count", envs=2)))
    other.set_state(runner.get_state())
    assert runner.normaliser is not None
    assert other.normaliser is not None
    assert other.normaliser.count == runner.normaliser.count > 100
    np.testing.assert_allclose(other.normaliser.mean, runner.normaliser.mean)
    runner.stop(), other.stop()
