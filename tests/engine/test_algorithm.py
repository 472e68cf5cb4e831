"""What a user of a fast algorithm meets: results, seeds, checkpoints, errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from engine_toy import CONFIGS, CountEnv, ppo_config
from ray.rllib.algorithms.dqn import DQN
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.sac import SAC
from ray.tune import register_env

from rltune.engine import build_algorithm
from rltune.engine.sampling.observation_filter import normalise_observations
from rltune.errors import NonFiniteError

STOCK = {"PPO": PPO, "DQN": DQN, "SAC": SAC}


def weights(algorithm: Any) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in algorithm.get_module().parameters()]).clone()


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """The part of a result that a seed determines."""
    return {"env_runners": result["env_runners"], "learners": result["learners"]}


@pytest.mark.parametrize("name", CONFIGS)
def test_train_returns_rllibs_keys(name: str) -> None:
    algorithm = build_algorithm(CONFIGS[name]())
    try:
        assert isinstance(algorithm, STOCK[name])
        assert type(algorithm) is not STOCK[name]
        for _ in range(3):
            result = algorithm.train()
    finally:
        algorithm.stop()
    runners, learner = result["env_runners"], result["learners"]["default_policy"]
    assert runners["num_env_steps_sampled_lifetime"] == result["num_env_steps_sampled_lifetime"] >= 300
    assert runners["episode_return_min"] <= runners["episode_return_mean"] <= runners["episode_return_max"]
    assert runners["num_episodes_lifetime"] >= 1
    assert runners["episode_len_mean"] > 0
    expected = {"PPO": {"policy_loss", "vf_loss", "entropy", "mean_kl_loss"}, "DQN": {"qf_loss"}, "SAC": {"alpha_loss"}}
    assert expected[name] | {"total_loss"} <= set(learner)
    assert all(np.isfinite(value) for value in learner.values())
    assert result["training_iteration"] == 3


def test_returns_are_absent_until_an_episode_has_ended() -> None:
    algorithm = build_algorithm(ppo_config("count", envs=4).environment(env_config={"length": 100_000}))
    result = algorithm.train()
    algorithm.stop()
    assert "episode_return_mean" not in result["env_runners"]
    assert result["env_runners"]["num_episodes_lifetime"] == 0


def test_episode_figures_are_exact() -> None:
    algorithm = build_algorithm(ppo_config("count", envs=2).environment(env_config={"length": 5}))
    result = algorithm.train()["env_runners"]
    algorithm.stop()
    assert (result["episode_return_mean"], result["episode_len_mean"]) == (15.0, 5.0)
    assert result["num_env_steps_sampled_lifetime"] == 256
    assert result["num_episodes_lifetime"] == 256 // 5 - 1  # both environments are inside an episode


@pytest.mark.parametrize("name", CONFIGS)
def test_a_seed_determines_the_results(name: str) -> None:
    def run(seed: int) -> dict[str, Any]:
        algorithm = build_algorithm(CONFIGS[name](seed=seed))
        result = [algorithm.train() for _ in range(2)][-1]
        algorithm.stop()
        return figures(result)

    first, again, other = run(1), run(1), run(2)
    assert first == again
    assert first["learners"] != other["learners"]


@pytest.mark.parametrize("name", CONFIGS)
def test_a_checkpoint_brings_everything_back(name: str, tmp_path: Path) -> None:
    config = CONFIGS[name]()
    normalise_observations(config)
    source = build_algorithm(config)
    source.train(), source.train()
    path = source.save_to_path(tmp_path / "checkpoint")
    target = build_algorithm(config.copy(copy_frozen=False).debugging(seed=9))
    assert not torch.equal(weights(source), weights(target))
    target.restore_from_path(path)
    assert torch.equal(weights(source), weights(target))
    for key, value in (source.observation_stats() or {}).items():
        np.testing.assert_allclose((target.observation_stats() or {})[key], value)
    expected, found = (a.learner_group.get_state()["learner"]["optimizer"] for a in (source, target))
    for optimizer, state in expected.items():
        for index, moments in state["state"]["state"].items():
            for key, value in moments.items():
                np.testing.assert_allclose(found[optimizer]["state"]["state"][index][key], value)
    result = target.train()
    assert result["num_env_steps_sampled_lifetime"] > source.counters["num_env_steps_sampled_lifetime"]
    assert result["training_iteration"] == 3
    source.stop(), target.stop()


def test_a_checkpoint_names_stock_classes(tmp_path: Path) -> None:
    """So that plain RLlib opens it."""
    algorithm = build_algorithm(ppo_config())
    algorithm.train()
    algorithm.save_to_path(tmp_path)
    algorithm.stop()
    for file in tmp_path.rglob("class_and_ctor_args.pkl"):
        content = pickle.loads(file.read_bytes())
        assert content["class"].__module__.startswith("ray."), file
    assert b"rltune" not in (tmp_path / "class_and_ctor_args.pkl").read_bytes()


def test_going_back_to_an_older_state_works() -> None:
    algorithm = build_algorithm(ppo_config())
    algorithm.train()
    state, before = algorithm.get_state(), weights(algorithm)
    algorithm.train()
    assert not torch.equal(weights(algorithm), before)
    algorithm.set_state(state)
    assert torch.equal(weights(algorithm), before)
    algorithm.stop()


def test_the_inference_module_has_the_learners_current_weights() -> None:
    algorithm = build_algorithm(ppo_config())
    algorithm.train()
    obs = torch.randn(5, 4)
    ours = algorithm.get_module().forward_inference({"obs": obs})["action_dist_inputs"]
    learners = algorithm.learner_module.forward_inference({"obs": obs})["action_dist_inputs"]
    algorithm.stop()
    assert torch.equal(ours, learners)


class SpyEnv(CountEnv):
    closed = 0

    def close(self) -> None:
        SpyEnv.closed += 1


def test_stop_closes_the_environments() -> None:
    register_env("spy", lambda config: SpyEnv())
    SpyEnv.closed = 0
    build_algorithm(ppo_config("spy", envs=3)).stop()
    assert SpyEnv.closed == 3


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_loss_that_is_not_finite_ends_the_trial_with_its_reason(name: str) -> None:
    config = CONFIGS[name]("count").environment(env_config={"reward": float("nan")})
    algorithm = build_algorithm(config)
    with pytest.raises(NonFiniteError, match="not finite after"):
        algorithm.train()
    algorithm.stop()
