"""Same work for every combination, and what becomes of a worker that cannot measure."""

from __future__ import annotations

import contextlib
import os
from multiprocessing.connection import Pipe

import pytest
from composing import compose
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.ppo import PPOConfig

from rltune.errors import ConfigError
from rltune.probe import worker
from rltune.probe.probe import ProbeConfig, parse_probe_config
from rltune.probe.recommendation import Combination
from rltune.probe.worker import build_combination, keep_work


@pytest.fixture
def config():
    from hydra.core.config_store import ConfigStore

    ConfigStore.instance().store("base_probe", ProbeConfig)
    return parse_probe_config(compose("probe", "seconds=0.1"))


def off_policy(envs, env_runners=0, intensity=None):
    """DQN that learns from 64 transitions after each step of its environments, if no intensity says otherwise."""
    config = DQNConfig().training(training_intensity=intensity, train_batch_size=64)
    return config.env_runners(num_envs_per_env_runner=envs, num_env_runners=env_runners)


def test_a_wider_vector_keeps_off_policy_updates_per_step():
    assert keep_work(off_policy(4), off_policy(64)) == {"training_intensity": 16.0}
    assert keep_work(off_policy(4), off_policy(1)) == {"training_intensity": 16.0}
    assert keep_work(off_policy(4), off_policy(4)) == {}


def test_an_intensity_of_ones_own_stays_what_it_is():
    assert keep_work(off_policy(4, intensity=8), off_policy(64, intensity=8)) == {}


def test_rllibs_count_of_an_idle_runner_is_made_up_for():
    assert keep_work(off_policy(4), off_policy(64, env_runners=1)) == {"training_intensity": 8.0}
    assert keep_work(off_policy(4, intensity=8), off_policy(4, 1, intensity=8)) == {"training_intensity": 4.0}


def test_rllib_replays_as_much_for_each_step_with_them():
    from ray.rllib.algorithms.dqn.dqn import calculate_rr_weights

    for envs, env_runners in ((1, 0), (64, 0), (4, 1), (64, 2)):
        wide = off_policy(envs, env_runners)
        wide.training_intensity = keep_work(off_policy(4), wide).get("training_intensity")
        rounds, updates = calculate_rr_weights(wide)
        assert updates * 64 / (rounds * envs * max(1, env_runners)) == pytest.approx(16.0)


def test_an_on_policy_algorithm_needs_nothing_besides():
    assert keep_work(PPOConfig(), PPOConfig().env_runners(num_envs_per_env_runner=64)) == {}


def test_a_combination_is_built_with_its_settings(config):
    dqn = parse_probe_config(compose("probe", "algo=dqn"))
    build, settings = build_combination(dqn, Combination(64, 0, 1))
    assert build.algo["env_runners"]["num_envs_per_env_runner"] == 64
    assert build.algo["training"]["training_intensity"] == settings["training_intensity"]
    assert build.algo["training"]["lr"] == dqn.algo["training"]["lr"]
    assert build_combination(config, Combination(64, 1, 1))[1] == {}


def test_a_worker_that_is_not_done_in_time_is_ended_and_named(config, monkeypatch):
    monkeypatch.setattr(worker, "START_S", -1.0)
    assert worker.measure(config, Combination(1, 0, 1)).failed.count("seconds=") == 1


def test_a_worker_that_dies_is_named(config, monkeypatch):
    monkeypatch.setattr("sys.executable", "/bin/true")
    assert worker.measure(config, Combination(1, 0, 1), 2).failed


@pytest.mark.parametrize("error", [ConfigError("lr=-1", "above 0", "lr=0.1"), ValueError("no map\nof level 2")])
def test_what_a_worker_cannot_do_reaches_the_driver(config, monkeypatch, error):
    def fail(*_):
        raise error

    ours, theirs = Pipe()
    monkeypatch.setattr(worker, "_work", fail)
    monkeypatch.setattr("sys.argv", ["worker", str(os.dup(theirs.fileno()))])
    ours.send((config, Combination(1, 0, 1)))
    worker.main()
    monkeypatch.setattr(worker, "_start_worker", lambda *_: contextlib.nullcontext(ours))
    if isinstance(error, ConfigError):
        with pytest.raises(ConfigError, match="lr=-1") as refused:
            worker.measure(config, Combination(1, 0, 1))
        assert refused.value.fix == "lr=0.1"
    else:
        assert worker.measure(config, Combination(1, 0, 1)).failed.startswith("ValueError:")
