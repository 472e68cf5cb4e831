"""RLlib builds an environment by its name, in whatever process it finds itself."""

from __future__ import annotations

import pickle

import pytest
from ray.rllib.env.env_context import EnvContext

from rltune.algorithms.build import build_config
from rltune.algorithms.multi_agent import ParallelEnvAdapter
from rltune.algorithms.rllib_env import Creator, register_for_rllib
from rltune.driver.plan import make_plan
from rltune.envs.spec import EnvSpec, spec_of

SHORT = {"entry_point": "TimeLimit", "kwargs": {"max_episode_steps": 5}}


def registered(name: str):
    from ray.tune.registry import ENV_CREATOR, _global_registry

    return _global_registry.get(ENV_CREATOR, name)


def test_a_creator_crosses_to_a_worker_and_takes_its_context():
    creator = pickle.loads(pickle.dumps(Creator(EnvSpec("Pendulum-v1", {"g": 1.0}, (SHORT,)))))
    env = creator({"g": 2.0})
    assert env.unwrapped.g == 2.0
    env.reset(seed=0)
    assert [env.step(env.action_space.sample())[3] for _ in range(5)] == [False] * 4 + [True]
    env.close()


def test_copies_of_one_context_know_their_place():
    """Stock RLlib gives all copies of an env runner one context, whose ``vector_index`` is 0."""
    creator = Creator(EnvSpec("CartPole-v1"))
    first, second = EnvContext({}, worker_index=1), EnvContext({}, worker_index=1)
    assert [creator._find_vector_index(context) for context in (first, first, first, second)] == [0, 1, 2, 0]
    placed = EnvContext({}, worker_index=1, vector_index=5)
    assert creator._find_vector_index(placed) == 5


def test_a_numbered_environment_steps_single_copies():
    assert Creator(EnvSpec("ale_py:ALE/Pong-v5", max_copies=4)).together(3) is None


def test_an_environment_without_a_native_vector_gives_none():
    assert Creator(EnvSpec("CartPole-v1")).together(3) is None


@pytest.mark.parametrize("policies", ["shared", "separate"])
def test_an_environment_of_several_agents_is_registered_too(policies):
    spec = spec_of({"id": "mpe2.simple_spread_v3", "kwargs": {"max_cycles": 5}, "policies": policies})
    env = registered(register_for_rllib(spec))({})
    assert isinstance(env, ParallelEnvAdapter)
    assert env.possible_agents == ["agent_0", "agent_1", "agent_2"]
    env.close()


def test_rewards_are_normalised_by_the_algorithms_discount(request_of):
    made = make_plan(request_of("algo=ppo", "env=pendulum", "~tuned", "algo.normalise=[rewards]"))
    for params, discount in (({"gamma": 0.5}, 0.5), ({}, 0.99)):
        config = build_config(made.build, params, 0)
        env = registered(config.env)(config.env_config)
        assert env._discount == discount
        env.close()
