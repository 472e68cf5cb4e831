"""Where an argument of an algo file stands, and how a sample's values get there."""

from __future__ import annotations

import math

import pytest
from omegaconf import OmegaConf

from rltune.algorithms.arguments import (
    TRAINING_BOUNDS,
    apply_params,
    build_search_space,
    check_argument,
    check_values,
    count_gpus,
    list_arguments,
    locate_argument,
    values_of,
)
from rltune.compose.composing import conf_dir
from rltune.errors import ConfigError
from rltune.search.space import Space


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
    assert refused.value.what.startswith("space.clip_parm:")
    assert "'clip_param'" in refused.value.allowed
    with pytest.raises(ConfigError, match=r"^warm_start\[0\]\.clip_parm"):
        locate_argument(algo(), "clip_parm", "warm_start[0].clip_parm")


def test_an_added_parameter_that_is_misspelt_is_answered_whole(algo):
    """With the name that the algorithm has, and the range that was meant."""
    with pytest.raises(ConfigError, match=r"^space\.learning_rate=") as refused:
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
    with pytest.raises(ConfigError, match=r" 2 GPUs\b.*trials_per_gpu=1 ") as refused:
        count_gpus({"learners": {"num_learners": 2, "num_gpus_per_learner": 1}}, 1.0, "resources.trials_per_gpu=1")
    assert refused.value.fix == "~algo.learners.num_gpus_per_learner"


@pytest.mark.parametrize("name", sorted(TRAINING_BOUNDS))
def test_a_suggested_value_is_accepted_and_a_negative_one_refused(name):
    with pytest.raises(ConfigError, match=f"algo.training.{name}=-1") as refused:
        check_argument(f"algo.training.{name}", -1)
    key, _, suggested = refused.value.fix.partition("=")
    check_argument(key, float(suggested))


@pytest.mark.parametrize(
    ("name", "value", "passes"),
    [
        ("gamma", 1, True),
        ("gamma", 1.0000001, False),
        ("lr", 0, False),
        ("lr", "abc", False),
        ("lr", True, False),
        ("lr", None, True),
        ("lr", [[0, 1e-3], [1000, 0.0]], True),
        ("vf_clip_param", math.inf, True),
        ("entropy_coeff", 0, True),
        ("minibatch_size", 0, False),
        ("argument_of_a_users_own", -1, True),
    ],
)
def test_the_edges_of_the_bounds_of_training(name, value, passes):
    if passes:
        check_argument(f"space.{name}", value)
    else:
        with pytest.raises(ConfigError):
            check_argument(f"space.{name}", value)


@pytest.mark.parametrize("file", sorted(conf_dir().glob("algo/*.yaml")), ids=lambda file: file.stem)
def test_the_values_of_each_algo_file_lie_within_the_bounds(file):
    training = OmegaConf.to_container(OmegaConf.load(file))["training"]
    for name, value in training.items():
        if value != "???":
            check_argument(f"algo.training.{name}", value)


UNREAD = {
    "ppo": {
        "training.model": {"fcnet_hiddens": [256, 256]},
        "training.vf_share_layers": True,
        "training.optimizer": {"type": "sgd"},
        "env_runners.observation_filter": "MeanStdFilter",
        "env_runners.compress_observations": True,
        "environment.clip_rewards": 1.0,
        "rl_module.model_config.lstm_use_prev_action": True,
    },
    "a2c": {"training.vf_share_layers": True},
    "dqn": {
        "training.adam_epsilon": 0.1,
        "training.hiddens": [8],
        "training.noisy": True,
        "training.sigma0": 2.0,
        "training.categorical_distribution_temperature": 5.0,
        "training.model": {"fcnet_hiddens": [8]},
        "training.replay_buffer_config.prioritized_replay_alpha": 0.3,
        "training.replay_buffer_config.storage_unit": "episodes",
    },
    "rainbow": {"training.noisy": True},
    "sac": {
        "training.q_model_config": {"fcnet_hiddens": [8]},
        "training.policy_model_config": {"fcnet_hiddens": [8]},
        "training.optimization_config": {"actor_learning_rate": 1.0},
        "training._use_beta_distribution": True,
        "training._deterministic_loss": True,
        "training.replay_buffer_config.prioritized_replay_beta": 0.3,
    },
    "appo": {"training.use_gae": False, "training.lambda_": 0.1, "training.target_worker_clipping": 9.0},
    "impala": {"training.opt_type": "rmsprop", "training.decay": 0.9},
}


def set_in(algo, path, value):
    *above, last = path.split(".")
    for part in above:
        algo = algo.setdefault(part, {})
    algo[last] = value


@pytest.mark.parametrize(("name", "path"), [(name, path) for name, paths in UNREAD.items() for path in paths])
def test_an_argument_that_changes_nothing_is_refused(algo, name, path):
    typed = algo(name)
    check_values(typed, Space((), {}))
    set_in(typed, path, UNREAD[name][path])
    with pytest.raises(ConfigError) as refused:
        check_values(typed, Space((), {}))
    assert refused.value.key == f"algo.{path}"
    assert refused.value.exit_code == 2
    assert refused.value.allowed
    assert refused.value.fix.endswith(f"~algo.{path}")


def test_a_searched_argument_that_changes_nothing_is_refused(algo):
    typed = algo("dqn")
    typed["training"]["adam_epsilon"] = 1e-8
    with pytest.raises(ConfigError) as refused:
        check_values(typed, build_search_space(typed, {"adam_epsilon": ["loguniform", 1e-8, 1e-1]}))
    assert refused.value.key == "algo.training.adam_epsilon"
    assert refused.value.fix.endswith("~space.adam_epsilon")


def test_an_unknown_replay_setting_is_answered_with_the_nearest(algo):
    typed = algo("dqn")
    typed["training"]["replay_buffer_config"]["capacty"] = 100
    with pytest.raises(ConfigError) as refused:
        check_values(typed, Space((), {}))
    assert "'capacity'" in refused.value.allowed


def test_a_replay_buffer_of_ones_own_has_its_own_settings(algo):
    typed = algo("dqn")
    typed["training"]["replay_buffer_config"] |= {"type": "my_package.buffers.EpisodeBuffer", "half_life": 100}
    check_values(typed, Space((), {}))


@pytest.mark.parametrize(
    ("name", "value", "fix"),
    [
        ("lr", [1e-4, 1e-2], "space.lr=[loguniform,0.0001,0.01]"),
        ("lr", [1e-4, 1e-3, 1e-2], "space.lr=[choice,0.0001,0.001,0.01]"),
        ("gamma", [0.9, 0.99], "space.gamma=[uniform,0.9,0.99]"),
        ("minibatch_size", [64, 256], "space.minibatch_size=[pow2,64,256]"),
        ("num_epochs", [1, 10], "space.num_epochs=[randint,1,10]"),
        ("lr", [], "space.lr=0.0003"),
    ],
)
def test_a_list_without_a_kind_is_answered_with_the_range_that_was_meant(name, value, fix):
    with pytest.raises(ConfigError) as refused:
        check_argument(f"space.{name}", value)
    assert (refused.value.key, refused.value.fix) == (f"space.{name}", fix)
    check_argument(f"space.{name}", [[0, 0.9], [1000, 0.5]])  # This is a schedule.
