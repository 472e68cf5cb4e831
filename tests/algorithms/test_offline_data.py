"""Batches for the offline algorithms from a recorded dataset."""

from __future__ import annotations

import gymnasium
import pytest

from rltune.algorithms.datasets import read_episodes


def test_actions_are_scaled_to_between_minus_one_and_one(recorded):
    from ray.rllib.algorithms.bc import BCConfig

    from rltune.algorithms.offline_data import RecordedEpisodes

    env = gymnasium.make("MountainCarContinuous-v0")
    wide = gymnasium.spaces.Box(-2.0, 2.0, (1,))
    config = BCConfig().environment(observation_space=env.observation_space, action_space=wide)
    config.offline_data(input_=str(recorded))
    columns = RecordedEpisodes(config)._read_columns(str(recorded))
    assert columns["actions"] == pytest.approx(read_episodes(recorded)["action"] / 2.0, abs=1e-6)
