"""Stock RLlib reports each of its episodes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.algorithms.episodes import EPISODES, log_episode, read_episodes, report_episodes
from rltune.engine import build_algorithm


def ignore(**details: Any) -> None:
    """A user's callback."""


@pytest.mark.parametrize("theirs", [None, ignore, [ignore]])
def test_a_users_callbacks_stay(theirs: Any) -> None:
    config = PPOConfig()
    if theirs:
        config.callbacks(on_episode_end=theirs)
    before = config.callbacks_on_episode_end
    assert report_episodes(config).callbacks_on_episode_end == [*([ignore] if theirs else []), log_episode]
    assert config.callbacks_on_episode_end == before


def test_what_rllib_makes_of_one_episode_and_of_none() -> None:
    assert read_episodes({EPISODES: [(3.0, 30), (5.0, 50)], "episode_return_mean": 4.0}) == [(3.0, 30), (5.0, 50)]
    assert read_episodes({EPISODES: (3.0, 30), "episode_return_mean": 3.0}) == [(3.0, 30)]
    assert read_episodes({EPISODES: []}) == read_episodes({}) == read_episodes({"episode_return_mean": math.nan}) == []


@pytest.mark.parametrize("chunks", [{}, {"prev_episode_chunks": None}])
def test_an_episode_without_earlier_parts_is_logged(chunks: dict[str, Any]) -> None:
    """RLlib's own env runners give a list, but its callback's signature has None by default."""
    logged: list[Any] = []
    logger = SimpleNamespace(log_value=lambda *values, reduce: logged.append(values))
    log_episode(episode=SimpleNamespace(get_return=lambda: 3.0, t=30), metrics_logger=logger, **chunks)
    assert logged == [(EPISODES, (3.0, 30))]


def test_an_iteration_whose_episodes_nobody_lists_counts_by_its_mean() -> None:
    """A user's env runner may call no callbacks."""
    assert read_episodes({"episode_return_mean": 4.0, "episode_len_mean": 40.0}) == [(4.0, 40)]


@pytest.mark.parametrize("num_env_runners", [0, 2])
def test_each_episode_is_reported_once(num_env_runners: int, ray_cluster: Any) -> None:
    """CartPole pays 1 a step, so that a return is a length, also of an episode that goes on over several iterations."""
    config = PPOConfig().environment("CartPole-v1")
    config.env_runners(num_env_runners=num_env_runners, num_envs_per_env_runner=2)
    config.training(train_batch_size_per_learner=120, minibatch_size=60, num_epochs=1)
    algorithm = build_algorithm(config, "rllib")
    episodes = []
    for _ in range(4):
        sampled = algorithm.train()["env_runners"]
        assert EPISODES in sampled
        episodes += read_episodes(sampled)
        assert len(episodes) == sampled["num_episodes_lifetime"]
    algorithm.stop()
    assert len(episodes) > 8
    assert all(total == length for total, length in episodes)
