"""What is advised in place of a setting that does not exist."""

from __future__ import annotations

import pytest

from rltune.config.advice import advise, advise_option, find_meant, translate

SETTINGS = {
    "seed": 0,
    "budget": {"trials": 4, "env_steps": 1000},
    "algo": {
        "name": "ppo",
        "training": {"lr": 1e-3, "train_batch_size_per_learner": 512},
        "env_runners": {"num_env_runners": 0},
    },
    "space": {"lr": ["uniform", 0.1, 1]},
    "env": {"id": "CartPole-v1", "kwargs": {"size": 4}},
    "objective": {"kind": "return", "direction": "max"},
    "tracking": {"kinds": ["mlflow"]},
    "resources": {"gpus_per_trial": 0},
    "cluster": {"num_gpus": None},
    "output_dir": "outputs",
}


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("trails", "budget.trials"),
        ("budget.trails", "budget.trials"),
        ("lr", "space.lr"),
        ("algo.lr", "space.lr"),
        ("algo.training.lrr", "algo.training.lr"),
        ("algo.num_env_runners", "algo.env_runners.num_env_runners"),
        ("algo.num_workers", "algo.env_runners.num_env_runners"),
        ("train_batch_size", "algo.training.train_batch_size_per_learner"),
        ("env_id", "env.id"),
        ("objective.kinds", "objective.kind"),
        ("env.kwargs.sizes", "env.kwargs.size"),
        ("env.kwargs.lr", None),
        ("novelty", None),
        ("num_gpus", "resources.gpus_per_trial"),
        ("storage_path", "output_dir"),
    ],
)
def test_the_key_that_was_meant_is_found(key, meant):
    assert find_meant(key, SETTINGS) == meant


@pytest.mark.parametrize(
    ("key", "value", "fix"),
    [
        ("num_samples", "8", "budget.trials=8"),
        ("mode", "maximize", "objective.direction=max"),
        ("env_config", "{size: 4}", "'+env.kwargs={size: 4}'"),
        ("env.speed", "4", "+env.kwargs.speed=4, if the environment takes it"),
        ("env.per_copy.port", "[port,5005]", "'+env.per_copy.port=[port,5005]'"),
        ("storage_path", "/sweeps", "output_dir=/sweeps"),
        ("storage_path", "s3://bucket/sweeps", "storage=s3://bucket/sweeps"),
        ("verbose", "1", "leave verbose out"),
        ("novelty", "1", ""),
    ],
)
def test_what_to_type_is_spelled_with_its_value(key, value, fix):
    assert advise(key, value, SETTINGS)[1] == fix


def test_a_command_is_advised_what_it_has():
    allowed, fix = advise("n_eval_episodes", "5", {"policy": None, "episodes": 10})
    assert fix == "episodes=5"
    assert "'episodes'" in allowed
    assert advise("fmt", "onnx", {"format": "onnx", "out": None})[1] == "format=onnx"
    assert advise("env.speed", "4", {"env": {"restarts": None, "max_copies": None}})[1] == ""


def test_another_tools_option_is_translated():
    assert translate("searcher", "optuna") == "searcher=tpe"
    assert translate("searcher", "rf") == "searcher=rf"
    assert advise_option("scheduler", "pbt", ["asha", "none"])[1] == "scheduler=asha"
    assert advise_option("scheduler", "asah", ["asha", "none"])[1] == "scheduler=asha"
    assert advise_option("scheduler", "novelty", ["asha", "none"])[1] == ""
