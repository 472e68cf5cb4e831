"""What a config plugs into RLlib's connector pipelines."""

from __future__ import annotations

import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.env.single_agent_episode import SingleAgentEpisode

from rltune.algorithms.connectors import NormaliseObservations, VectorFilter

SPACE = gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
RNG = np.random.default_rng(0)


def make_filter(columns: slice = slice(None), cls: type = VectorFilter) -> Any:
    connector = VectorFilter(columns=columns) if cls is VectorFilter else cls()
    connector.input_action_space = gym.spaces.Discrete(2)
    connector.input_observation_space = SPACE
    return connector


def see(connector: Any, obs: Any) -> Any:
    episode = SingleAgentEpisode(observations=[obs.astype(np.float32)], observation_space=SPACE)
    connector(rl_module=None, batch={}, episodes=[episode])
    return episode.get_observations(indices=-1)


def test_rllib_takes_the_filter_and_pickle_finds_it_by_name():
    make = NormaliseObservations(0, 3)
    config = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=make)
    pipeline = config.build_env_to_module_connector(env=None, spaces={})
    assert any(isinstance(piece, MeanStdFilter) for piece in pipeline.connectors)
    assert pickle.loads(pickle.dumps(make)) == make


def test_the_filter_equals_rllibs_without_a_far_value():
    ours, rllibs = make_filter(), make_filter(cls=MeanStdFilter)
    for obs in RNG.normal([0, 5, 1e6], [1, 0.01, 1e3], (400, 3)):
        assert np.array_equal(see(ours, obs), see(rllibs, obs))
    assert ours.far is None


def test_the_filter_leaves_other_columns_alone():
    ours = make_filter(slice(0, 2))
    for obs in RNG.normal(7, 1, (300, 3)):
        seen = see(ours, obs)
        assert seen[2] == np.float32(obs[2])
    assert np.abs(seen[:2]).max() < 5
    assert ours.observation_space.high.tolist() == [10, 10, np.inf]


@pytest.mark.parametrize("place", [0, 1, 70, 127, 128, 900])
def test_rllibs_filter_is_not_blinded_by_a_far_value(place: int):
    ours, data = make_filter(), RNG.normal(0, 1, (1000, 3))
    data[place, 1] = 1e8
    for obs in data:
        see(ours, obs)
    assert (ours.far.column, ours.far.value) == (1, 1e8)
    assert see(ours, np.full(3, 2.0))[1] - see(ours, np.full(3, -2.0))[1] > 1
    merged = make_filter()
    merged.merge_states([ours.get_state()])
    assert merged.far == ours.far
