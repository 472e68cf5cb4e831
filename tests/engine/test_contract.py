"""The engine trains with an untested Ray as long as the private names that it uses are there."""

from __future__ import annotations

import pytest
import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.learner.learner import Learner

from rltune.compat import patching
from rltune.engine import build_algorithm, find_static_obstacle
from rltune.engine.algorithm import FastAlgorithm
from rltune.engine.contract import find_missing_name


def test_the_engine_stays_on_where_an_untested_ray_has_its_names(monkeypatch):
    config = PPOConfig().environment("CartPole-v1")
    monkeypatch.setitem(patching.TESTED, "ray", ("2.59", "2.59"))
    find_missing_name.cache_clear()
    assert find_static_obstacle(config) is None
    find_missing_name.cache_clear()
    monkeypatch.delattr(Learner, "_set_optimizer_lr")
    missing = find_static_obstacle(config)
    find_missing_name.cache_clear()
    assert "Learner._set_optimizer_lr" in missing


@pytest.mark.parametrize("switch", ["", "off"])
def test_the_engine_trains_with_the_next_minor_version_of_ray(switch, monkeypatch):
    monkeypatch.setattr(ray, "__version__", "2.61.0")
    monkeypatch.setattr(patching, "find_version", lambda library: {"ray": "2.61.0"}.get(library, "2.13.0"))
    monkeypatch.setenv(patching.SWITCH, switch)
    patching._is_ray_tested.cache_clear()
    find_missing_name.cache_clear()
    config = PPOConfig().environment("CartPole-v1").env_runners(num_env_runners=0)
    algorithm = build_algorithm(config.training(train_batch_size_per_learner=128, minibatch_size=64, num_epochs=1))
    try:
        assert not patching.are_replacements_on()
        assert isinstance(algorithm, FastAlgorithm)
        assert algorithm.train()["num_env_steps_sampled_lifetime"] >= 128
    finally:
        algorithm.stop()
        patching._is_ray_tested.cache_clear()
        find_missing_name.cache_clear()
