"""Environments of several agents: who acts by which policy, and what is refused."""

from __future__ import annotations

import math
import shlex
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rltune.compose.composing import compose_settings
from rltune.config.schema import RunConfig
from rltune.envs.pettingzoo import TeamEnv, assign_policies, make_parallel_env
from rltune.envs.spec import spec_of
from rltune.envs.validation import check_env
from rltune.errors import ConfigError, GuestError

SPREAD = {"id": "mpe2.simple_spread_v3", "kwargs": {"max_cycles": 5}, "policies": "shared"}


SPEAKER = SPREAD | {"id": "mpe2.simple_speaker_listener_v4", "policies": "separate"}


def test_policies_by_agent_may_be_named_by_patterns():
    names = ["adversary_0", "adversary_1", "agent_0"]
    assert assign_policies({"adversary_*": "hunters", "agent_0": "prey"}, names) == {
        "adversary_0": "hunters",
        "adversary_1": "hunters",
        "agent_0": "prey",
    }


def test_the_first_pattern_that_matches_an_agent_counts():
    agents = ["wolf_0", "wolf_1", "hare"]
    assert assign_policies("shared", agents) == dict.fromkeys(agents, "shared")
    assert assign_policies("separate", agents) == {agent: agent for agent in agents}
    policies = {"wolf_1": "leader", "wolf_*": "pack", "*": "prey"}
    assert assign_policies(policies, agents) == {"wolf_0": "pack", "wolf_1": "leader", "hare": "prey"}


@pytest.mark.parametrize(
    ("settings", "what", "fix"),
    [
        (SPREAD | {"policies": "common"}, "env.policies=common is unknown", "env.policies=shared"),
        (
            SPREAD | {"policies": {"agent_0": "one"}},
            "names no policy for agent_1, agent_2",
            "'env.policies={agent_0:one,agent_1:agent_1,agent_2:agent_2}'",
        ),
        (SPREAD | {"policies": {"agent_*": "all", "agnt_2": "b"}}, "env.policies.agnt_2", "env.policies=separate"),
        (SPREAD | {"policies": {"agent_*": "../x"}}, "cannot name a folder", "env.policies=shared"),
        (SPEAKER | {"policies": "shared"}, "share a policy, but their spaces differ", "env.policies=separate"),
        (SPREAD | {"kwargs": {"max_cycle": 5}}, "max_cycle", "env.kwargs={}"),
        (SPREAD | {"wrappers": [{"entry_point": "TimeLimit"}]}, "env.wrappers is for one agent", "env.wrappers=[]"),
        (SPREAD | {"rewards": {"scale": 2.0}}, "env.rewards is for one agent", "env.rewards.scale=1"),
        (
            SPREAD | {"id": "pettingzoo.classic.tictactoe_v3", "kwargs": {}},
            "its agents take turns",
            "the other players",
        ),
        (SPREAD | {"id": "mpe2.simple_sprad_v3"}, "cannot be imported", "rltune[multiagent]"),
        (SPREAD | {"id": "CartPole-v1"}, "is no module", "env.id=mpe2"),
        (SPREAD | {"id": "json"}, "defines no environment of several agents", "env.id=mpe2"),
    ],
)
def test_settings_that_several_agents_cannot_have_are_refused(settings, what, fix):
    with pytest.raises(ConfigError) as refused:
        check_env(spec_of(settings))
    assert what in refused.value.what
    assert fix in refused.value.fix
    assert refused.value.allowed


@pytest.mark.parametrize("agents", [["a", "b 1"], [f"walker_{number}" for number in range(9)]])
def test_the_advice_for_agents_without_a_policy_can_be_typed(agents):
    with pytest.raises(ConfigError) as refused:
        assign_policies({"a": "one", "walker_0": "one"}, agents)
    (word,) = shlex.split(refused.value.fix)
    typed = compose_settings("run", RunConfig, ["env=pettingzoo", "env.id=x", word]).env.policies
    assert assign_policies({name: policy for name, policy in typed.items() if name in (*agents, "*")}, agents)


@pytest.mark.parametrize(("place", "value", "what"), [(0, np.zeros(3), "\\(3,\\)"), (1, math.nan, "nan")])
def test_what_an_agent_cannot_learn_from_is_refused(place, value, what, monkeypatch):
    from mpe2 import simple_spread_v3
    from pettingzoo.utils import BaseParallelWrapper

    class Broken(BaseParallelWrapper):
        def step(self, actions):
            answer = super().step(actions)
            answer[place]["agent_1"] = value
            return answer

    make = simple_spread_v3.parallel_env
    monkeypatch.setattr(simple_spread_v3, "parallel_env", lambda **kwargs: Broken(make(**kwargs)))
    with pytest.raises(ConfigError, match=f"agent_1, by step 1: .*{what}") as refused:
        check_env(spec_of(SPREAD))
    assert refused.value.key == "env.id"


def test_a_missing_file_of_several_agents_names_its_argument(monkeypatch):
    from mpe2 import simple_spread_v3

    monkeypatch.setattr(simple_spread_v3, "parallel_env", lambda **kwargs: Path(kwargs["file"]).read_text())
    with pytest.raises(ConfigError) as refused:
        check_env(spec_of(SPREAD | {"kwargs": {"file": "map.txt"}}))
    assert (refused.value.key, refused.value.value) == ("env.kwargs.file", "map.txt")


def test_what_the_agents_observe_is_noted(monkeypatch):
    from mpe2 import simple_spread_v3
    from pettingzoo.utils import BaseParallelWrapper

    class Free(BaseParallelWrapper):
        resets = 0.0

        def reset(self, **kwargs):
            observations, infos = super().reset(**kwargs)
            self.resets += 1
            return {agent: seen + self.resets for agent, seen in observations.items()}, infos

    assert check_env(spec_of(SPREAD)).notes == ()
    make = simple_spread_v3.parallel_env
    monkeypatch.setattr(simple_spread_v3, "parallel_env", lambda **kwargs: Free(make(**kwargs)))
    (note,) = check_env(spec_of(SPREAD)).notes
    assert "agent_0" in note
    assert "seed" in note


@pytest.mark.parametrize("is_strict", [False, True])
def test_a_mask_that_several_agents_do_not_use_is_refused(is_strict, monkeypatch):
    from mpe2 import simple_spread_v3
    from pettingzoo.utils import BaseParallelWrapper

    class Masked(BaseParallelWrapper):
        def reset(self, **kwargs):
            observations, infos = super().reset(**kwargs)
            return observations, {**infos, "agent_1": {"action_mask": np.ones(5, np.int8)}}

        def step(self, actions):
            if is_strict:
                raise ValueError("illegal")
            return super().step(actions)

    make = simple_spread_v3.parallel_env
    monkeypatch.setattr(simple_spread_v3, "parallel_env", lambda **kwargs: Masked(make(**kwargs)))
    with pytest.raises(ConfigError, match="agent_1") as refused:
        check_env(spec_of(SPREAD))
    assert (refused.value.key, refused.value.fix.partition(",")[0]) == ("env.action_mask", "env.action_mask=off")
    without = replace(spec_of(SPREAD), action_mask="off")
    if is_strict:
        with pytest.raises(GuestError, match=r"env\.id=.*: step 1 fails with ValueError: illegal"):
            check_env(without)
    else:
        assert check_env(without).notes == ()


def test_a_late_failure_of_several_agents_is_noted(monkeypatch):
    """Training goes on after one, and no setting makes their copies again."""
    from mpe2 import simple_spread_v3
    from pettingzoo.utils import BaseParallelWrapper

    class Diverging(BaseParallelWrapper):
        steps = 0

        def step(self, actions):
            self.steps += 1
            if self.steps == 15:
                raise ValueError("diverged")
            return super().step(actions)

    make = simple_spread_v3.parallel_env
    monkeypatch.setattr(simple_spread_v3, "parallel_env", lambda **kwargs: Diverging(make(**kwargs)))
    (note,) = check_env(spec_of(SPREAD | {"kwargs": {"max_cycles": 50}})).notes
    assert "step 15" in note
    assert "diverged" in note


def test_agents_get_python_ints_and_may_pay_arrays(monkeypatch):
    from mpe2 import simple_spread_v3
    from pettingzoo.utils import BaseParallelWrapper

    class Strict(BaseParallelWrapper):
        def step(self, actions):
            assert {type(action) for action in actions.values()} == {int}
            observations, rewards, *rest = super().step(actions)
            return observations, {agent: np.array([reward]) for agent, reward in rewards.items()}, *rest

    make = simple_spread_v3.parallel_env
    monkeypatch.setattr(simple_spread_v3, "parallel_env", lambda **kwargs: Strict(make(**kwargs)))
    assert check_env(spec_of(SPREAD)).notes == ()
    team = TeamEnv(make_parallel_env(spec_of(SPREAD)))
    team.reset(seed=3)
    assert isinstance(team.step({agent: np.int64(1) for agent in team.action_space})[1], float)


def test_a_team_steps_like_one_agent_with_the_sum_of_the_rewards():
    team, agents = TeamEnv(make_parallel_env(spec_of(SPREAD))), make_parallel_env(spec_of(SPREAD))
    assert list(team.observation_space.spaces) == agents.possible_agents
    assert team.reset(seed=3)[0].keys() == agents.reset(seed=3)[0].keys()
    over, num_steps = False, 0
    while not over:
        actions = dict.fromkeys(agents.agents, 1)
        _, reward, over, truncated, _ = team.step(actions)
        _, rewards, *_ = agents.step(actions)
        num_steps += 1
        assert (reward, truncated, over) == (pytest.approx(sum(rewards.values())), False, not agents.agents)
    assert num_steps == 5
