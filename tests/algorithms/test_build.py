"""An algo file and one sample of the space, to a config that RLlib accepts."""

from __future__ import annotations

import pytest
from builds import make_build

from rltune.algorithms.build import build_config, import_config_class, make_inputs_absolute
from rltune.engine import build_algorithm
from rltune.envs.spec import EnvSpec
from rltune.errors import ConfigError

CARTPOLE, PENDULUM = EnvSpec("CartPole-v1"), EnvSpec("Pendulum-v1")


def test_every_section_and_the_samples_values_reach_rllib(algo):
    made = build_config(make_build(algo(), CARTPOLE), {"lr": 1e-3, "minibatch_size": 64, "gamma": 0.9}, seed=11)
    assert (made.lr, made.minibatch_size, made.gamma, made.lambda_) == (1e-3, 64, 0.9, 0.95)
    assert made.num_envs_per_env_runner == 16
    assert made.model_config["fcnet_activation"] == "tanh"
    assert made.seed == 11
    assert made.env == "CartPole-v1"
    assert made.enable_rl_module_and_learner
    assert made.enable_env_runner_and_connector_v2
    made.validate()


def test_what_rllib_says_of_a_setting_is_logged(algo, caplog):
    """An algorithm of one's own is not in the table: RLlib's own warning is all that tells."""
    config = build_config(make_build(set_in(algo(), "training.model", {"fcnet_hiddens": [8]}), CARTPOLE), {}, 0)
    config.validate()
    assert any("rl_module(model_config=" in record.getMessage() for record in caplog.records)


def test_the_environments_arguments_reach_it_once(algo):
    assert build_config(make_build(algo(), EnvSpec("Pendulum-v1", {"g": 1.0})), {}, 0).env_config == {"g": 1.0}
    wrapper = {"entry_point": "TimeLimit", "kwargs": {"max_episode_steps": 5}}
    wrapped = build_config(make_build(algo(), EnvSpec("Pendulum-v1", {"g": 1.0}, (wrapper,))), {}, 0)
    assert wrapped.env_config == {}, "its name says it all"


def test_a_gpu_share_goes_to_the_learner(algo):
    assert build_config(make_build(algo(), CARTPOLE, gpus=0.25), {}, 0).num_gpus_per_learner == 0.25


def test_copies_step_together_as_asked(algo):
    assert "async" in str(build_config(make_build(algo(), CARTPOLE, "async"), {}, 0).gym_env_vectorize_mode).lower()


def set_in(algo_file, path, value):
    *above, last = path.split(".")
    node = algo_file
    for part in above:
        node = node.setdefault(part, {})
    node[last] = value
    return algo_file


@pytest.mark.slow  # Stock RLlib trains.
@pytest.mark.parametrize("name", ["ppo", "appo"])
def test_a_recurrent_policy_makes_as_many_updates(algo, name):
    """RLlib pads sequences and slices them; their steps count, although a note in its minibatch_utils denies it."""
    updates = {}
    for length in (None, 10, 40):
        file, training = algo(name), {"train_batch_size_per_learner": 400, "minibatch_size": 100, "num_epochs": 4}
        file["training"] |= training
        file["rl_module"]["model_config"] |= {"fcnet_hiddens": [8], "use_lstm": length is not None}
        file["rl_module"]["model_config"] |= {"lstm_cell_size": 8, "max_seq_len": length or 20}
        algorithm = build_algorithm(build_config(make_build(file, CARTPOLE), {}, 0), engine="rllib")
        algorithm.train()
        updates[length] = count_updates(algorithm)
        algorithm.stop()
    assert all(0.7 < updates[length] / updates[None] < 1.5 for length in (10, 40)), updates


def count_updates(algorithm):
    """Count the optimizer's steps."""
    (optimizer,) = (value for _, value in algorithm.learner_group._learner.get_optimizers_for_module("default_policy"))
    return int(max(float(state["step"]) for state in optimizer.state.values()))


@pytest.mark.parametrize(
    ("path", "value", "nearest"),
    [
        ("training.clip_parm", 0.2, "'clip_param'"),
        ("training.lrr", 0.2, "'lr'"),
        ("env_runners.num_env_runer", 1, "'num_env_runners'"),
        ("learners.num_learner", 1, "'num_learners'"),
    ],
)
def test_an_unknown_argument_is_answered_with_rllibs_nearest(algo, path, value, nearest):
    with pytest.raises(ConfigError) as refused:
        build_config(make_build(set_in(algo(), path, value), CARTPOLE), {}, 0)
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


OWN = {
    "env_runners.env_runner_cls": ("own_parts:OwnRunner", "env_runner_cls"),
    "learners.learner_class": ("own_parts:OwnLearner", "learner_class"),
    "training.learner_class": ("own_parts:OwnLearner", "learner_class"),  # as RLlib had it
    "env_runners.env_to_module_connector": ("own_parts:make_mirror", "_env_to_module_connector"),
    "env_runners.module_to_env_connector": ("own_parts:make_mirror", "_module_to_env_connector"),
    "learners.learner_connector": ("own_parts:make_learner_connector", "_learner_connector"),
}


@pytest.mark.parametrize("path", OWN)
def test_a_class_or_function_of_ones_own_reaches_rllib(algo, path):
    target, field = OWN[path]
    made = getattr(build_config(make_build(set_in(algo(), path, target), CARTPOLE), {}, 0), field)
    assert (made.__module__, made.__name__) == tuple(target.split(":"))


@pytest.mark.parametrize(
    ("path", "target", "what"),
    [
        ("env_runners.env_runner_cls", "nosuchmodule:Runner", "ModuleNotFoundError"),
        ("env_runners.env_runner_cls", "own_parts:OwnLearner", "ray.rllib.env.env_runner.EnvRunner"),
        ("learners.learner_class", "os:system", "ray.rllib.core.learner.Learner"),
        ("env_runners.env_to_module_connector", "own_parts:Mirror", "connectors"),
    ],
)
def test_what_is_no_such_part_is_refused(algo, path, target, what):
    with pytest.raises(ConfigError) as refused:
        build_config(make_build(set_in(algo(), path, target), CARTPOLE), {}, 0)
    assert refused.value.what.startswith(f"algo.{path}={target} ")
    assert what in refused.value.what
    assert refused.value.allowed.startswith("package.module:Name")


def test_a_gpu_share_is_divided_among_remote_learners(algo):
    made = build_config(make_build(set_in(algo(), "learners.num_learners", 2), CARTPOLE, gpus=4), {}, 0)
    assert (made.num_learners, made.num_gpus_per_learner, made.num_cpus_per_learner) == (2, 2.0, 1.0)


@pytest.mark.parametrize("replicates", [1, 3, 7])
def test_the_processes_of_several_seeds_fit_into_the_share_of_one(algo, replicates):
    """They work in turn. Ray counts in ten thousandths, so that a seventh would be rounded up."""
    own = set_in(algo(), "learners.num_learners", 2)
    made = build_config(make_build(own, CARTPOLE, gpus=2, replicates=replicates), {}, 0)
    for part in (made.num_cpus_per_env_runner, made.num_cpus_per_learner, made.num_gpus_per_learner):
        assert 0.99 < round(part, 4) * replicates <= 1.0


def test_an_environments_arguments_are_set_for_the_policy_or_for_learning(algo):
    spec = EnvSpec("knobs:Knobs-v0", {"repeat": 1, "weight": 1.0})
    build = make_build(algo("ppo") | {"normalise": ["observations"]}, spec)
    params = {"lr": 1e-3, "env.kwargs.repeat": 4, "train_env.kwargs.weight": 100.0}
    made = build.with_params(params)
    assert made.with_params({}) == made
    assert (made.env.kwargs, made.training_env.kwargs) == (
        {"repeat": 4, "weight": 1.0},
        {"repeat": 4, "weight": 100.0},
    )
    assert made.env.normalise_observations
    assert made.training_env.normalise_observations
    assert made.algo["training"]["lr"] == 1e-3
    alike = build.with_params({"env.kwargs.repeat": 4, "train_env.kwargs.weight": 1.0})
    assert alike.train_env is None
    assert build.with_params({"env.rewards.scale": 0.1}).env.rewards == {"scale": 0.1}
    assert build_config(build, params, 0).env_config == {"repeat": 4, "weight": 100.0}
