"""Which environments a checkpoint can hold in the middle of their episodes."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltune.engine.sampling import env_pickle
from rltune.engine.sampling.env_pickle import pickle_envs
from rltune.engine.sampling.vector_envs import ArrayEnvs, SyncEnvs, VectorEnvs
from rltune.envs.build import make_training_env
from rltune.envs.spec import EnvSpec
from tests.engine.engine_toy import CountEnv


def make_sync(env_id: str) -> Callable[[], ArrayEnvs]:
    spec = EnvSpec(env_id, rewards={"normalise": True})
    return lambda: SyncEnvs(lambda index: make_training_env(spec), 2)


def run(envs: ArrayEnvs, steps: int, seed: int) -> list[Any]:
    """Everything that they give, over random actions."""
    envs.action_space.seed(seed)
    return [[part.tolist() for part in envs.step(np.asarray(envs.action_space.sample()))] for _ in range(steps)]


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(make_sync("CartPole-v1"), id="single"),
        pytest.param(make_sync("MountainCarContinuous-v0"), id="continuous"),
        pytest.param(make_sync("Taxi-v3"), id="discrete"),
        pytest.param(lambda: VectorEnvs(gym.make_vec("CartPole-v1", 2, "vector_entry_point")), id="native"),
    ],
)
@pytest.mark.parametrize("steps", [0, 7, 137])
def test_kept_environments_go_on_as_they_would_have(make: Callable[[], ArrayEnvs], steps: int) -> None:
    """Resets, time limits and random numbers included."""
    envs = make()
    envs.reset([1, 2])
    run(envs, steps, seed=3)
    copy = pickle.loads(pickle_envs(envs))
    assert run(copy, 300, seed=4) == run(envs, 300, seed=4)


@pytest.mark.parametrize("ends", [True, False])
def test_an_episode_that_has_just_ended_is_reset_next(ends: bool) -> None:
    envs = SyncEnvs(lambda index: gym.make("CartPole-v1", max_episode_steps=5), 2)
    envs.reset([1, 2])
    run(envs, 5 if ends else 4, seed=0)
    copy = pickle.loads(pickle_envs(envs))
    _, rewards, _, truncated = copy.step(np.zeros(2, np.int64))
    assert rewards.tolist() == ([0.0, 0.0] if ends else [1.0, 1.0])
    assert truncated.tolist() == [not ends] * 2


def test_what_would_come_back_otherwise_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(pickle.PicklingError, match="CountEnv"):
        pickle_envs(SyncEnvs(lambda index: CountEnv(), 1))
    asynchronous = VectorEnvs(gym.make_vec("CartPole-v1", 2, "async"))
    with pytest.raises(pickle.PicklingError, match=r"pickle|local object"):
        pickle_envs(asynchronous)
    asynchronous.close()
    monkeypatch.setattr(env_pickle, "MAX_BYTES", 1000)
    with pytest.raises(pickle.PicklingError, match="larger than"):
        pickle_envs(make_sync("CartPole-v1")())
