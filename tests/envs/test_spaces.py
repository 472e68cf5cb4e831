"""Compound spaces become a vector and one choice, and those that cannot are refused."""

from __future__ import annotations

import math
from dataclasses import replace

import gymnasium
import numpy as np
import pytest

from rltune.envs.build import is_plain, make_env, make_flat_env
from rltune.envs.observations import find_network_spaces, make_layout
from rltune.envs.spaces import read_actions
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
        self.seen = self.observation_space.sample()
        return self.seen, {}

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
    _, size, own, actions = SPACES[name]
    spec = EnvSpec(compound[name], joint_actions=True)
    facts = check_env(spec)
    assert make_env(spec).action_space == own, "policies act in the environment's own space"
    assert facts.observation_space == SPACES[name][0], "policies take what the environment gives"
    env = make_flat_env(spec)
    obs, _ = env.reset(seed=0)
    assert env.observation_space.shape == (size,)
    assert env.observation_space.contains(obs)
    assert obs.dtype == np.float32
    assert not is_plain(spec, facts), "RLlib builds the flat one"
    if actions is None:
        env.step(np.array([0.5, 0.5, 0.5, -1.0], np.float32))
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
            (S.Sequence(S.Discrete(2)), S.Discrete(2), "Sequence"),
            (S.Box(0, 1), S.Tuple((S.Discrete(2), S.Text(3))), "no network chooses"),
            (S.Box(0, 1), S.MultiBinary(100_000), "200000 outputs"),
        ]
    ):
        gymnasium.register(f"Odd{number}-v0", Compound, kwargs={"observation_space": obs, "action_space": act})
        with pytest.raises(ConfigError, match=what) as refused:
            check_env(EnvSpec(f"Odd{number}-v0"))
        assert refused.value.what.startswith(f"env.id=Odd{number}-v0")
        assert refused.value.allowed
        gymnasium.registry.pop(f"Odd{number}-v0")


def test_plain_spaces_stay_as_they_are():
    env = make_flat_env(EnvSpec("CartPole-v1"))
    assert isinstance(env.observation_space, S.Box)
    assert "Flat" not in str(env)


class Named(S.Discrete):
    """A space of the environment's own class."""

    def __init__(self, names):
        super().__init__(len(names))
        self.names = names


# What an environment declares, and how many numbers networks see of it, or the number of actions that they choose from.
OBSERVATIONS = {
    "states": (S.Discrete(5), (5,)),
    "states from 3": (S.Discrete(4, start=3), (4,)),
    "names": (Named(["left", "right"]), (2,)),
    "bytes": (S.Box(0, 255, (6,), np.uint8), (6,)),
    "a table": (S.Box(0.0, 1.0, (3, 4), np.float32), (12,)),
    "four axes": (S.Box(-1.0, 1.0, (2, 2, 2, 3), np.float32), (24,)),
    "a number": (S.Box(-1.0, 1.0, (), np.float32), (1,)),
    "an image of bytes": (S.Box(0, 255, (10, 12, 3), np.uint8), (360,)),
    "a board": (S.Box(0, 1, (5, 5, 2), np.uint8), (50,)),
    "half precision": (S.Box(-1.0, 1.0, (3,), np.float16), (3,)),
}
ACTIONS = {
    "from -1": (S.Discrete(3, start=-1), 3),
    "names": (Named(["out", "off", "in"]), 3),
    "a table": (S.Box(-1.0, 2.0, (2, 3), np.float32), None),
    "a number": (S.Box(-1.0, 1.0, (), np.float32), None),
    "whole numbers": (S.Box(np.array([0, -2]), np.array([6, 3]), dtype=np.int32), 42),
    "bytes": (S.Box(0, 255, (1,), np.uint8), 256),
    "half precision": (S.Box(-3.0, 3.0, (2,), np.float16), None),
    "some bounds": (S.Box(np.float32([-5, 0, -np.inf]), np.float32([5, np.inf, np.inf])), None),
}


@pytest.fixture
def register(monkeypatch):
    def register(observation_space, action_space):
        kwargs = {"observation_space": observation_space, "action_space": action_space}
        entry = gymnasium.envs.registration.EnvSpec("Declared-v0", Compound, kwargs=kwargs)
        monkeypatch.setitem(gymnasium.registry, "Declared-v0", entry)
        return EnvSpec("Declared-v0")

    return register


@pytest.mark.parametrize("name", OBSERVATIONS)
def test_networks_see_one_vector_of_floats(name, register):
    space, shape = OBSERVATIONS[name]
    spec = register(space, S.Discrete(2))
    facts = check_env(spec)
    assert facts.observation_space == space, "a policy takes what the environment gives"
    env = make_flat_env(spec)
    obs, _ = env.reset(seed=0)
    assert env.observation_space == find_network_spaces(*facts.find_policy_spaces())[0]
    assert env.observation_space.contains(obs)
    assert obs.shape == shape
    assert obs.dtype == np.float32
    assert np.array_equal(
        obs, make_layout(space).view(make_layout(space).encode(env.unwrapped.seen)).astype(np.float32)
    )


@pytest.mark.parametrize("name", ACTIONS)
def test_each_action_that_is_sent_is_in_its_space(name, register):
    space, number = ACTIONS[name]
    env = make_flat_env(replace(register(S.Discrete(5), space), joint_actions=True))
    env.reset(seed=0)
    if number is None:
        assert env.action_space.shape == (math.prod(space.shape),)
        for bound in (env.action_space.low, env.action_space.high):
            env.step(bound.astype(np.float32))  # `Compound` asserts that its space contains what it gets.
        return
    assert env.action_space == S.Discrete(number)
    sent = set()
    for action in range(number):
        env.step(action)
        assert read_actions(space, joint=True).encode(env.unwrapped.got) == action
        sent.add(str(env.unwrapped.got))
    assert len(sent) == number


def test_finite_bounds_are_kept_beside_infinite_ones(register):
    space, _ = ACTIONS["some bounds"]
    env = make_flat_env(register(S.Discrete(5), space))
    env.reset(seed=0)
    env.step(np.float32([1.0, -0.5, -7.0]))
    np.testing.assert_array_equal(env.unwrapped.got, [5.0, 0.0, -7.0])


def test_an_action_of_few_bits_becomes_the_networks_choice():
    space = gymnasium.spaces.Box(-128, 127, (1,), np.int8)
    for action in (-128, 0, 127):
        assert read_actions(space, joint=True).encode(np.array([action], np.int8)) == action + 128
