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
    assert (error.key, error.fix) == ("space.minibatch_size", "space.minibatch_size=64")
    check(algo(), train_batch_size_per_learner=["pow2", 64, 512], minibatch_size=64)


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
