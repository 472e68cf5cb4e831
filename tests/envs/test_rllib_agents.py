"""RLlib's environments of several agents look like PettingZoo's, if their agents act at the same time."""

from __future__ import annotations

import pytest
import rllib_team

from rltune.envs.pettingzoo import TeamEnv, make_parallel_env, read_policies
from rltune.envs.rllib_agents import RLlibAgents, is_rllib_class
from rltune.envs.spec import spec_of
from rltune.envs.validation import check_env, refuse_program
from rltune.errors import ConfigError, GuestError

LEAVING = {"id": "rllib_team:Leaving", "kwargs": {"config": {"length": 5}}, "policies": "shared"}


def test_agents_of_rllib_have_texts_as_names():
    env = make_parallel_env(spec_of(LEAVING))
    assert env.possible_agents == ["0", "1"]
    assert list(env.reset(seed=0)[0]) == env.agents == ["0", "1"]
    assert env.observation_space("1") == env.env.observation_spaces[1]
    facts = check_env(spec_of(LEAVING))
    assert facts.agents == ("0", "1")
    assert facts.sources


def test_an_agent_of_rllib_may_leave_without_seeing_it():
    env = RLlibAgents(rllib_team.Leaving({"length": 5}))
    env.reset(seed=0)
    for step in range(1, 6):
        before = env.agents
        observations, rewards, terminated, truncated, infos = env.step(dict.fromkeys(before, 1))
        assert set(observations) == set(rewards) == set(terminated) == set(truncated) == set(infos) == set(before)
        assert env.agents == ([] if step == 5 else ["0", "1"] if step < 3 else ["0"])
        if step == 3:
            assert terminated == {"0": False, "1": True}
            assert observations["1"][0] == pytest.approx(0.2)
    assert truncated == {"0": True}
    assert terminated == {"0": False}


def test_a_team_of_rllib_is_worth_its_summed_rewards():
    team = TeamEnv(make_parallel_env(spec_of(LEAVING)))
    seen, total, is_over = team.reset(seed=0)[0], 0.0, False
    while not is_over:
        seen, reward, is_over, *_ = team.step({agent: team.action_space[agent].start + 1 for agent in seen})
        total += reward
    assert total == 3 + 5


@pytest.mark.parametrize(
    ("changes", "key", "fix"),
    [
        ({"id": "rllib_team:Turns"}, "env.id", "docs/from-ray-tune.md"),
        ({"id": "rllib_team:Leaver"}, "env.id", "env.id=rllib_team:Leaving"),
        ({"id": "rllib_team"}, "env.id", "env.id=rllib_team:Leaving"),
        ({"id": "os:system", "kwargs": {"command": "true"}}, "env.id", "env.id=mpe2.simple_spread_v3"),
        ({"kwargs": {}}, "env.id", "'+env.kwargs={config: {}}'"),
        ({"policies": "rllib_team:map_by_chance"}, "env.policies", "env.policies=separate"),
        ({"policies": "rllib_team:map_nobody"}, "env.policies", "env.policies=separate"),
        ({"policies": "rllib_teem:map_agent"}, "env.policies", "env.policies=separate"),
        ({"policies": "rllib_team:map_wrongly"}, "env.policies", "env.policies=separate"),
        ({"policies": None}, "env.id", "env=pettingzoo env.id=rllib_team:Leaving"),
    ],
)
def test_what_agents_of_rllib_cannot_have_is_refused(changes, key, fix):
    with pytest.raises((ConfigError, GuestError)) as refused:
        check_env(spec_of(LEAVING | changes))
    assert refused.value.key == key
    assert fix in refused.value.fix
    assert refused.value.allowed


def test_a_function_maps_agents_by_their_own_ids():
    spec = spec_of(LEAVING | {"policies": "rllib_team:map_agent"})
    assert check_env(spec).policies == {"0": "first", "1": "others"}
    assert read_policies("separate", {"0": 0}) == {}
    assert check_env(spec_of(LEAVING)).policies == {}


def test_a_mapping_function_of_a_notebook_is_refused():
    with pytest.raises(ConfigError) as refused:
        refuse_program(spec_of(LEAVING | {"policies": "__main__:map_agent"}))
    assert refused.value.key == "env.policies"


@pytest.mark.slow
def test_the_base_class_of_rllib_is_known():
    from ray.rllib.env.multi_agent_env import MultiAgentEnv

    assert is_rllib_class(MultiAgentEnv)
    assert is_rllib_class(rllib_team.Leaving)
