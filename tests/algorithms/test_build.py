"""An algo file and one sample of the space, to a config that RLlib accepts."""

from __future__ import annotations

import copy

import pytest
from composing import compose

from rltune.algorithms.arguments import apply_params, list_arguments, locate_argument, values_of
from rltune.algorithms.build import Build, build_config, import_config_class
from rltune.algorithms.preflight import check_corners
from rltune.config.validation import parse_config
from rltune.envs.spec import EnvSpec
from rltune.errors import ConfigError
from rltune.search.space import parse_space

CARTPOLE, PENDULUM = EnvSpec("CartPole-v1"), EnvSpec("Pendulum-v1")


@pytest.fixture(scope="module")
def settings():
    """The composed settings of each algorithm."""
    return {name: parse_config(compose("run", f"algo={name}", "~tuned")) for name in ("ppo", "a2c", "dqn", "sac")}


@pytest.fixture
def algo(settings):
    return lambda name="ppo": copy.deepcopy(settings[name].algo)


# -- where an argument stands -------------------------------------------------------------------------------------


def test_an_argument_is_found_in_whichever_section_it_stands(algo):
    assert locate_argument(algo(), "lr") == ("training", "lr")
    assert locate_argument(algo(), "num_envs_per_env_runner") == ("env_runners", "num_envs_per_env_runner")
    assert locate_argument(algo(), "fcnet_hiddens") == ("rl_module", "model_config", "fcnet_hiddens")
    assert locate_argument(algo("dqn"), "capacity") == ("training", "replay_buffer_config", "capacity")


def test_sections_themselves_and_the_algorithms_name_are_no_arguments(algo):
    assert not {"training", "rl_module", "name", "class"} & set(list_arguments(algo()))


def test_a_name_that_stands_twice_has_to_be_written_with_its_section(algo):
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
    assert refused.value.allowed.startswith("did you mean 'clip_param'?")
    with pytest.raises(ConfigError, match=r"^warm_start\[0\]\.clip_parm"):
        locate_argument(algo(), "clip_parm", "warm_start[0].clip_parm")


def test_a_samples_values_go_to_their_places_and_the_file_stays_as_it_was(algo):
    before = algo()
    given = algo()
    merged = apply_params(given, {"lr": 0.5, "fcnet_hiddens": [8], "num_envs_per_env_runner": 2})
    assert merged["training"]["lr"] == 0.5
    assert merged["rl_module"]["model_config"]["fcnet_hiddens"] == [8]
    assert merged["env_runners"]["num_envs_per_env_runner"] == 2
    assert given == before


def test_the_algo_files_own_values_are_found_by_name(algo):
    assert values_of(algo(), ("lr", "fcnet_hiddens")) == {"lr": 3.0e-4, "fcnet_hiddens": [64, 64]}


# -- RLlib's config -----------------------------------------------------------------------------------------------


def test_every_section_and_the_samples_values_reach_rllib(algo):
    made = build_config(Build(algo(), CARTPOLE), {"lr": 1e-3, "minibatch_size": 64, "gamma": 0.9}, seed=11)
    assert (made.lr, made.minibatch_size, made.gamma, made.lambda_) == (1e-3, 64, 0.9, 0.95)
    assert made.num_envs_per_env_runner == 16
    assert made.model_config["fcnet_activation"] == "tanh"
    assert made.seed == 11
    assert made.env == "CartPole-v1"
    assert made.enable_rl_module_and_learner
    assert made.enable_env_runner_and_connector_v2
    made.validate()


@pytest.mark.parametrize("name", ["ppo", "a2c", "dqn", "sac"])
def test_the_mean_return_follows_the_policy_within_a_few_reports(algo, name):
    """100 episodes, RLlib's default, are half of a CartPole trial: its best checkpoint would be told apart too late."""
    assert build_config(Build(algo(name), CARTPOLE), {}, 0).metrics_num_episodes_for_smoothing == 50


def test_the_environments_arguments_reach_it_once(algo):
    assert build_config(Build(algo(), EnvSpec("Pendulum-v1", {"g": 1.0})), {}, 0).env_config == {"g": 1.0}
    wrapper = {"entry_point": "TimeLimit", "kwargs": {"max_episode_steps": 5}}
    wrapped = build_config(Build(algo(), EnvSpec("Pendulum-v1", {"g": 1.0}, (wrapper,))), {}, 0)
    assert wrapped.env_config == {}, "its name says it all"


def test_a_gpu_share_goes_to_the_learner(algo):
    assert build_config(Build(algo(), CARTPOLE, gpus=0.25), {}, 0).num_gpus_per_learner == 0.25


def test_copies_step_together_as_asked(algo):
    assert "async" in str(build_config(Build(algo(), CARTPOLE, "async"), {}, 0).gym_env_vectorize_mode).lower()


def set_in(algo_file, path, value):
    *above, last = path.split(".")
    node = algo_file
    for part in above:
        node = node.setdefault(part, {})
    node[last] = value
    return algo_file


@pytest.mark.parametrize(
    ("path", "value", "nearest"),
    [
        ("training.clip_parm", 0.2, "'clip_param'"),
        ("training.lrr", 0.2, "'lr'"),
        ("env_runners.num_env_runer", 1, "'num_env_runners'"),
        ("rl_module.model_config.fcnet_hidden", [8], "'fcnet_hiddens'"),
        ("learners.num_learner", 1, "'num_learners'"),
    ],
)
def test_an_argument_that_rllib_does_not_know_is_answered_with_the_nearest(algo, path, value, nearest):
    with pytest.raises(ConfigError) as refused:
        build_config(Build(set_in(algo(), path, value), CARTPOLE), {}, 0)
    assert refused.value.what.startswith(f"algo.{path}=")
    assert nearest in refused.value.allowed
    assert refused.value.fix.endswith(f"~algo.{path}")


@pytest.mark.parametrize(
    ("target", "what"),
    [
        ("ray.rllib.algorithms.ppo:PPOKonfig", "cannot be imported"),
        ("nosuchmodule:PPOConfig", "cannot be imported"),
        ("PPOConfig", "cannot be imported"),
        ("os:system", "is no AlgorithmConfig"),
        ("ray.rllib.algorithms.ppo:PPO", "is no AlgorithmConfig"),
    ],
)
def test_a_class_that_is_no_algorithm_config_is_refused(algo, target, what):
    with pytest.raises(ConfigError) as refused:
        import_config_class({**algo(), "class": target})
    assert f"algo.class={target}" in refused.value.what
    assert what in refused.value.what


# -- before the first trial ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "env"),
    [("ppo", CARTPOLE), ("ppo", PENDULUM), ("a2c", CARTPOLE), ("dqn", CARTPOLE), ("sac", PENDULUM)],
    ids=["ppo", "ppo, continuous", "a2c", "dqn", "sac"],
)
def test_the_spaces_of_conf_can_be_configured_at_all_their_ends(settings, name, env):
    check_corners(Build(settings[name].algo, env), parse_space(settings[name].space))


def test_a_minibatch_that_can_exceed_its_batch_is_found_before_the_first_trial(algo):
    raw = {"train_batch_size_per_learner": ["pow2", 64, 512], "minibatch_size": ["pow2", 64, 256]}
    with pytest.raises(ConfigError) as refused:
        check_corners(Build(algo(), CARTPOLE), parse_space(raw))
    assert "train_batch_size_per_learner=64" in refused.value.what
    assert "minibatch_size=256" in refused.value.what


@pytest.mark.parametrize("values", [["rellu", "tanh"], ["tanh", "rellu"], ["tanh", "rellu", "relu"]])
def test_a_network_that_cannot_be_built_is_found_before_the_first_trial_wherever_it_stands(algo, values):
    with pytest.raises(ConfigError) as refused:
        check_corners(Build(algo(), CARTPOLE), parse_space({"fcnet_activation": ["choice", *values]}))
    assert "rellu" in refused.value.what


def test_a_choice_in_the_middle_that_rllib_refuses_is_found_before_the_first_trial(algo):
    with pytest.raises(ConfigError) as refused:
        check_corners(Build(algo(), CARTPOLE), parse_space({"minibatch_size": ["choice", 64, 4096, 128]}))
    assert "minibatch_size=4096" in refused.value.what


def test_an_algorithm_that_cannot_act_in_the_environment_is_refused_before_the_first_trial(algo):
    with pytest.raises(ConfigError) as refused:
        check_corners(Build(algo("dqn"), PENDULUM), parse_space({"lr": 1e-3}))
    assert "algo=dqn cannot act in env.id=Pendulum-v1" in refused.value.what
    assert "Discrete" in refused.value.allowed


def test_processes_that_a_trials_share_does_not_count_are_refused_before_ray_waits_for_them(settings):
    algo = {"name": "appo", "class": "ray.rllib.algorithms.appo:APPOConfig", "training": {"lr": 1e-3}}
    with pytest.raises(ConfigError, match="num_env_runners=2 by RLlib's default for APPOConfig") as caught:
        check_corners(Build({**algo, "learners": {"num_learners": 0}}, CARTPOLE), parse_space({}))
    assert caught.value.fix == "+algo.env_runners.num_env_runners=0"
    with pytest.raises(ConfigError, match="num_learners=1 by RLlib's default") as caught:
        check_corners(Build({**algo, "env_runners": {"num_env_runners": 0}}, CARTPOLE), parse_space({}))
    assert caught.value.fix == "+algo.learners.num_learners=0"
