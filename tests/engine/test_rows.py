"""Rows of bytes: images beside numbers, trained by the engine as stock RLlib's networks see them."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces as S

from rltune.algorithms.build import build_config
from rltune.engine import build_algorithm
from rltune.engine.algorithm import FastAlgorithm
from rltune.engine.off_policy.replay import Replay
from rltune.engine.off_policy.transitions import NUMBERS, Steps
from rltune.engine.sampling import env_pickle
from rltune.envs.facts import EnvFacts
from rltune.envs.observations import make_layout
from rltune.envs.spec import EnvSpec
from rltune.policies.bundle_reader import BundlePolicy
from rltune.policies.bundle_writer import write_bundle
from tests.support.builds import make_build

SPACE = S.Dict(
    {"camera": S.Box(0, 255, (9, 10, 3), np.uint8), "goal": S.Box(-1, 1, (2,)), "kind": S.Discrete(3, start=1)}
)
PPO = {"train_batch_size_per_learner": 40, "minibatch_size": 20, "num_epochs": 2}
DQN = {
    "train_batch_size_per_learner": 8,
    "num_steps_sampled_before_learning_starts": 20,
    "n_step": 2,
    "replay_buffer_config": {"type": "PrioritizedEpisodeReplayBuffer", "capacity": 60, "alpha": 0.6, "beta": 0.4},
}
ALGOS: dict[str, Any] = {"ppo": PPO, "dqn": DQN}


class Room(gymnasium.Env[Any, Any]):
    """Each of its observations is another; the goal has the reward, and the number of the step."""

    observation_space, action_space = SPACE, S.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        obs = self._look()
        return obs, float(obs["goal"][0]), self.steps == 7, False, {}

    def _look(self) -> Any:
        rng = self.np_random
        camera = rng.integers(0, 256, SPACE["camera"].shape).astype(np.uint8)
        goal = np.float32([rng.uniform(-1, 1), self.steps / 10])
        return {"kind": int(rng.integers(1, 4)), "camera": camera, "goal": goal}


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the config of an algorithm in the room."""
    entry = gymnasium.envs.registration.EnvSpec("Room-v0", Room)
    monkeypatch.setitem(gymnasium.registry, "Room-v0", entry)

    def make(name: str, space: Any = SPACE, **model: Any) -> Any:
        monkeypatch.setattr(Room, "observation_space", space)
        algo = {
            "name": name,
            "class": f"ray.rllib.algorithms.{name}:{name.upper()}Config",
            "training": ALGOS[name],
            "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 2},
            "rl_module": {"model_config": {"fcnet_hiddens": [16], "head_fcnet_hiddens": [8], **model}},
            "reporting": {"min_time_s_per_iteration": 0, "min_sample_timesteps_per_iteration": 40},
        }
        return build_config(make_build(algo, EnvSpec("Room-v0"), facts=EnvFacts(space, Room.action_space)), {}, 0)

    return make


def look(count: int) -> list[Any]:
    env = Room()
    return [env.reset(seed=seed)[0] for seed in range(count)]


@pytest.mark.parametrize("name", ALGOS)
def test_an_image_beside_numbers_is_trained_by_the_engine(make: Any, name: str, tmp_path: Path) -> None:
    algorithm = build_algorithm(make(name))
    assert isinstance(algorithm, FastAlgorithm)
    before = torch.cat([weights.flatten() for weights in algorithm.learner_module.parameters()]).clone()
    for _ in range(3):
        algorithm.train()
    after = torch.cat([weights.flatten() for weights in algorithm.learner_module.parameters()])
    assert not torch.equal(before, after)
    module, layout, observations = algorithm.get_module(), make_layout(SPACE), look(20)
    write_bundle(module, tmp_path, info={}, observation_space=SPACE, action_space=Room.action_space)
    policy = BundlePolicy.load(tmp_path)
    rows = np.stack([layout.encode(obs) for obs in observations])
    with torch.no_grad():
        views, packed = (
            module.forward_inference({"obs": torch.from_numpy(each)}) for each in (layout.view(rows), rows)
        )
        ours = policy.network(torch.from_numpy(layout.view(rows)))
    key = "actions" if name == "dqn" else "action_dist_inputs"
    assert torch.equal(views[key], packed[key]), "rows and what stock RLlib sees of them are the same to a network"
    chosen = views[key] if name == "dqn" else views[key].argmax(1)
    assert [int(policy.act(obs)) for obs in observations] == chosen.tolist()
    assert policy.act(policy.stack(observations)).tolist() == chosen.tolist()
    if name == "ppo":
        torch.testing.assert_close(ours, views[key])
    algorithm.stop()


@pytest.mark.parametrize("name", ALGOS)
def test_a_resumed_training_of_images_goes_on_bit_for_bit(
    make: Any, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env_pickle, "KNOWN_PACKAGES", {*env_pickle.KNOWN_PACKAGES, "tests"})
    one, other = build_algorithm(make(name)), build_algorithm(make(name))
    one.train()
    (tmp_path / "replay").mkdir()
    other.restore_from_path(one.save_to_path(tmp_path / "state"))
    if name == "dqn":
        one.save_replay(tmp_path / "replay")
        assert other.load_replay(tmp_path / "replay")
    for _ in range(3):
        results = [algorithm.train()["learners"]["default_policy"] for algorithm in (one, other)]
        assert results[0] == results[1]
    one.stop(), other.stop()


def test_the_replay_memory_has_each_image_once(make: Any) -> None:
    algorithm: Any = build_algorithm(make("dqn"))
    replay, width = algorithm.replay, make_layout(SPACE).width
    for _ in range(8):
        algorithm.train()
    assert replay.size == replay.capacity == 60
    layout, gamma = make_layout(SPACE), algorithm.config.gamma
    lengths = set()
    for _ in range(50):
        batch = replay.sample()
        assert batch.obs.dtype == batch.after.dtype == np.uint8
        goals, then = layout.numbers(batch.obs)[:, :2], layout.numbers(batch.after)[:, :2]
        steps = np.rint(10 * (then[:, 1] - goals[:, 1]))
        assert set(steps) <= {1, 2}, "both observations are of one episode"
        ended = np.rint(10 * then[:, 1]) == 7
        np.testing.assert_allclose(batch.rows[:, -1], np.where(ended, 0, gamma**steps), rtol=1e-6)
        one = steps == 1
        np.testing.assert_allclose(batch.rows[one, -2], then[one, 0])
        lengths |= set(steps)
    assert lengths == {1, 2}
    # An episode of seven steps has eight observations, and some transitions are not complete yet.
    assert len(np.unique(replay.rows[:, :2])) <= 60 + 60 // 7 + 8
    assert replay.num_bytes < 90 * width
    algorithm.stop()


def test_the_memory_of_a_replay_of_images_is_told_first(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        replay = Replay(100_000, 5, 32, np.random.default_rng(0), frame_size=84 * 84 * 4)
    assert "2.824 GB" in caplog.text
    assert replay.frames is not None
    assert replay.num_bytes == 0


def test_short_episodes_get_more_room_for_images() -> None:
    replay, number = Replay(50, 5, 8, np.random.default_rng(0), frame_size=4, num_recent=2), 0
    for _ in range(300):  # Episodes of one step have two observations.
        frames = np.full((2, 4), number // 2 % 256, np.uint8)
        frames[1] += 1
        rows = np.array([[number, number + 1, 0, 1, 0]], np.float32) % NUMBERS
        replay.add(Steps(rows, frames, number % NUMBERS))
        number += 2
    batch: Any = replay.sample()
    assert np.array_equal(batch.obs + np.uint8(1), batch.after)
    assert len(np.unique(replay.rows[:, :2])) == 100


def test_each_env_runner_numbers_its_own_images() -> None:
    replay = Replay(6, 5, 8, np.random.default_rng(0), frame_size=4, num_recent=2)
    for number in range(0, 200, 3):
        for source in (1, 2):
            frames = np.full((3, 4), source, np.uint8)
            rows = np.array([[number, number + 1, source, 1, 0], [number + 1, number + 2, source, 1, 0]], np.float32)
            replay.add(Steps(rows, frames, number, source))
    batch: Any = replay.sample()
    assert np.array_equal(batch.obs[:, 0], batch.rows[:, 2])
    assert np.array_equal(batch.after[:, 0], batch.rows[:, 2])


@pytest.mark.parametrize("name", ALGOS)
def test_an_env_runner_sends_each_image_once_as_bytes(make: Any, name: str) -> None:
    algorithm: Any = build_algorithm(make(name))
    runner, width = algorithm.env_runner_group.local_env_runner, make_layout(SPACE).width
    if name == "ppo":
        sent: Any = runner.collect(140)
        steps = sent.num_steps
    else:
        sent, steps, *_ = runner.collect_transitions(runner.module.get_state(), None, 140, 0)
    # Of seven steps an episode has eight observations; numbers, flags and the first observations are the rest.
    assert len(pickle.dumps(sent)) / steps < 8 / 7 * width + 80
    algorithm.stop()


class Signs(gymnasium.Env[Any, Any]):
    """A step is worth 1 if the action is 1 where exactly one of the image's bright half and the goal says so.

    Args:
        blind: A leaf that is always zero.
    """

    observation_space = S.Dict({"camera": S.Box(0, 255, (8, 8, 1), np.uint8), "goal": S.Box(-1, 1, (1,))})
    action_space = S.Discrete(2)

    def __init__(self, blind: str = "") -> None:
        self._blind = blind

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._look(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        reward = float(action == self._right)
        return self._look(), reward, False, self.steps == 16, {}

    def _look(self) -> Any:
        is_left, is_up = self.np_random.integers(0, 2, 2)
        self._right = int(is_left != is_up)
        camera = np.zeros((8, 8, 1), np.uint8)
        camera[:, :4] = 255 * is_left
        camera[:, 4:] = 255 * (1 - is_left)
        obs = {"camera": camera, "goal": np.float32([2 * is_up - 1])}
        return {name: part * 0 if name == self._blind else part for name, part in obs.items()}


@pytest.mark.slow
def test_a_task_of_camera_and_goal_needs_both(monkeypatch: pytest.MonkeyPatch) -> None:
    returns = {}
    for blind in ("", "camera", "goal"):
        entry = gymnasium.envs.registration.EnvSpec("Signs-v0", Signs, kwargs={"blind": blind})
        monkeypatch.setitem(gymnasium.registry, "Signs-v0", entry)
        training = {"train_batch_size_per_learner": 512, "minibatch_size": 128, "num_epochs": 8, "lr": 3e-3}
        model = {"fcnet_hiddens": [32], "conv_filters": [[8, 4, 2]], "vf_share_layers": False}
        algo = {
            "name": "ppo",
            "class": "ray.rllib.algorithms.ppo:PPOConfig",
            "training": {**training, "gamma": 0.5, "use_kl_loss": False},
            "env_runners": {"num_env_runners": 0, "num_envs_per_env_runner": 16},
            "rl_module": {"model_config": model},
            "reporting": {"min_time_s_per_iteration": 0},
        }
        facts = EnvFacts(Signs.observation_space, Signs.action_space)
        algorithm = build_algorithm(build_config(make_build(algo, EnvSpec("Signs-v0"), facts=facts), {}, 0))
        for _ in range(12):
            result = algorithm.train()
        returns[blind] = result["env_runners"]["episode_return_mean"]
        algorithm.stop()
    assert returns[""] > 14, "of 16"
    assert max(returns["camera"], returns["goal"]) < 10, "as by chance"
