"""Each setting that the fast engine does not serve is found by its name."""

from __future__ import annotations

import logging
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from own_parts import OwnRunner, make_mirror
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.ppo.torch.ppo_torch_learner import PPOTorchLearner
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.tune import register_env

from rltune.algorithms.a2c import A2CConfig
from rltune.engine import build_algorithm, find_obstacle
from rltune.engine.features import IDLE_PREFIXES, SWITCHES, find_unserved_setting, list_served_fields
from rltune.engine.sampling.observation_filter import normalise_observations
from rltune.engine.sampling.vector_envs import make_envs
from tests.engine.engine_toy import CONFIGS, CountEnv, dqn_config, ppo_config


class EpisodeCallback(RLlibCallback):
    def on_episode_end(self, **kwargs: Any) -> None:
        """A user's."""


UNSUPPORTED: dict[str, tuple[str, Any]] = {
    "range of n_step": ("a range of n_step", lambda c: dqn_config(n_step=(1, 3))),
    "trained steps": ("min_train_timesteps", lambda c: c.reporting(min_train_timesteps_per_iteration=5000)),
    "fragment": ("rollout_fragment_length=4", lambda c: c.env_runners(rollout_fragment_length=4)),
    "NaN gradients": ("torch_skip_nan_gradients=True", lambda c: c.framework(torch_skip_nan_gradients=True)),
    "filters": ("update_worker_filter_stats=False", lambda c: c.env_runners(update_worker_filter_stats=False)),
    "runners on GPUs": ("num_gpus_per_env_runner=1", lambda c: c.env_runners(num_gpus_per_env_runner=1)),
    "connectors": ("add_default_connectors", lambda c: c.learners(add_default_connectors_to_learner_pipeline=False)),
    "old model": ("model=", lambda c: c.training(model={"fcnet_hiddens": [256]})),
    "Adam's epsilon": ("adam_epsilon", lambda c: dqn_config(adam_epsilon=0.1)),
    "no GAE": ("use_gae=False", lambda c: c.training(use_gae=False)),
    "lstm": ("recurrent", lambda c: c.rl_module(model_config={"use_lstm": True})),
    "callback": ("callbacks that see episodes", lambda c: c.callbacks(EpisodeCallback)),
    "callback function": ("callbacks that see episodes", lambda c: c.callbacks(on_episode_step=print)),
    "evaluation": ("evaluation_interval=1", lambda c: c.evaluation(evaluation_interval=1)),
    "learners": ("num_learners=1", lambda c: c.learners(num_learners=1)),
    "connector": ("env-to-module connector", lambda c: c.env_runners(env_to_module_connector=lambda *a: [])),
    "own env runner": ("env_runner_cls=OwnRunner", lambda c: c.env_runners(env_runner_cls=OwnRunner)),
    "own connectors": (
        "module_to_env_connector=make_mirror",
        lambda c: c.env_runners(module_to_env_connector=make_mirror),
    ),
    "complete episodes": ("complete_episodes", lambda c: c.env_runners(batch_mode="complete_episodes")),
    "image bytes": ("observation space Box of uint8", lambda c: c.environment("bytes")),
}


def _box_env(obs: Any, action: Any) -> Any:
    env = CountEnv()
    env.observation_space, env.action_space = obs, action
    return env


def find_spaces(config: Any) -> tuple[Any, Any]:
    envs = make_envs(config)
    envs.close()
    return envs.single_observation_space, envs.single_action_space


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_an_unsupported_feature_falls_back_and_is_named(
    case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one line of the log."""
    register_env("bytes", lambda c: _box_env(gym.spaces.Box(0, 255, (3,), np.uint8), gym.spaces.Discrete(2)))
    feature, change = UNSUPPORTED[case]
    config = change(ppo_config())
    assert feature in (find_obstacle(config, find_spaces(config)) or "")
    monkeypatch.setattr(type(config), "build_algo", lambda self: "stock")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rltune.engine"):
        assert build_algorithm(config) == "stock"
    lines = [record.getMessage() for record in caplog.records if record.name == "rltune.engine"]
    assert len(lines) == 1
    assert feature in lines[0]


def test_supported_configs_have_no_reason_to_fall_back() -> None:
    for make in CONFIGS.values():
        assert find_obstacle(make(), find_spaces(make())) is None
    assert find_obstacle(A2CConfig().environment("CartPole-v1"), None) is None
    assert find_obstacle(normalise_observations(ppo_config()), None) is None
    assert "APPO" in (find_obstacle(APPOConfig().environment("CartPole-v1"), None) or "")


class PlainLearner(PPOTorchLearner):
    """A user's."""


def test_a_users_own_learner_class_is_named() -> None:
    config = ppo_config()
    assert find_unserved_setting(config) is None
    config.learners().training(learner_class=PlainLearner)
    assert str(find_unserved_setting(config)).endswith("(PlainLearner)")


CLASSES: list[Any] = [PPOConfig, A2CConfig, DQNConfig, SACConfig]


@pytest.mark.parametrize("config_class", CLASSES)
def test_each_field_is_served_or_falls_back_by_its_name(config_class: Any) -> None:
    served, fields = list_served_fields(config_class), vars(config_class())
    assert find_unserved_setting(config_class()) is None
    idle = {name for name in fields if name.startswith(IDLE_PREFIXES)} - set(SWITCHES)
    others = fields.keys() - served - idle
    assert len(others) > 100
    for name in others:
        config = config_class()
        vars(config)[name] = "changed"
        assert f"{name.lstrip('_')}='changed'" == find_unserved_setting(config)


def test_the_lists_hold_fields_that_rllib_has() -> None:
    known: set[str] = set().union(*(vars(config_class()) for config_class in CLASSES))
    listed: set[str] = set().union(*(list_served_fields(config_class) for config_class in CLASSES), SWITCHES)
    assert listed - known == set()
