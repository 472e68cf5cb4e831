"""Which settings of an algorithm are refused before RLlib is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rltune.algorithms.arguments import build_search_space
from rltune.algorithms.checks import check_algorithm
from rltune.config.capabilities import find_capabilities
from rltune.errors import ConfigError


def check(algo, several_agents=False, **space):
    check_algorithm(algo, build_search_space(algo, space), find_capabilities(algo), several_agents=several_agents)


def refusal(algo, several_agents=False, **space):
    with pytest.raises(ConfigError) as refused:
        check(algo, several_agents, **space)
    assert refused.value.allowed
    assert refused.value.fix
    return refused.value


@pytest.mark.parametrize(
    ("name", "section", "argument", "value", "nearest"),
    [
        ("ppo", "training", "weight_decay", 0.1, ""),
        ("ppo", "training", "sgd_minibatch_size", 64, "minibatch_size"),
        ("dqn", "training", "n_steps", 3, "n_step"),
        ("sac", "training", "twin", True, "twin_q"),
    ],
)
def test_an_argument_that_rllib_lacks_is_refused(algo, name, section, argument, value, nearest):
    own = algo(name)
    own.setdefault(section, {})[argument] = value
    error = refusal(own)
    assert error.what.startswith(f"algo.{section}.{argument}=")
    assert nearest in error.allowed
    assert error.fix.endswith(f"~algo.{section}.{argument}")


@pytest.mark.parametrize("kind", ["my_module:MyConfig", "json:JSONDecoder"])
def test_arguments_of_an_own_algorithm_are_left_to_rllib(algo, kind):
    check({**algo(), "class": kind, "training": {"mine": 1}})


@pytest.mark.parametrize(
    ("section", "argument", "value"),
    [
        ("training", "use_gae", False),
        ("env_runners", "batch_mode", "complete"),
        ("env_runners", "num_envs_per_env_runner", 0),
        ("framework", "framework", "tf"),
        ("env_runners", "num_env_runners", -1),
        ("learners", "num_learners", -1),
    ],
)
def test_values_with_which_rllib_does_not_train_are_refused(algo, section, argument, value):
    own = algo()
    own.setdefault(section, {})[argument] = value
    assert refusal(own).what.startswith(f"algo.{section}.{argument}=")


def test_an_algorithm_for_one_agent_is_refused_for_several(algo):
    assert refusal(algo("dqn"), several_agents=True).key == "algo"
    check(algo("ppo"), several_agents=True)


@pytest.mark.parametrize(("name", "several_agents"), [("sac", False), ("ppo", True)])
def test_a_memory_that_rllib_does_not_train_is_refused(algo, name, several_agents):
    own = algo(name)
    own["rl_module"]["model_config"]["use_lstm"] = True
    assert refusal(own, several_agents).key == "algo.rl_module.model_config.use_lstm"
    if several_agents:
        own["rl_module"]["model_config"]["use_lstm"] = False
        assert refusal(own, several_agents, use_lstm=["choice", False, True]).fix


def test_a_minibatch_larger_than_its_batch_is_refused(algo):
    error = refusal(algo(), train_batch_size_per_learner=["pow2", 64, 512], minibatch_size=["pow2", 64, 256])
    first, _, second = error.fix.partition(", or ")
    assert (error.key, first) == ("space.minibatch_size", "space.minibatch_size=64")
    assert second == "space.minibatch_size=[pow2,64,train_batch_size_per_learner]"
    check(algo(), train_batch_size_per_learner=["pow2", 64, 512], minibatch_size=64)
    check(
        algo(),
        train_batch_size_per_learner=["pow2", 64, 512],
        minibatch_size=["pow2", 64, "train_batch_size_per_learner"],
    )


def test_two_ranges_that_do_not_fit_are_refused(algo):
    """field/environments 41: the check says it, and not the first trial that draws such a pair."""
    ranges = {"train_batch_size_per_learner": ["randint", 200, 6000]}
    error = refusal(algo(), **ranges, minibatch_size=["randint", 4, 400])
    first, _, second = error.fix.partition(", or ")
    assert first == "space.minibatch_size=[randint,4,200]"
    assert second == "space.minibatch_size=[randint,4,train_batch_size_per_learner]"
    assert refusal(algo(), **ranges, minibatch_size=["quniform", 300, 400, 50]).fix == "space.minibatch_size=200"
    for minibatch in (["randint", 4, 200], ["randint", 4, "train_batch_size_per_learner"], ["choice", 4, 200]):
        check(algo(), **ranges, minibatch_size=minibatch)


@pytest.mark.parametrize(
    ("name", "space"),
    [
        ("appo", {"minibatch_size": ["choice", 64, 1024]}),
        ("dqn", {"n_step": ["choice", 1, 5]}),
        ("dqn", {"n_step": ["randint", 1, 4], "rollout_fragment_length": ["randint", 2, 8]}),
        ("rainbow", {"v_min": ["uniform", -10, 20]}),
    ],
)
def test_other_pairs_are_judged_at_the_corners_too(algo, name, space):
    own = algo(name)
    if name == "appo":
        own["training"]["minibatch_size"] = 64
    assert refusal(own, **space).key == f"space.{next(iter(space))}"


@pytest.mark.parametrize(
    ("space", "advised"),
    [
        ({"num_epochs": ["uniform", 1, 10]}, "num_epochs=[randint,1,10]"),
        ({"num_epochs": ["loguniform", 1.5, 10]}, "num_epochs=[lograndint,2,10]"),
        ({"num_epochs": ["choice", 2, 3.5]}, "num_epochs=[choice,2,4]"),
        ({"num_epochs": ["choice", 2, 10.0]}, "num_epochs=[choice,2,10]"),
        ({"num_epochs": ["quniform", 1, 10, 0.5]}, "num_epochs=[randint,1,10,1]"),
        ({"num_epochs": ["or", 1.5, ["randint", 4, 10]]}, "num_epochs=[or,2,[randint,4,10]]"),
        ({"num_epochs": ["when", {"clip_param": 0.2}, ["uniform", 1, 10]]}, "num_epochs=[randint,1,10]"),
        ({"minibatch_size": 96.5}, "minibatch_size=96"),
        (
            {"minibatch_size": ["uniform", 4, "train_batch_size_per_learner"]},
            "minibatch_size=[randint,4,train_batch_size_per_learner]",
        ),
        ({"fcnet_hiddens": ["choice", [64, 64], [64.5]]}, "fcnet_hiddens=[choice,[64,64],[64]]"),
        ({"lstm_cell_size": ["uniform", 32, 64]}, "lstm_cell_size=[randint,32,64]"),
    ],
)
def test_a_searched_float_is_refused_for_a_whole_number(algo, space, advised):
    """field/environments 14: in the check, with what to type, and not in a trial."""
    own = algo()
    if "clip_param" in str(space):
        space = {"clip_param": ["choice", 0.1, 0.2], **space}
    own["rl_module"]["model_config"] |= {"lstm_cell_size": 64, "use_lstm": True}
    if "batch_size_per" in str(space):
        space = {"train_batch_size_per_learner": ["pow2", 64, 128], **space}
    error = refusal(own, **space)
    assert error.key == f"space.{advised.partition('=')[0]}"
    assert "whole number" in error.allowed
    assert error.fix == f"space.{advised}"


@pytest.mark.parametrize(
    ("name", "path", "value", "advised"),
    [
        ("ppo", "training.num_epochs", 3.5, "4"),
        ("ppo", "training.train_batch_size_per_learner", 1e3, "1000"),
        ("ppo", "env_runners.num_envs_per_env_runner", 2.5, "2"),
        ("ppo", "env_runners.num_env_runners", 1.5, "2"),
        ("dqn", "training.n_step", 2.5, "2"),
        ("dqn", "training.replay_buffer_config.capacity", 5e4, "50000"),
        ("sac", "training.num_steps_sampled_before_learning_starts", 99.5, "100"),
        ("ppo", "rl_module.model_config.fcnet_hiddens", [64.0, 64], "[64,64]"),
    ],
)
def test_a_typed_float_is_refused_for_a_whole_number(algo, name, path, value, advised):
    own = algo(name)
    *sections, last = path.split(".")
    node = own
    for section in sections:
        node = node[section]
    node[last] = value
    error = refusal(own)
    assert (error.key, error.fix) == (f"algo.{path}", f"algo.{path}={advised}")


def test_floats_stay_floats_and_steps_of_whole_numbers_pass(algo):
    for name in ("ppo", "dqn", "sac", "rainbow", "appo", "impala", "a2c"):
        if "grad_clip" in algo(name)["training"]:
            check(algo(name), grad_clip=["uniform", 0.5, 10])
    check(algo(), minibatch_size=["quniform", 32, 128, 32], num_epochs=["randint", 5, 20, 5])
    check(algo(), grad_clip=["or", ["uniform", 0.3, 5], None], entropy_coeff=["or", 0, ["loguniform", 1e-5, 1e-2]])


def test_sizes_of_layers_that_are_no_list_are_refused(algo):
    own = algo("ppo")
    own["rl_module"]["model_config"]["fcnet_hiddens"] = 64
    error = refusal(own)
    assert (error.key, error.value) == ("algo.rl_module.model_config.fcnet_hiddens", 64)
    assert error.fix == "algo.rl_module.model_config.fcnet_hiddens=[64]"


def test_the_checks_import_no_rllib(algo):
    code = (
        "import sys; from composing import compose; from rltune.config.validation import parse_config\n"
        "from rltune.driver.plan import make_plan\n"
        "try: make_plan(parse_config(compose('run', '+algo.training.weight_decay=1', 'tracking=off')))\n"
        "except Exception as error: assert error.key == 'algo.training.weight_decay', error\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
