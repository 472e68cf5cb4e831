"""Recorded episodes: written from a policy, read by offline algorithms."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rltune.algorithms.build import make_inputs_absolute
from rltune.algorithms.datasets import check_dataset, read_episodes, record_episodes
from rltune.errors import ConfigError, PolicyError


class Pusher:
    """A policy of MountainCarContinuous: pushes the way that the car moves."""

    info = {"env": {"id": "MountainCarContinuous-v0"}}  # noqa: RUF012
    spaces = {"observation": {"type": "Box"}, "action": {"type": "Box"}}  # noqa: RUF012

    def env(self):
        return gymnasium.make("MountainCarContinuous-v0", max_episode_steps=30)

    def predict(self, obs, state, deterministic, rng):
        return np.array([np.sign(obs[1]) if deterministic else rng.uniform(-1, 1)], np.float32), None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "data.parquet"
    made = record_episodes(Pusher(), path, episodes=4, seed=0, deterministic=False)
    assert made["steps"] == 120
    return path


def test_a_dataset_holds_every_step_as_the_environment_gave_it(recorded):
    columns = read_episodes(recorded)
    assert columns["obs"].shape == (120, 2)
    assert columns["action"].shape == (120, 1)
    assert np.unique(columns["episode"], return_counts=True)[1].tolist() == [30] * 4
    inside = ~columns["truncated"]
    assert inside.sum() == 116
    assert np.array_equal(columns["next_obs"][:-1][inside[:-1]], columns["obs"][1:][inside[:-1]])
    assert check_dataset(recorded)["env"] == Pusher.info["env"]


def test_a_dataset_is_not_overwritten(recorded):
    with pytest.raises(PolicyError, match="exists"):
        record_episodes(Pusher(), recorded, episodes=1, seed=0, deterministic=True)


def test_a_file_that_is_no_dataset_is_refused_with_the_command_that_makes_one(tmp_path):
    other = tmp_path / "other.parquet"
    for make in (lambda: None, lambda: other.write_text("no parquet")):
        make()
        with pytest.raises(ConfigError, match=r"algo\.offline_data\.input_=") as refused:
            make_inputs_absolute({"name": "bc", "offline_data": {"input_": str(other)}})
        assert "python -m sweeps.record" in refused.value.fix


def test_a_trial_finds_the_dataset_from_its_own_folder(recorded, monkeypatch):
    monkeypatch.chdir(recorded.parent)
    algo = make_inputs_absolute({"name": "bc", "offline_data": {"input_": "data.parquet"}})
    assert algo["offline_data"]["input_"] == str(recorded)


def test_offline_algorithms_learn_from_actions_between_minus_one_and_one(recorded):
    from ray.rllib.algorithms.bc import BCConfig

    from rltune.algorithms.offline_data import RecordedEpisodes

    env = gymnasium.make("MountainCarContinuous-v0")
    wide = gymnasium.spaces.Box(-2.0, 2.0, (1,))
    config = BCConfig().environment(observation_space=env.observation_space, action_space=wide)
    config.offline_data(input_=str(recorded))
    columns = RecordedEpisodes(config)._columns_of(str(recorded))
    assert columns["actions"] == pytest.approx(read_episodes(recorded)["action"] / 2.0, abs=1e-6)
