"""Compound spaces become a vector and one choice, and those that cannot are refused."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rltune.algorithms.rllib_env import name_for_rllib
from rltune.envs.build import make_env
from rltune.envs.spaces import has_plain_actions, has_plain_observations
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError


class Compound(gymnasium.Env):
    """Tells which action it got; its spaces are given."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(0)
        self.got = None
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(action), action
        self.got = action
        return self.observation_space.sample(), 3.0, False, False, {}


S = gymnasium.spaces


SPACES = {
    "multidiscrete": (S.MultiDiscrete([3, 4]), 7, S.MultiDiscrete([2, 3], start=[1, 0]), 6),
    "multibinary": (S.MultiBinary(5), 5, S.MultiBinary(3), 8),
    "dict": (
        S.Dict(a=S.Discrete(3), b=S.Box(-1, 1, (2, 2))),
        7,
        S.Dict(go=S.Discrete(3, start=2), on=S.Discrete(2)),
        6,
    ),
    "tuple": (
        S.Tuple((S.Box(0, 1, (3,)), S.MultiBinary(2))),
        5,
        S.Tuple((S.Box(0, 1, (3,)), S.Box(-2, 2, (1,)))),
        None,
    ),
}


@pytest.fixture
def compound():
    names = {}
    for name, (obs, _, act, _) in SPACES.items():
        names[name] = f"Compound-{name}-v0"
        gymnasium.register(names[name], Compound, kwargs={"observation_space": obs, "action_space": act})
    yield names
    for name in names.values():
        gymnasium.registry.pop(name)


@pytest.mark.parametrize("name", list(SPACES))
def test_compound_spaces_become_flat_and_reach_the_environment(name, compound):
    """Compound spaces become a vector and one choice or vector that reaches the environment."""
    _, size, _, actions = SPACES[name]
    spec = EnvSpec(compound[name])
    check_env(spec)
    env = make_env(spec)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.shape == (size,)
    assert env.observation_space.contains(obs)
    assert obs.dtype == np.float32
    assert name_for_rllib(spec) != spec.id, "RLlib builds the flat one"
    if actions is None:
        env.step(np.array([0.5, 0.5, 0.5, -2.0], np.float32))
        assert env.unwrapped.got[1] == -2.0
        return
    assert env.action_space.n == actions
    reached = set()
    for action in range(actions):
        env.step(action)
        reached.add(str(env.unwrapped.got))
    assert len(reached) == actions, "each number is another combination, and none is missing"


def test_spaces_that_nothing_can_take_are_refused_with_what_can(compound):
    for number, (obs, act, what) in enumerate(
        [
            (S.Sequence(S.Discrete(2)), S.Discrete(2), "cannot become a vector"),
            (S.Box(0, 1), S.Tuple((S.Discrete(2), S.Box(0, 1))), "cannot become one choice"),
            (S.Box(0, 1), S.MultiDiscrete([100, 100]), "10000 combinations"),
        ]
    ):
        gymnasium.register(f"Odd{number}-v0", Compound, kwargs={"observation_space": obs, "action_space": act})
        with pytest.raises(ConfigError, match=what) as refused:
            check_env(EnvSpec(f"Odd{number}-v0"))
        assert refused.value.what.startswith(f"env.id=Odd{number}-v0")
        assert refused.value.allowed
        gymnasium.registry.pop(f"Odd{number}-v0")


def test_plain_spaces_stay_as_they_are():
    env = make_env(EnvSpec("CartPole-v1"))
    assert isinstance(env.observation_space, S.Box)
    assert "Flat" not in str(env)
    assert has_plain_observations(S.Box(0, 255, (84, 84, 4), np.uint8)), "an image"
    assert not has_plain_observations(S.Box(0, 255, (128,), np.uint8)), "bytes without a picture"
    assert not has_plain_observations(S.Box(0, 1, (2, 2))), "a matrix"
    assert has_plain_actions(S.Discrete(3))
    assert not has_plain_actions(S.MultiDiscrete([2, 2]))
