"""Stock RLlib reports each of its episodes."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.algorithms.episodes import EPISODES, log_episode, read_episodes, report_episodes
from rltune.engine import build_algorithm
from rltune.envs.episode import RECORD, EpisodeRecord


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


ENDED = [EpisodeRecord(3.0, 30, 2.0), EpisodeRecord(5.0, 50, 4.0, True, 1, "OSError")]


def test_what_rllib_makes_of_one_episode_and_of_none() -> None:
    logged = [tuple(episode) for episode in ENDED]
    assert read_episodes({EPISODES: logged, "episode_return_mean": 4.0}) == ENDED
    assert read_episodes({EPISODES: logged[0], "episode_return_mean": 3.0}) == ENDED[:1]
    assert read_episodes({EPISODES: []}) == read_episodes({}) == read_episodes({"episode_return_mean": math.nan}) == []


@pytest.mark.parametrize("chunks", [{}, {"prev_episode_chunks": None}])
@pytest.mark.parametrize("record", [None, ENDED[1]])
def test_an_episode_is_worth_its_record_or_its_return(chunks: dict[str, Any], record: EpisodeRecord | None) -> None:
    """RLlib's own env runners give a list of earlier parts, but its callback's signature has None by default."""
    logged: list[Any] = []
    logger = SimpleNamespace(log_value=lambda *values, reduce: logged.append(values))
    info = {} if record is None else {RECORD: record}
    episode = SimpleNamespace(get_return=lambda: 3.0, t=30, get_infos=lambda index: info)
    log_episode(episode=episode, metrics_logger=logger, **chunks)
    assert logged == [(EPISODES, tuple(record or EpisodeRecord(3.0, 30, 3.0)))]


def test_an_iteration_whose_episodes_nobody_lists_counts_by_its_mean() -> None:
    """A user's env runner may call no callbacks."""
    sampled = {"episode_return_mean": 4.0, "episode_len_mean": 40.0}
    assert read_episodes(sampled) == [EpisodeRecord(4.0, 40, 4.0)]


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
    assert all(episode.total == episode.length for episode in episodes)
