"""What a user of ``build`` meets: results, fallbacks, seeds, checkpoints, errors."""

from __future__ import annotations

import logging
import pickle
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from engine_toy import CONFIGS, CountEnv, dqn_config, ppo_config
from ray.rllib.algorithms.appo import APPOConfig
from ray.rllib.algorithms.dqn import DQN
from ray.rllib.algorithms.ppo import PPO
from ray.rllib.algorithms.sac import SAC
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.tune import register_env

from rltune.algorithms.a2c import A2CConfig
from rltune.engine import build_algorithm, find_obstacle
from rltune.engine.sampling.observation_filter import normalise_observations
from rltune.errors import ConfigError, NonFiniteError, ResourceError

STOCK = {"PPO": PPO, "DQN": DQN, "SAC": SAC}


@pytest.fixture(autouse=True)
def _known_envs() -> None:
    register_env("count", lambda config: CountEnv(**{k: v for k, v in config.items() if k != "num_envs"}))


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


SUPPORT = Path(__file__).parents[1] / "support"
ALONE = """
import sys, tempfile
import ray
from engine_toy import CONFIGS
from rltune import engine
for make in CONFIGS.values():
    algorithm = engine.build_algorithm(make())
    algorithm.train()
    algorithm.restore_from_path(algorithm.save_to_path(tempfile.mkdtemp()))
    algorithm.stop()
    assert not ray.is_initialized(), make
    assert "torch._dynamo" not in sys.modules, make
print("trained", *CONFIGS)
"""


@pytest.mark.slow
def test_training_starts_no_ray_and_waits_for_no_compiler() -> None:
    """In a process of its own: the one that runs the tests may have both already."""
    ran = subprocess.run([sys.executable, "-c", ALONE], cwd=SUPPORT, capture_output=True, text=True, timeout=300)
    assert ran.stdout.split() == ["trained", *CONFIGS], ran.stderr


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
def test_the_same_seed_gives_the_same_results_and_another_one_does_not(name: str) -> None:
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


def test_a_checkpoint_names_stock_classes_so_that_plain_rllib_opens_it(tmp_path: Path) -> None:
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


def test_several_algorithms_with_other_networks_build_quickly_one_after_another() -> None:
    build_algorithm(ppo_config()).stop()
    start = time.thread_time()  # of this thread: Ray's may be at work beside it
    for width in (8, 24, 40, 56, 72):
        config = ppo_config().rl_module(model_config={"fcnet_hiddens": [width], "vf_share_layers": True})
        algorithm = build_algorithm(config)
        assert algorithm.get_module().pi.net.mlp[0].in_features == width
        algorithm.stop()
    assert (time.thread_time() - start) / 5 < 0.5  # 0.05 s is usual


class SpyEnv(CountEnv):
    closed = 0

    def close(self) -> None:
        SpyEnv.closed += 1


def test_stop_closes_the_environments() -> None:
    register_env("spy", lambda config: SpyEnv())
    SpyEnv.closed = 0
    build_algorithm(ppo_config("spy", envs=3)).stop()
    assert SpyEnv.closed == 3


class EpisodeCallback(RLlibCallback):
    def on_episode_end(self, **kwargs: Any) -> None:
        """A user's."""


UNSUPPORTED: dict[str, tuple[str, Any]] = {
    "lstm": ("recurrent", lambda c: c.rl_module(model_config={"use_lstm": True})),
    "callback": ("callbacks that see episodes", lambda c: c.callbacks(EpisodeCallback)),
    "callback function": ("callbacks that see episodes", lambda c: c.callbacks(on_episode_step=print)),
    "evaluation": ("evaluation", lambda c: c.evaluation(evaluation_interval=1)),
    "learners": ("remote learners", lambda c: c.learners(num_learners=1)),
    "connector": ("env-to-module connector", lambda c: c.env_runners(env_to_module_connector=lambda *a: [])),
    "complete episodes": ("complete_episodes", lambda c: c.env_runners(batch_mode="complete_episodes")),
    "image bytes": ("observation space Box of uint8", lambda c: c.environment("bytes")),
    "tuple": ("action space MultiDiscrete", lambda c: c.environment("multi")),
}


def _box_env(obs: Any, action: Any) -> Any:
    env = CountEnv()
    env.observation_space, env.action_space = obs, action
    return env


@pytest.mark.parametrize("case", UNSUPPORTED)
def test_an_unsupported_feature_falls_back_with_one_line_that_names_it(
    case: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    register_env("bytes", lambda c: _box_env(gym.spaces.Box(0, 255, (3,), np.uint8), gym.spaces.Discrete(2)))
    register_env("multi", lambda c: _box_env(CountEnv().observation_space, gym.spaces.MultiDiscrete([2, 2])))
    feature, change = UNSUPPORTED[case]
    config = change(ppo_config())
    assert feature in (find_obstacle(config) or "")
    monkeypatch.setattr(type(config), "build_algo", lambda self: "stock")
    caplog.clear()
    with caplog.at_level(logging.WARNING, "rltune.engine"):
        assert build_algorithm(config) == "stock"
    lines = [record.getMessage() for record in caplog.records if record.name == "rltune.engine"]
    assert len(lines) == 1
    assert feature in lines[0]


def test_supported_configs_have_no_reason_to_fall_back() -> None:
    for make in CONFIGS.values():
        assert find_obstacle(make()) is None
    assert find_obstacle(A2CConfig().environment("CartPole-v1")) is None
    assert find_obstacle(normalise_observations(ppo_config())) is None
    assert "APPO" in (find_obstacle(APPOConfig().environment("CartPole-v1")) or "")


def test_kind_rllib_forces_stock_and_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = ppo_config()
    monkeypatch.setattr(type(config), "build_algo", lambda self: "stock")
    assert build_algorithm(config, "rllib") == "stock"
    with pytest.raises(ConfigError, match="did you mean 'fast'"):
        build_algorithm(config, "fats")


@pytest.mark.parametrize("name", ["PPO", "DQN"])
def test_a_loss_that_is_not_finite_ends_the_trial_with_its_reason(name: str) -> None:
    config = CONFIGS[name]("count").environment(env_config={"reward": float("nan")})
    algorithm = build_algorithm(config)
    with pytest.raises(NonFiniteError, match="not finite after"):
        algorithm.train()
    algorithm.stop()


def test_a_replay_memory_that_cannot_fit_is_refused_before_it_is_taken() -> None:
    config = dqn_config(replay_buffer_config={"type": "EpisodeReplayBuffer", "capacity": 10**12})
    with pytest.raises(ResourceError) as caught:
        build_algorithm(config)
    assert "capacity=1000000000000 needs" in caught.value.what
    assert caught.value.fix.startswith("training.replay_buffer_config.capacity=")


def test_stored_replay_memory_comes_back(tmp_path: Path) -> None:
    config = dqn_config(store_buffer_in_checkpoints=True)
    source, target = build_algorithm(config), build_algorithm(config)
    source.train()
    target.restore_from_path(source.save_to_path(tmp_path / "x"))
    np.testing.assert_array_equal(target.replay.rows[:200], source.replay.rows[:200])
    assert target.replay.size == source.replay.size
    source.stop(), target.stop()
