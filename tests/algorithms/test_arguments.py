"""Where an argument of an algo file stands, and how a sample's values get there."""

from __future__ import annotations

import pytest

from rltune.algorithms.arguments import (
    apply_params,
    build_search_space,
    count_gpus,
    list_arguments,
    locate_argument,
    values_of,
)
from rltune.errors import ConfigError


def test_an_argument_is_found_in_whichever_section_it_stands(algo):
    assert locate_argument(algo(), "lr") == ("training", "lr")
    assert locate_argument(algo(), "num_envs_per_env_runner") == ("env_runners", "num_envs_per_env_runner")
    assert locate_argument(algo(), "fcnet_hiddens") == ("rl_module", "model_config", "fcnet_hiddens")
    assert locate_argument(algo("dqn"), "capacity") == ("training", "replay_buffer_config", "capacity")


def test_sections_and_the_algorithms_name_are_no_arguments(algo):
    assert not {"training", "rl_module", "name", "class"} & set(list_arguments(algo()))


def test_a_name_that_stands_twice_needs_its_section(algo):
    twice = algo()
    twice["env_runners"]["lr"] = 1
    with pytest.raises(ConfigError) as refused:
        locate_argument(twice, "lr")
    assert "training.lr" in refused.value.allowed
    assert "env_runners.lr" in refused.value.allowed
    assert locate_argument(twice, "training.lr") == ("training", "lr")


def test_an_unknown_name_is_answered_with_the_nearest(algo):
    with pytest.raises(ConfigError) as refused:
        locate_argument(algo(), "clip_parm")
    assert refused.value.what == "space.clip_parm: algo 'ppo' has no argument 'clip_parm'"
    assert refused.value.allowed.endswith("did you mean 'clip_param'?")
    with pytest.raises(ConfigError, match=r"^warm_start\[0\]\.clip_parm"):
        locate_argument(algo(), "clip_parm", "warm_start[0].clip_parm")


def test_an_added_parameter_that_is_misspelt_is_answered_whole(algo):
    """With the name that the algorithm has, and the range that was meant."""
    with pytest.raises(ConfigError, match=r"^space\.learning_rate: ") as refused:
        build_search_space(algo(), {"gamma": 0.9, "learning_rate": ["loguniform", 1e-4, 1e-2]})
    assert refused.value.fix == "space.lr=[loguniform,1e-4,0.01]"


def test_a_samples_values_go_into_a_copy_of_the_file(algo):
    before = algo()
    given = algo()
    merged = apply_params(given, {"lr": 0.5, "fcnet_hiddens": [8], "num_envs_per_env_runner": 2})
    assert merged["training"]["lr"] == 0.5
    assert merged["rl_module"]["model_config"]["fcnet_hiddens"] == [8]
    assert merged["env_runners"]["num_envs_per_env_runner"] == 2
    assert given == before


def test_the_algo_files_own_values_are_found_by_name(algo):
    assert values_of(algo(), ("lr", "fcnet_hiddens")) == {"lr": 3.0e-4, "fcnet_hiddens": [64, 64]}


@pytest.mark.parametrize(
    ("learners", "per_learner", "per_trial", "gpus"),
    [(0, None, 0.0, 0.0), (0, 0.5, 0.0, 0.5), (2, 1, 0.0, 2.0), (2, None, 4.0, 4.0), (2, 2, 4.0, 4.0)],
)
def test_a_trials_gpus_are_named_by_trial_or_by_learner(learners, per_learner, per_trial, gpus):
    algo = {"learners": {"num_learners": learners, "num_gpus_per_learner": per_learner}}
    assert count_gpus(algo, per_trial, "") == gpus


def test_two_numbers_of_gpus_that_differ_are_refused():
    with pytest.raises(ConfigError, match=r"makes 2 GPUs a trial, resources\.trials_per_gpu=1 ") as refused:
        count_gpus({"learners": {"num_learners": 2, "num_gpus_per_learner": 1}}, 1.0, "resources.trials_per_gpu=1")
    assert refused.value.fix == "~algo.learners.num_gpus_per_learner"
