"""Which environments are refused before a sweep starts, and what the answer says."""

from __future__ import annotations

import sys

import gymnasium
import numpy as np
import pytest

from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env, check_rewards
from rltune.errors import ConfigError

SHORT = {"entry_point": "gymnasium.wrappers:TimeLimit", "kwargs": {"max_episode_steps": 5}}


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "MountainCar-v0", "Pendulum-v1"])
def test_the_environments_of_conf_pass(env_id):
    check_env(EnvSpec(env_id))


@pytest.mark.parametrize(
    ("env_id", "what", "fix"),
    [
        ("CartPol-v1", "doesn't exist", "env.id=CartPole-v1"),
        ("cartpole-v1", "doesn't exist", "env.id=CartPole-v1"),
        ("CartPole-v9", "v9", "env.id=CartPole-v1"),
        ("NoSuchEnv-v0", "doesn't exist", "env.id="),
        ("not an id!", "Malformed", "env.id="),
        ("gymnasium.envs:CartPol-v1", "doesn't exist", "env.id=gymnasium.envs:CartPole-v1"),
        ("nosuchmodule:X-v0", "'nosuchmodule' cannot be imported", "put nosuchmodule.py into this folder"),
        ("minigird:MiniGrid-X-v0", "No module named 'minigird'", "env.id=minigrid:MiniGrid-X-v0"),
        (":CartPole-v1", "", "env.id="),
        ("ALE/Pong-v5", "", "rltune[atari]"),
    ],
)
def test_a_wrong_id_is_answered_with_the_nearest(env_id, what, fix, monkeypatch):
    """A wrong id is answered with the nearest or with what to install."""
    for known in [name for name in gymnasium.registry if name.startswith("ALE/")]:
        monkeypatch.delitem(gymnasium.registry, known)  # of ale-py, which another test may have imported
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert refused.value.what.startswith(f"env.id={env_id}")
    assert what in refused.value.what
    assert fix in refused.value.fix


@pytest.mark.parametrize(
    ("env_id", "package", "extra"),
    [
        ("LunarLander-v3", "Box2D", "box2d"),
        ("Ant-v5", "mujoco", "mujoco"),
        ("ale_py:ALE/Pong-v5", "ale_py", "atari"),
        ("minigrid:MiniGrid-Empty-5x5-v0", "minigrid", "minigrid"),
    ],
)
def test_a_missing_package_names_the_extra(env_id, package, extra, monkeypatch):
    """An environment whose package is missing names the extra."""
    for name in [name for name in sys.modules if name.split(".")[0] == package or "box2d" in name or "mujoco" in name]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)  # what Python does with a module that cannot be found
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id))
    assert refused.value.fix == f"pip install 'rltune[{extra}]'"


@pytest.mark.parametrize(
    ("env_id", "kwargs"),
    [
        ("CartPole-v1", {"lenght": 1.0}),
        ("FrozenLake-v1", {"map_name": "9x9"}),
        ("Pendulum-v1", {"render_mode": {"not": "a mode"}}),
    ],
)
def test_an_argument_that_the_environment_refuses_is_named(env_id, kwargs):
    """An argument that the environment refuses is named whatever it raises."""
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec(env_id, kwargs))
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
        check_env(EnvSpec("CartPole-v1", {}, (SHORT, wrapper)))
    assert refused.value.what.startswith("env.wrappers")
    assert what in refused.value.what


def test_a_wrapper_that_breaks_the_space_is_refused():
    """A wrapper that breaks the space is refused before anything starts."""
    broken = {"entry_point": f"{__name__}:Longer"}
    with pytest.raises(ConfigError) as refused:
        check_env(EnvSpec("CartPole-v1", {}, (broken,)))
    assert "env.wrappers of CartPole-v1: observations have shape (5,)" in refused.value.what
    assert "observation_space" in refused.value.allowed


class Longer(gymnasium.ObservationWrapper):
    """Returns more than it declares."""

    def observation(self, observation):
        return np.append(observation, np.float32(0))


class Lost(gymnasium.ObservationWrapper):
    def observation(self, observation):
        return np.full_like(observation, np.nan)


def test_observations_that_are_no_numbers_are_refused():
    with pytest.raises(ConfigError, match="observations are not finite"):
        check_env(EnvSpec("CartPole-v1", {}, ({"entry_point": f"{__name__}:Lost"},)))


def test_only_vectors_are_normalised():
    """Normalised observations are refused for images and choices."""
    with pytest.raises(ConfigError, match="normalise_observations=true") as refused:
        check_env(EnvSpec("FrozenLake-v1", {}, (), True))
    assert refused.value.fix == "env.normalise_observations=false"


@pytest.mark.parametrize("rewards", [{"clip": 0.0}, {"clip": -1.0}, {"scale": -0.1}])
def test_rewards_that_would_teach_nothing_are_refused(rewards):
    with pytest.raises(ConfigError, match=r"^env\.rewards: ") as refused:
        check_env(EnvSpec("CartPole-v1", rewards=rewards))
    assert refused.value.allowed == "numbers above 0"


@pytest.mark.parametrize(
    ("env_runners", "vectorize", "fix"),
    [(2, "auto", "algo.env_runners.num_env_runners=0"), (0, "async", "env.vectorize=sync")],
)
def test_shaped_rewards_are_refused_where_others_sample(env_runners, vectorize, fix):
    with pytest.raises(ConfigError, match="true returns would stay in other processes") as refused:
        check_rewards(EnvSpec("CartPole-v1", rewards={"scale": 0.1}), env_runners, vectorize)
    assert refused.value.fix == fix
    check_rewards(EnvSpec("CartPole-v1"), env_runners, vectorize)
    check_rewards(EnvSpec("CartPole-v1", rewards={"scale": 0.1}), 0, "sync")
