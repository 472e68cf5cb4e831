"""RLlib steps an environment of several agents, and trains them where it can."""

from __future__ import annotations

import math

import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple
from plans import preflight

from rltune.algorithms.multi_agent import ParallelEnvAdapter
from rltune.driver.plan import make_plan
from rltune.envs.episode import RECORD
from rltune.envs.spec import EnvSpec
from rltune.errors import ConfigError

TEAM = EnvSpec("team", policies="separate")


class Parting:
    """Two agents, of which one is terminated and the other truncated by the same step."""

    possible_agents = ("a", "b")

    def __init__(self):
        self.metadata = {}

    def reset(self, seed=None, options=None):
        self.agents = ["a", "b"]
        return dict.fromkeys("ab", np.zeros(1, np.float32)), {}

    def step(self, actions):
        self.agents = []
        ends = {"a": True, "b": False}, {"a": False, "b": True}
        return dict.fromkeys("ab", np.zeros(1, np.float32)), {"a": 1, "b": 2}, *ends, {"a": {}, "b": {}}

    def observation_space(self, agent):
        return Box(-1, 1, (1,))

    action_space = observation_space


def test_an_episode_ends_when_its_agents_end_differently():
    env = ParallelEnvAdapter(Parting(), TEAM)
    env.reset(seed=0)
    _, rewards, terminated, truncated, _ = env.step({})
    assert rewards == {"a": 1.0, "b": 2.0}
    assert terminated["__all__"] or truncated["__all__"]


def test_agents_have_one_record_of_their_episode():
    class Informing(Parting):
        def step(self, actions):
            return *super().step(actions)[:4], {"a": {"goals": 2}, "b": {}}

    metrics = {"a.goals": "sum", "b.goals": "sum"}
    env = ParallelEnvAdapter(Informing(), EnvSpec("informing", policies="shared", metrics=metrics))
    env.reset(seed=0)
    *_, infos = env.step({})
    records = {info[RECORD] for info in infos.values()}
    assert (len(infos), len(records)) == (2, 1)
    (record,) = records
    assert record[:3] == (3.0, 1, 3.0)
    assert record.metrics[0] == 2.0
    assert math.isnan(record.metrics[1])


def test_agents_see_and_do_what_networks_take():
    class Stating(Parting):
        def reset(self, seed=None, options=None):
            super().reset()
            return {"a": 3, "b": 2}, {}

        def step(self, actions):
            self.got = actions
            return {"a": 2, "b": 5}, *super().step(actions)[1:]

        def observation_space(self, agent):
            return Discrete(4, start=2)

        def action_space(self, agent):
            return Discrete(3, start=-1) if agent == "a" else Box(-1, 1, (2, 2))

    env = ParallelEnvAdapter(Stating(), TEAM)
    assert env.observation_spaces["a"].shape == (4,)
    assert env.action_spaces["a"] == Discrete(3)
    assert env.reset()[0]["a"].tolist() == [0, 1, 0, 0]
    obs, *_ = env.step({"a": 0, "b": np.zeros(4, np.float32)})
    assert obs["b"].tolist() == [0, 0, 0, 1]
    assert env.env.got["a"] == -1
    assert env.env.got["b"].shape == (2, 2)


def test_agents_act_in_several_parts():
    class Acting(Parting):
        def step(self, actions):
            self.got = actions
            assert all(self.action_space(agent).contains(action) for agent, action in actions.items()), actions
            return super().step(actions)

        def action_space(self, agent):
            parts = Dict(go=Discrete(3, start=2), at=Box(-2, 2, (2,)))
            return parts if agent == "a" else MultiDiscrete([3, 2], start=[1, 0])

    env = ParallelEnvAdapter(Acting(), TEAM)
    assert env.action_spaces["a"] == Tuple((MultiDiscrete([3]), Box(-1, 1, (2,))))
    assert env.action_spaces["b"] == MultiDiscrete([3, 2])
    env.reset()
    env.step({"a": (np.array([1]), np.float32([0.5, 3.0])), "b": np.array([2, 1])})
    assert env.env.got["a"]["go"] == 3
    assert env.env.got["a"]["at"].tolist() == [1.0, 2.0]
    assert env.env.got["b"].tolist() == [3, 1]


@pytest.mark.parametrize(
    ("override", "what"),
    [
        ("algo=dqn", "algo=dqn is for one agent"),
        ("++algo.rl_module.model_config.use_lstm=true", "several agents act with no LSTM"),
    ],
)
def test_what_trains_only_one_agent_is_refused(override, what, request_of):
    with pytest.raises(ConfigError, match=what):
        preflight(make_plan(request_of(override, "env=simple_spread")))
