"""An algo file and one sample of the space, to a config that RLlib accepts."""

from __future__ import annotations

import pytest

from rltune.algorithms.build import Build, build_config, import_config_class, make_inputs_absolute
from rltune.envs.spec import EnvSpec
from rltune.errors import ConfigError

CARTPOLE, PENDULUM = EnvSpec("CartPole-v1"), EnvSpec("Pendulum-v1")


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
def test_an_unknown_argument_is_answered_with_rllibs_nearest(algo, path, value, nearest):
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


def test_a_trial_finds_the_dataset_from_its_own_folder(recorded, monkeypatch):
    monkeypatch.chdir(recorded.parent)
    algo = make_inputs_absolute({"name": "bc", "offline_data": {"input_": "data.parquet"}})
    assert algo["offline_data"]["input_"] == str(recorded)
