"""Tiny environments and configs with known answers, for the engine's tests."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from rltune.algorithms.sac import use_plain_critics
from rltune.engine.on_policy.rollout import Collector
from rltune.engine.sampling.action_distributions import make_actions
from rltune.engine.sampling.observation_filter import RunningMoments

torch.set_num_threads(1)  # as in a trial; more threads on a busy machine wait for one another


class CountEnv(gym.Env[Any, Any]):
    """Counts its steps: observation [episode, step]; reward is the step; ends after ``length`` steps.

    Args:
        length: Of an episode.
        truncate: End by truncation instead of termination.
        reward: Instead of the step's number.
    """

    def __init__(self, length: int = 3, truncate: bool = False, reward: float | None = None) -> None:
        self.observation_space = gym.spaces.Box(-1e6, 1e6, (2,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.length, self.truncate, self.fixed = length, truncate, reward
        self.episode, self.count = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.episode, self.count = self.episode + 1, 0
        return np.array([self.episode, 0], np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        reward = float(self.count) if self.fixed is None else self.fixed
        done = self.count == self.length
        obs = np.array([self.episode, self.count], np.float32)
        return obs, reward, done and not self.truncate, done and self.truncate, {}


class CueEnv(gym.Env[Any, Any]):
    """Four steps with a cue: the last pays 1 for the action that fits it, the others 0.1 for the other action.

    Observations are one-hot in step and cue, so that no state's value can be generalised from another's.
    """

    best_return = 1.3

    def __init__(self) -> None:
        self.observation_space = gym.spaces.Box(0.0, 1.0, (10,), np.float32)
        self.action_space = gym.spaces.Discrete(2)
        self.cue, self.count = 0, 0

    def _observe(self) -> Any:
        obs = np.zeros(10, np.float32)
        obs[2 * self.count + self.cue] = 1.0
        return obs

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.cue, self.count = int(self.np_random.integers(2)), 0
        return self._observe(), {}

    def step(self, action: Any) -> Any:
        last, fits = self.count == 3, int(action) == self.cue
        self.count += 1
        reward = float(fits) if last else 0.1 * (not fits)
        return self._observe(), reward, last, False, {}


def make_count_env(config: Any) -> CountEnv:
    return CountEnv(**{k: v for k, v in config.items() if k in ("length", "truncate", "reward")})


def ppo_config(env: Any = "CartPole-v1", envs: int = 8, seed: int | None = 0, **training: Any) -> PPOConfig:
    settings = {"train_batch_size_per_learner": 256, "minibatch_size": 64, "num_epochs": 2, "lr": 1e-3}
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=envs)
        .training(**(settings | training))
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16, 16], vf_share_layers=False))
        .debugging(seed=seed)
    )


def dqn_config(env: Any = "CartPole-v1", envs: int = 1, seed: int | None = 0, **training: Any) -> DQNConfig:
    settings: dict[str, Any] = {
        "train_batch_size_per_learner": 16,
        "num_steps_sampled_before_learning_starts": 64,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 2000},
    }
    return (
        DQNConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=envs, rollout_fragment_length=4)
        .training(**(settings | training))
        .reporting(min_sample_timesteps_per_iteration=200)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[16, 16], head_fcnet_hiddens=[]))
        .debugging(seed=seed)
    )


def sac_config(env: Any = "Pendulum-v1", envs: int = 1, seed: int | None = 0, **training: Any) -> Any:
    settings: dict[str, Any] = {
        "train_batch_size_per_learner": 16,
        "num_steps_sampled_before_learning_starts": 32,
        "replay_buffer_config": {"type": "EpisodeReplayBuffer", "capacity": 2000},
    }
    config = (
        SACConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=envs)
        .training(**(settings | training))
        .reporting(min_sample_timesteps_per_iteration=100, min_time_s_per_iteration=0)
        .rl_module(model_config={"fcnet_hiddens": [16, 16]})
        .debugging(seed=seed)
    )
    return use_plain_critics(config)


def make_collector(envs: Any, normaliser: RunningMoments | None = None) -> Collector:
    """Steps environments with a policy that knows nothing."""
    actions = make_actions(envs.single_action_space, envs.num_envs, np.random.default_rng(0), ppo_config())
    return Collector(
        envs,
        actions,
        lambda obs: np.zeros((len(obs), 2), np.float32),
        normaliser=normaliser,
        seeds=range(envs.num_envs),
    )


CONFIGS = {"PPO": ppo_config, "DQN": dqn_config, "SAC": sac_config}
