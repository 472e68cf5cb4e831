"""The engine trains with an untested Ray as long as the private names that it uses are there."""

from __future__ import annotations

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.learner.learner import Learner

from rltune.compat import patching
from rltune.engine import find_static_obstacle
from rltune.engine.contract import find_missing_name


def test_the_engine_stays_on_where_an_untested_ray_has_its_names(monkeypatch):
    config = PPOConfig().environment("CartPole-v1")
    monkeypatch.setitem(patching.TESTED, "ray", "2.59")
    find_missing_name.cache_clear()
    assert find_static_obstacle(config) is None
    find_missing_name.cache_clear()
    monkeypatch.delattr(Learner, "_set_optimizer_lr")
    missing = find_static_obstacle(config)
    find_missing_name.cache_clear()
    assert "Learner._set_optimizer_lr" in missing
