"""One environment from its settings: built, wrapped, checked, and named for RLlib."""

from __future__ import annotations

import json
import sys

import gymnasium
import numpy as np
import pytest

from rltune import environment
from rltune.config import EnvConfig
from rltune.environment import EnvSpec, check, make, make_vec, rllib_name, spec_of
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


def test_the_settings_and_a_mapping_and_a_specification_mean_the_same_environment():
    expected = EnvSpec("Pendulum-v1", {"g": 9.81}, (SHORT,))
    config = EnvConfig(name="pendulum", id="Pendulum-v1", kwargs={"g": 9.81}, wrappers=[SHORT])
    assert spec_of(config) == expected
    assert spec_of({"id": "Pendulum-v1", "kwargs": {"g": 9.81}, "wrappers": [SHORT]}) == expected
    assert spec_of(expected) is expected
    assert spec_of({"id": "CartPole-v1"}) == EnvSpec("CartPole-v1")


def test_a_specification_can_be_kept_as_json_and_built_from_it():
    spec = EnvSpec("Pendulum-v1", {"g": 9.81}, (SHORT,))
    again = spec_of(json.loads(json.dumps(spec.to_dict())))
    assert again == spec
    assert make(again).unwrapped.g == 9.81


def test_arguments_reach_the_environment_and_those_given_last_win():
    spec = EnvSpec("Pendulum-v1", {"g": 1.0})
    assert make(spec).unwrapped.g == 1.0
    assert make(spec, g=2.0).unwrapped.g == 2.0
    assert make(EnvSpec("CartPole-v1"), render_mode="rgb_array").render_mode == "rgb_array"


def test_wrappers_are_applied_in_order_the_last_outermost():
    env = make(EnvSpec("Pendulum-v1", {}, (SHORT, NORMAL)))
    assert isinstance(env, gymnasium.wrappers.RescaleObservation)
    assert isinstance(env.env, gymnasium.wrappers.TimeLimit)
    assert steps(env) == 5


def test_copies_step_together_wrappers_included():
    envs = make_vec(EnvSpec("Pendulum-v1", {}, (SHORT,)), 3)
    observations, _ = envs.reset(seed=1)
    assert observations.shape == (3, 3)
    assert len(np.unique(observations[:, 0])) == 3, "each copy has a seed of its own"
    for _ in range(5):
        _, _, _, truncated, _ = envs.step(envs.action_space.sample())
    assert truncated.all()
    envs.close()


def test_a_plain_id_keeps_its_name_for_rllib_so_that_its_native_vector_version_can_be_used():
    assert rllib_name(EnvSpec("CartPole-v1")) == "CartPole-v1"


def test_a_wrapped_environment_gets_a_name_that_says_all_of_it():
    from ray.tune.registry import ENV_CREATOR, _global_registry

    name = rllib_name(EnvSpec("Pendulum-v1", {"g": 1.0}, (SHORT,)))
    other = rllib_name(EnvSpec("Pendulum-v1", {"g": 2.0}, (SHORT,)))
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


def test_an_environment_and_a_wrapper_of_ones_own_are_found_in_their_module(own_module):
    spec = EnvSpec(f"{own_module}:OurField-v0", {}, ({"entry_point": f"{own_module}:Twice"},))
    check(spec)
    env = make(spec)
    env.reset(seed=0)
    assert env.step(0)[1] == 2.0
    rllib_name(EnvSpec(f"{own_module}:OurField-v0"))
    assert "OurField-v0" in gymnasium.registry


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"])
def test_the_environments_of_conf_pass(env_id):
    check(EnvSpec(env_id))


@pytest.mark.parametrize(
    ("env_id", "what", "fix"),
    [
        ("CartPol-v1", "doesn't exist", "env.id=CartPole-v1"),
        ("cartpole-v1", "doesn't exist", "env.id=CartPole-v1"),
        ("CartPole-v9", "v9", "env.id=CartPole-v1"),
        ("NoSuchEnv-v0", "doesn't exist", "env.id="),
        ("not an id!", "Malformed", "env.id="),
        ("nosuchmodule:X-v0", "'nosuchmodule' cannot be imported", "pip install nosuchmodule"),
        (":CartPole-v1", "", "env.id="),
        ("ALE/Pong-v5", "", "rltune[atari]"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest_or_with_what_to_install(env_id, what, fix):
    with pytest.raises(ConfigError) as refused:
        check(EnvSpec(env_id))
    assert refused.value.what.startswith(f"env.id={env_id}")
    assert what in refused.value.what
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("env_id", "package", "extra"), [("LunarLander-v3", "Box2D", "box2d"), ("Ant-v5", "mujoco", "mujoco")]
)
def test_an_environment_whose_package_is_missing_names_the_extra(env_id, package, extra):
    try:
        __import__(package)
    except ImportError:
        with pytest.raises(ConfigError) as refused:
            check(EnvSpec(env_id))
        assert refused.value.fix == f"pip install 'rltune[{extra}]'"
    else:
        pytest.skip(f"{package} is installed here")


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"lenght": 1.0}),
        ("FrozenLake-v1", {"map_name": "9x9"}),
        ("Pendulum-v1", {"render_mode": {"not": "a mode"}}),
    ],
)
def test_an_argument_that_the_environment_refuses_is_named_whatever_it_raises(env_id, kwargs):
    with pytest.raises(ConfigError) as refused:
        check(EnvSpec(env_id, kwargs))
    assert "env.kwargs" in refused.value.what
    assert next(iter(kwargs)) in refused.value.what


@pytest.mark.parametrize(
    ("wrapper", "what"),
    [
        ("TimeLimit", "is no wrapper"),
        ({"kwargs": {}}, "is no wrapper"),
        ({"entry_point": "TimeLimit", "kwarg": {}}, "is no wrapper"),
        ({"entry_point": "nosuchmodule:Wrapper"}, "cannot import nosuchmodule:Wrapper"),
        ({"entry_point": "TimLimit"}, "cannot import TimLimit"),
        ({"entry_point": "os:system", "kwargs": {"command": "true"}}, "is no gymnasium.Wrapper"),
        ({"entry_point": "gymnasium:make"}, "is no gymnasium.Wrapper"),
        ({"entry_point": "TimeLimit"}, "max_episode_steps"),
        ({"entry_point": "TimeLimit", "kwargs": {"max_episode_steps": -3}}, "max_episode_steps"),
        ({"entry_point": "TimeLimit", "kwargs": {"max_steps": 3}}, "max_steps"),
    ],
)
def test_a_wrapper_that_cannot_be_applied_is_named(wrapper, what):
    with pytest.raises(ConfigError) as refused:
        check(EnvSpec("CartPole-v1", {}, (SHORT, wrapper)))
    assert refused.value.what.startswith("env.wrappers")
    assert what in refused.value.what


def test_a_wrapper_that_is_misspelt_is_answered_with_the_nearest():
    with pytest.raises(ConfigError, match=r"did you mean gymnasium\.wrappers:TimeLimit\?"):
        environment.wrappers_of(EnvSpec("CartPole-v1", {}, ({"entry_point": "TimLimit"},)))
