"""One environment from its specification: built, wrapped, vectorised, and named for RLlib."""

from __future__ import annotations

import sys

import few_copies
import gymnasium
import numpy as np
import pytest

from rltune.algorithms.rllib_env import register_for_rllib
from rltune.envs.build import import_wrappers, is_plain, make_env, make_flat_env, make_training_env, make_vector_env
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError

SHORT = {"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 5}}
NORMAL = {"entry_point": "RescaleObservation", "kwargs": {"min_obs": -1.0, "max_obs": 1.0}}


def steps(env):
    """Steps until an episode ends."""
    env.reset(seed=0)
    for count in range(1, 1000):
        _, _, terminated, truncated, _ = env.step(env.action_space.sample())
        if terminated or truncated:
            return count
    return None


def test_arguments_reach_the_environment_the_last_win():
    """Arguments reach the environment and those given last win."""
    spec = EnvSpec("Pendulum-v1", {"g": 1.0})
    assert make_env(spec).unwrapped.g == 1.0
    assert make_env(spec, g=2.0).unwrapped.g == 2.0
    assert make_env(EnvSpec("CartPole-v1"), render_mode="rgb_array").render_mode == "rgb_array"


def test_wrappers_are_applied_in_order_the_last_outermost():
    env = make_env(EnvSpec("Pendulum-v1", {}, (SHORT, NORMAL)))
    assert isinstance(env, gymnasium.wrappers.RescaleObservation)
    assert isinstance(env.env, gymnasium.wrappers.TimeLimit)
    assert steps(env) == 5


def test_copies_step_together_wrappers_included():
    envs = make_vector_env(EnvSpec("Pendulum-v1", {}, (SHORT,)), 3)
    observations, _ = envs.reset(seed=1)
    assert observations.shape == (3, 3)
    assert len(np.unique(observations[:, 0])) == 3, "each copy has a seed of its own"
    for _ in range(5):
        _, _, _, truncated, _ = envs.step(envs.action_space.sample())
    assert truncated.all()
    envs.close()


def test_a_plain_id_keeps_its_name_for_rllib():
    """A plain id keeps its name for rllib so that its native vector version can be used."""
    spec = EnvSpec("CartPole-v1")
    assert is_plain(spec, check_env(spec))


def test_a_wrapped_environment_gets_a_name_that_says_all_of_it():
    from ray.tune.registry import ENV_CREATOR, _global_registry

    name = register_for_rllib(EnvSpec("Pendulum-v1", {"g": 1.0}, (SHORT,)))
    other = register_for_rllib(EnvSpec("Pendulum-v1", {"g": 2.0}, (SHORT,)))
    assert name != other
    env = _global_registry.get(ENV_CREATOR, name)({})
    assert env.unwrapped.g == 1.0
    assert steps(env) == 5


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A user's module that registers an environment when it is imported."""
    (tmp_path / "fields_of_ours.py").write_text(
        "import gymnasium\nfrom gymnasium.envs.classic_control import CartPoleEnv\n"
        "gymnasium.register('OurField-v0', CartPoleEnv, max_episode_steps=7)\n"
        "class Twice(gymnasium.RewardWrapper):\n    def reward(self, reward):\n        return 2 * reward\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield "fields_of_ours"
    sys.modules.pop("fields_of_ours", None)
    gymnasium.registry.pop("OurField-v0", None)


def test_ones_own_environment_and_wrapper_are_found(own_module):
    """An environment and a wrapper of ones own are found in their module."""
    spec = EnvSpec(f"{own_module}:OurField-v0", {}, ({"entry_point": f"{own_module}:Twice"},))
    check_env(spec)
    env = make_env(spec)
    env.reset(seed=0)
    assert env.step(0)[1] == 2.0
    assert "OurField-v0" in gymnasium.registry


def test_a_wrapper_that_is_misspelt_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"gymnasium\.wrappers:TimeLimit"):
        import_wrappers(EnvSpec("CartPole-v1", {}, ({"entry_point": "TimLimit"},)))


@pytest.mark.parametrize("make", [make_env, make_flat_env, make_training_env])
def test_an_environment_whose_wrapper_fails_is_closed(make):
    spec = EnvSpec("FewCopies-v0", {}, ({"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"steps": 1}},))
    few_copies.forget()
    with pytest.raises(TypeError):
        make(spec)
    assert not few_copies.OPEN
