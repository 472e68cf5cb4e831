"""What cannot work is refused before the first trial."""

from __future__ import annotations

import few_copies
import gymnasium
import numpy as np
import pytest
from builds import make_build
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, Tuple

from rltune.algorithms.preflight import check_bounds, check_corners, check_mask, check_spaces
from rltune.config.capabilities import TABLE, find_capabilities
from rltune.envs.masks import MaskSource
from rltune.envs.spec import EnvSpec
from rltune.errors import ConfigError
from rltune.search.space import parse_space

CARTPOLE, PENDULUM = EnvSpec("CartPole-v1"), EnvSpec("Pendulum-v1")


@pytest.mark.parametrize(
    ("name", "env"),
    [("ppo", CARTPOLE), ("ppo", PENDULUM), ("a2c", CARTPOLE), ("dqn", CARTPOLE), ("sac", PENDULUM)],
    ids=["ppo", "ppo, continuous", "a2c", "dqn", "sac"],
)
def test_the_spaces_of_conf_can_be_configured_at_all_their_ends(settings, name, env):
    check_corners(make_build(settings[name].algo, env), parse_space(settings[name].space))


def test_a_minibatch_that_can_exceed_its_batch_is_found(algo):
    raw = {"train_batch_size_per_learner": ["pow2", 64, 512], "minibatch_size": ["pow2", 64, 256]}
    with pytest.raises(ConfigError) as refused:
        check_corners(make_build(algo(), CARTPOLE), parse_space(raw))
    assert "train_batch_size_per_learner=64" in refused.value.what
    assert "minibatch_size=256" in refused.value.what


@pytest.mark.parametrize(
    ("raw", "fix"),
    [
        (
            {"train_batch_size_per_learner": ["pow2", 256, 2048], "minibatch_size": 4096},
            "train_batch_size_per_learner=4096",
        ),
        (
            {
                "lr": ["loguniform", 1e-4, 1e-2],
                "train_batch_size_per_learner": 256,
                "minibatch_size": ["pow2", 64, 512],
            },
            "minibatch_size=64",
        ),
    ],
)
def test_the_parameter_that_rllib_names_is_advised(algo, raw, fix):
    """The advice is a value with which the whole space can be configured."""
    with pytest.raises(ConfigError) as refused:
        check_corners(make_build(algo(), CARTPOLE), parse_space(raw))
    assert refused.value.fix.endswith(f"space.{fix}")
    name, _, value = fix.partition("=")
    check_corners(make_build(algo(), CARTPOLE), parse_space({**raw, name: int(value)}))


def test_a_value_that_rllib_cannot_compare_is_refused(algo):
    """RLlib raises a TypeError for it."""
    with pytest.raises(ConfigError):
        check_corners(make_build(algo(), CARTPOLE), parse_space({"lr": [1e-4, 1e-2]}))


@pytest.mark.parametrize("values", [["rellu", "tanh"], ["tanh", "rellu"], ["tanh", "rellu", "relu"]])
def test_a_network_that_cannot_be_built_is_found_wherever_it_is(algo, values):
    with pytest.raises(ConfigError) as refused:
        check_corners(make_build(algo(), CARTPOLE), parse_space({"fcnet_activation": ["choice", *values]}))
    assert "rellu" in refused.value.what


def test_a_choice_that_rllib_refuses_is_found_wherever_it_stands(algo):
    with pytest.raises(ConfigError) as refused:
        check_corners(make_build(algo(), CARTPOLE), parse_space({"minibatch_size": ["choice", 64, 4096, 128]}))
    assert "minibatch_size=4096" in refused.value.what


def test_an_algorithm_that_cannot_act_there_is_refused(algo):
    with pytest.raises(ConfigError) as refused:
        check_corners(make_build(algo("dqn"), PENDULUM), parse_space({"lr": 1e-3}))
    assert refused.value.key == "algo"
    assert "env.id=Pendulum-v1" in refused.value.what
    assert "ppo" in refused.value.allowed


def test_processes_beyond_a_trials_share_are_refused(settings):
    algo = {"name": "appo", "class": "ray.rllib.algorithms.appo:APPOConfig", "training": {"lr": 1e-3}}
    with pytest.raises(ConfigError, match="num_env_runners=2") as caught:
        check_corners(make_build({**algo, "learners": {"num_learners": 0}}, CARTPOLE), parse_space({}))
    assert caught.value.fix == "+algo.env_runners.num_env_runners=0"
    with pytest.raises(ConfigError, match="num_learners=1") as caught:
        check_corners(make_build({**algo, "env_runners": {"num_env_runners": 0}}, CARTPOLE), parse_space({}))
    assert caught.value.fix == "+algo.learners.num_learners=0"


def test_processes_that_the_algo_file_counts_are_allowed(algo):
    own = algo()
    own["env_runners"] |= {"num_env_runners": 2}
    own["learners"] |= {"num_learners": 2}
    (config,) = check_corners(make_build(own, CARTPOLE), parse_space({}))
    assert (config.num_env_runners, config.num_learners) == (2, 2)


@pytest.mark.parametrize(("name", "refused"), [("sac", "which has images"), ("dqn", "actions are Box"), ("ppo", None)])
def test_spaces_that_an_algorithm_does_not_take_are_refused(settings, name, refused):
    spaces = gymnasium.spaces.Box(0, 255, (40, 40, 3), np.uint8), gymnasium.spaces.Box(-1.0, 1.0, (2,))
    row = find_capabilities(settings[name].algo)
    if refused is None:
        check_spaces(settings[name].algo, EnvSpec("Camera-v0"), spaces, row)
        return
    with pytest.raises(ConfigError, match=refused):
        check_spaces(settings[name].algo, EnvSpec("Camera-v0"), spaces, row)


S = gymnasium.spaces
MIXED = S.Tuple((S.Discrete(2), S.Box(0, 1)))


@pytest.mark.parametrize(
    ("space", "name", "refused"),
    [
        (S.Box(0, 3, (2,), np.int32), "dqn", None),
        (S.Box(0, 3, (2,), np.int32), "sac", None),
        (S.Box(0, 3, (8,), np.int32), "dqn", "65536 combinations"),
        (S.MultiBinary(339), "ppo", None),
        (S.MultiBinary(339), "dqn", "combinations"),
        (S.MultiBinary(4), "sac", "discrete actions are for"),
        (MIXED, "ppo", None),
        (MIXED, "dqn", "choices and numbers"),
        (MIXED, "sac", "discrete actions are for"),
    ],
)
def test_an_algorithm_takes_the_parts_that_it_can_choose(space, name, refused, settings):
    algo, spaces = settings[name].algo, (S.Box(0, 1, (5,)), space)
    if refused is None:
        check_spaces(algo, EnvSpec("Parts-v0"), spaces, find_capabilities(algo))
        return
    with pytest.raises(ConfigError, match=refused) as error:
        check_spaces(algo, EnvSpec("Parts-v0"), spaces, find_capabilities(algo))
    assert error.value.key == "algo"


def test_a_config_is_built_and_checked_without_a_copy(algo):
    few_copies.forget()
    build = make_build(algo(), EnvSpec("FewCopies-v0", wrappers=({"entry_point": "FlattenObservation"},)))
    few_copies.forget()
    check_corners(build, parse_space({}))
    assert few_copies.STARTED == []


def test_policies_of_several_agents_are_built_without_a_copy(algo, monkeypatch):
    pytest.importorskip("mpe2")
    build = make_build(algo(), EnvSpec("mpe2.simple_spread_v3", policies="separate"))
    monkeypatch.setattr("rltune.envs.pettingzoo.make_parallel_env", lambda *_: pytest.fail("a copy was made"))
    (config,) = check_corners(build, parse_space({}))
    assert list(config.policies) == list(build.facts.agents) == ["agent_0", "agent_1", "agent_2"]


@pytest.mark.parametrize(
    ("algo", "sizes", "space"),
    [
        ("sac", (2,), Discrete(2)),
        ("dqn", (2,), Tuple([Discrete(2), Box(0, 3, (1,), np.int64)])),
    ],
)
def test_an_algorithm_that_would_choose_illegal_actions_is_refused(settings, algo, sizes, space):
    mask, row = MaskSource("info", sizes), find_capabilities(settings[algo].algo)
    with pytest.raises(ConfigError) as caught:
        check_mask({"name": algo}, "Game-v0", mask, space, row)
    assert (caught.value.key, caught.value.value) == ("algo", algo)
    assert "env.action_mask=off" in caught.value.fix
    check_mask({"name": algo}, "Game-v0", None, space, row)


@pytest.mark.parametrize("algo", ["ppo", "a2c", "dqn", "rainbow", "appo", "impala"])
def test_algorithms_with_masks_take_them(settings, algo):
    row = find_capabilities(settings[algo].algo)
    check_mask({"name": algo}, "Game-v0", MaskSource("info", (2,)), Discrete(2), row)


@pytest.mark.parametrize(
    ("space", "sizes"),
    [(MultiBinary(339), (2,) * 339), (Tuple([Discrete(3), Box(-1, 1, (2,))]), (3,))],
)
def test_heads_of_parts_take_masks_of_any_choices(settings, space, sizes):
    row = find_capabilities(settings["ppo"].algo)
    check_mask({"name": "ppo"}, "Game-v0", MaskSource("method", sizes), space, row)


def test_datasets_and_world_models_have_no_masks():
    assert [name for name, row in TABLE.items() if row.uses_masks and (row.offline or row.network is None)] == []


OPEN = Box(-np.inf, np.inf, (2,), np.float32)
HALF = Box(np.array([0, -np.inf], np.float32), np.array([1, np.inf], np.float32))
TOP = Box(np.array([0, -1], np.float32), np.array([np.inf, np.inf], np.float32))


@pytest.mark.parametrize(
    ("name", "space", "notes"),
    [
        ("ppo", OPEN, "action[0], action[1] have"),
        ("ppo", HALF, "action[1] has"),
        ("sac", HALF, "from -1 to 1 there"),
        ("sac", Dict(arm=HALF, leg=Box(-1.0, 1.0, (), np.float32)), "action.arm[1] has"),
        ("ppo", Box(-np.inf, np.inf, (), np.float32), "action has"),
        ("ppo", Box(-2.0, 2.0, (2,), np.float32), ""),
        ("sac", Box(-2.0, 2.0, (2, 3), np.float32), ""),
        ("ppo", Discrete(3), ""),
        ("dqn", Discrete(3), ""),
    ],
)
def test_actions_without_bounds_are_noted(algo, name, space, notes):
    (noted,) = check_bounds(name, "Any-v0", space, find_capabilities(algo(name))) or [""]
    assert notes in noted
    assert bool(notes) == bool(noted)


@pytest.mark.parametrize("space", [OPEN, TOP, Dict(arm=OPEN)])
def test_squashed_actions_without_any_bounds_are_refused(algo, space):
    with pytest.raises(ConfigError) as refused:
        check_bounds("sac", "Any-v0", space, find_capabilities(algo("sac")))
    assert (refused.value.key, refused.value.exit_code) == ("env.id", 2)
    assert refused.value.fix.startswith("algo=ppo")
    assert check_bounds("ppo", "Any-v0", space, find_capabilities(algo("ppo")))
