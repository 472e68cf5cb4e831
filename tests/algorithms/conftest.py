"""The composed settings of the algorithms."""

from __future__ import annotations

import copy

import gymnasium
import numpy as np
import pytest
from composing import compose

from rltune.algorithms.datasets import record_episodes
from rltune.config.validation import parse_config

ALGOS = ("ppo", "a2c", "dqn", "sac", "rainbow", "appo", "impala")


@pytest.fixture(scope="module")
def settings():
    """The composed settings of each algorithm."""
    return {name: parse_config(compose("run", f"algo={name}", "~tuned")) for name in ALGOS}


@pytest.fixture
def algo(settings):
    return lambda name="ppo": copy.deepcopy(settings[name].algo) | {"normalise": []}


class Pusher:
    """A policy of MountainCarContinuous: pushes the way that the car moves."""

    info = {"env": {"id": "MountainCarContinuous-v0"}}  # noqa: RUF012
    spaces = {"observation": {"type": "Box"}, "action": {"type": "Box"}}  # noqa: RUF012

    def env(self):
        return gymnasium.make("MountainCarContinuous-v0", max_episode_steps=30)

    def predict(self, obs, state, deterministic, rng):
        return np.array([np.sign(obs[1]) if deterministic else rng.uniform(-1, 1)], np.float32), None


@pytest.fixture(scope="session")
def pusher():
    return Pusher()


@pytest.fixture(scope="session")
def recorded(tmp_path_factory, pusher):
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    made = record_episodes(pusher, path, episodes=4, seed=0, deterministic=False)
    assert made["steps"] == 120
    return path
