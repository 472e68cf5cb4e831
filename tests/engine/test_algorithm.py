"""What a user of a fast algorithm meets: results, seeds, checkpoints, errors."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.utils import EzPickle
from ray.rllib.algorithms.dqn import DQN
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.sac import SAC
from ray.tune import register_env

from rltune.algorithms.a2c import A2CConfig
from rltune.algorithms.rllib_env import Creator
from rltune.engine import build_algorithm
from rltune.engine.sampling.observation_filter import normalise_observations
from rltune.envs.spec import EnvSpec
from rltune.errors import Cause, GuestError, NonFiniteError
from tests.engine.engine_toy import CONFIGS, CountEnv, ppo_config

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


@pytest.mark.slow
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
    expected, restored = (a.learner_group.get_state()["learner"]["optimizer"] for a in (source, target))
    np.testing.assert_equal(restored, expected)
    np.testing.assert_equal(target.engine_state(), source.engine_state())
    result = target.train()
    assert result["num_env_steps_sampled_lifetime"] > source.counters["num_env_steps_sampled_lifetime"]
    assert result["training_iteration"] == 3
    source.stop(), target.stop()


@pytest.mark.parametrize("name", CONFIGS)
def test_restored_generators_are_not_those_of_the_seed(name: str, tmp_path: Path) -> None:
    """A loop that is built after they were set has new ones."""

    def read_generators(algorithm: Any) -> dict[str, Any]:
        sampling = algorithm.env_runner.sampling_state()
        return {"rng": sampling["rng"], "actions": sampling["noise"], **algorithm.engine_state()}

    source = build_algorithm(CONFIGS[name]())
    begun = read_generators(source)
    source.train()
    kept = read_generators(source)
    source.save_to_path(tmp_path)
    target = build_algorithm(CONFIGS[name]())
    target.restore_from_path(tmp_path)
    restored = read_generators(target)
    source.stop(), target.stop()
    for key in {"PPO": ["rng", "actions", "shuffle"], "DQN": ["rng"], "SAC": ["rng", "actions", "noise"]}[name]:
        np.testing.assert_equal(restored[key], kept[key])
        with pytest.raises(AssertionError):
            np.testing.assert_equal(begun[key], kept[key])


def test_schedules_go_on_where_they_stood(tmp_path: Path) -> None:
    config = ppo_config(lr=[[0, 1e-3], [1000, 0.0]], entropy_coeff=[[0, 0.1], [1000, 0.0]])
    source = build_algorithm(config)
    source.train(), source.train()
    source.save_to_path(tmp_path)
    target = build_algorithm(config)
    target.restore_from_path(tmp_path)
    assert (target.loop.lr, target.loop.coefficients()) == (source.loop.lr, source.loop.coefficients())
    assert source.loop.lr == pytest.approx(5e-4, rel=0.05)
    source.stop(), target.stop()


RATES = {"PPO": ("lr",), "DQN": ("lr",), "SAC": ("actor_lr", "critic_lr", "alpha_lr")}


@pytest.mark.parametrize("rate", [0.0, [[0, 1e-3], [100, 0.0]]], ids=["number", "schedule"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_restored_trial_learns_at_its_own_rate(name: str, rate: Any, tmp_path: Path) -> None:
    """The checkpoint is of a trial with another rate. At a rate of zero nothing changes."""
    source = build_algorithm(CONFIGS[name]())
    source.train(), source.train()
    target = build_algorithm(CONFIGS[name](**dict.fromkeys(RATES[name], rate)))
    target.restore_from_path(source.save_to_path(tmp_path))
    target.train(), target.train()
    assert target.learner_stats, "it has learned"
    assert torch.equal(weights(target), weights(source))
    source.stop(), target.stop()


def test_one_component_can_be_restored_alone(tmp_path: Path) -> None:
    """As RLlib allows; the rest stays as it is."""
    source, target = build_algorithm(ppo_config()), build_algorithm(ppo_config(seed=9))
    source.train(), target.train(), target.train()
    kept = target.engine_state()
    source.save_to_path(tmp_path)
    target.restore_from_path(
        tmp_path / "learner_group" / "learner" / "rl_module", component="learner_group/learner/rl_module"
    )
    assert torch.equal(weights(source), weights(target))
    np.testing.assert_equal(target.engine_state(), kept)
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


class BrokenEnv(CountEnv):
    """Observes what is no number from its second episode on."""

    def __init__(self, is_continuous: bool) -> None:
        super().__init__(length=20)
        if is_continuous:
            self.action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def step(self, action: Any) -> Any:
        obs, *rest = super().step(action)
        return np.full_like(obs, np.nan) if self.episode > 0 else obs, *rest


@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("name", CONFIGS)
def test_observations_that_are_no_numbers_end_the_trial(name: str, normalise: bool) -> None:
    register_env("broken", lambda config: BrokenEnv(is_continuous=name == "SAC"))
    config = CONFIGS[name]("broken")
    algorithm = build_algorithm(normalise_observations(config) if normalise else config)
    with pytest.raises(GuestError, match="observation") as refused:
        algorithm.train()
    assert refused.value.cause == Cause.OBSERVATION
    algorithm.stop()


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_loss_that_is_not_finite_ends_the_trial_with_its_reason(name: str) -> None:
    config = CONFIGS[name]("count").environment(env_config={"reward": 1e300})
    algorithm = build_algorithm(config)
    with pytest.raises(NonFiniteError):
        algorithm.train()
    algorithm.stop()


def a2c_config(env: str, envs: int, seed: int = 0) -> Any:
    config = A2CConfig().environment(env).env_runners(num_env_runners=0, num_envs_per_env_runner=envs)
    return config.training(train_batch_size_per_learner=96).debugging(seed=seed)


INTERRUPTED = {
    "PPO": lambda seed=0: ppo_config("shaped", envs=3, seed=seed),
    "A2C": lambda seed=0: a2c_config("shaped", envs=3, seed=seed),
    "native": lambda seed=0: ppo_config("CartPole-v1", envs=12, seed=seed),
}


@pytest.mark.slow  # Each is trained twice.
@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_interrupted_run_ends_as_an_uninterrupted_one(name: str, tmp_path: Path) -> None:
    """Bit for bit, the reports too: in the middle of episodes, with observations and rewards normalised."""
    spec = EnvSpec("Pendulum-v1", rewards={"normalise": True})
    register_env("shaped", Creator(spec))
    whole, first = (build_algorithm(normalise_observations(INTERRUPTED[name]())) for _ in range(2))
    results = [figures(whole.train()) for _ in range(4)]
    first.train(), first.train()
    first.save_to_path(tmp_path)
    first.stop()
    second = build_algorithm(normalise_observations(INTERRUPTED[name](seed=9)))
    second.restore_from_path(tmp_path)
    assert [figures(second.train()) for _ in range(2)] == results[2:]
    assert torch.equal(weights(whole), weights(second))
    whole.stop(), second.stop()


class NoisyEnv(CountEnv, EzPickle):
    """Draws a number when it is seeded; its pickle has no state."""

    def __init__(self) -> None:
        super().__init__()
        EzPickle.__init__(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        obs = super().reset(seed=seed)
        if seed is not None:
            self.first = float(self.np_random.random())
        return obs


def test_episodes_that_cannot_be_kept_begin_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Not with those of the trial's start, which a seed alone would give again."""
    register_env("noisy", lambda config: NoisyEnv())
    config = ppo_config("noisy", envs=2)
    source = build_algorithm(config)
    source.train()
    source.save_to_path(tmp_path)
    begun = [env.unwrapped.first for env in source.env_runner.env.envs]
    starts = []
    for _ in range(2):
        target = build_algorithm(config)
        with caplog.at_level("WARNING"):
            target.restore_from_path(tmp_path)
        assert "NoisyEnv" in caplog.text
        target.train()
        starts.append([env.unwrapped.first for env in target.env_runner.env.envs])
        target.stop()
    source.stop()
    assert starts[0] == starts[1], "the same seed resumes alike"
    assert len({*begun, *starts[0]}) == 4
