"""What a config plugs into RLlib's connector pipelines."""

from __future__ import annotations

import pickle

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.connectors.env_to_module import MeanStdFilter

from rltune.algorithms.connectors import make_mean_std_connector


def test_rllib_takes_the_filter_and_pickle_finds_it_by_name():
    config = PPOConfig().environment("CartPole-v1").env_runners(env_to_module_connector=make_mean_std_connector)
    pipeline = config.build_env_to_module_connector(env=None, spaces={})
    assert any(isinstance(piece, MeanStdFilter) for piece in pipeline.connectors)
    assert pickle.loads(pickle.dumps(make_mean_std_connector)) is make_mean_std_connector
