"""The array code against slow, obvious versions of itself."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from engine_toy import CountEnv, ppo_config
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from ray.rllib.utils.spaces.space_utils import unsquash_action
from ray.tune import register_env

from rltune.engine.features import UnsupportedError
from rltune.engine.off_policy.replay import Replay, SumTree
from rltune.engine.off_policy.transitions import RowLayout, Stepper, TransitionPacker
from rltune.engine.on_policy.advantages import compute_advantages
from rltune.engine.on_policy.rollout import Collector, Rollout
from rltune.engine.sampling.action_distributions import (
    CategoricalActions,
    GaussianActions,
    SquashedGaussianActions,
    make_actions,
)
from rltune.engine.sampling.observation_filter import RunningMoments
from rltune.engine.sampling.vector_envs import SyncEnvs, VectorEnvs, make_envs

RNG = np.random.default_rng(0)
SEEN: list[tuple[int, int]] = []


def create_indexed(config: Any) -> CountEnv:  # at module level: Ray's registry pickles closures by value
    SEEN.append((config["length"], config.vector_index))
    return CountEnv(length=config["length"])


def collector(envs: Any, normaliser: RunningMoments | None = None) -> Collector:
    actions = make_actions(envs.single_action_space, envs.num_envs, np.random.default_rng(0), ppo_config())
    return Collector(envs, actions, lambda obs: np.zeros((len(obs), 2), np.float32), normaliser=normaliser, seed=0)


# ---- environments ---------------------------------------------------------------------------------------


def test_a_step_after_an_episodes_end_resets_and_is_not_counted() -> None:
    rollout = collector(SyncEnvs(lambda i: CountEnv(length=2), 1)).collect(4)
    # obs: start, 1, 2 (last one of the episode), start of the next, 1, 2
    np.testing.assert_array_equal(rollout.obs[:, 0, 1], [0, 1, 2, 0, 1, 2])
    np.testing.assert_array_equal(rollout.valid[:, 0], [True, True, False, True, True])
    np.testing.assert_array_equal(rollout.rewards[:, 0], [1, 2, 0, 1, 2])
    assert rollout.num_steps == 4
    assert rollout.episodes == [(3.0, 2), (3.0, 2)]


def test_an_episode_runs_on_through_the_next_rollout() -> None:
    source = collector(SyncEnvs(lambda i: CountEnv(length=5), 1))
    assert source.collect(3).episodes == []
    second = source.collect(4)
    np.testing.assert_array_equal(second.obs[:, 0, 1], [3, 4, 5, 0, 1, 2])
    assert second.episodes == [(15.0, 5)]


@pytest.mark.parametrize("mode", ["native", "async", "vector"])
def test_vector_environments_follow_the_same_contract(mode: str) -> None:
    config = ppo_config("CartPole-v1", envs=12 if mode == "native" else 2)
    if mode != "native":
        config.env_runners(gym_env_vectorize_mode="async" if mode == "async" else "vector_entry_point")
    envs = make_envs(config)
    try:
        assert isinstance(envs, VectorEnvs)
        rollout = collector(envs).collect(400)
    finally:
        envs.close()
    over = rollout.terminated | rollout.truncated
    assert over.any()
    np.testing.assert_array_equal(rollout.valid[1:], ~over[:-1])
    assert (rollout.rewards[~rollout.valid] == 0).all()
    assert all(reward == length for reward, length in rollout.episodes)
    starts = rollout.obs[1:][~rollout.valid]
    assert (np.abs(starts) <= 0.05).all()


def test_few_environments_or_foreign_arguments_are_stepped_one_by_one() -> None:
    assert isinstance(make_envs(ppo_config(envs=2)), SyncEnvs)
    unknown = ppo_config(envs=16).environment(env_config={"render_mode": None, "max_episode_steps": 7})
    native = make_envs(unknown)
    assert isinstance(native, VectorEnvs)
    assert max(length for _, length in collector(native).collect(500).episodes) <= 7


def test_a_registered_environment_receives_its_config_and_index() -> None:
    register_env("indexed", create_indexed)
    SEEN.clear()
    make_envs(ppo_config("indexed", envs=3).environment(env_config={"length": 4})).close()
    assert SEEN == [(4, 0), (4, 1), (4, 2)]


# ---- advantages -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("envs", [1, 3, 16])
@pytest.mark.parametrize("truncate", [False, True])
def test_advantages_equal_rllibs_on_each_episode(envs: int, truncate: bool) -> None:
    rollout = collector(SyncEnvs(lambda i: CountEnv(length=3 + i % 4, truncate=truncate), envs)).collect(40 * envs)
    values = RNG.normal(size=rollout.obs.shape[:2]).astype(np.float32)
    found = compute_advantages(rollout, values, 0.9, 0.7)
    for env in range(envs):
        start, steps = 0, len(rollout.rewards)
        for step in range(steps):
            if not rollout.valid[step, env]:
                start = step + 1
                continue
            ended = bool(rollout.terminated[step, env] or rollout.truncated[step, env])
            if not ended and step < steps - 1:
                continue
            span = slice(start, step + 1)
            flags = np.zeros(step + 2 - start)
            terminated, cut = flags.copy(), flags.copy()
            terminated[-2] = rollout.terminated[step, env]
            cut[-2] = not rollout.terminated[step, env]  # truncated, or the rollout ends inside the episode
            targets = compute_value_targets(
                values[start : step + 2, env],
                np.append(rollout.rewards[span, env], 0.0),
                terminated,
                cut,
                0.9,
                0.7,
            )[:-1]
            np.testing.assert_allclose(found[span, env] + values[span, env], targets, atol=1e-4)


def test_a_termination_has_no_value_and_a_truncation_that_of_its_last_observation() -> None:
    shape = (1, 1)
    values = np.array([[0.0], [10.0]], np.float32)

    def single(terminated: bool, truncated: bool) -> float:
        flags = (np.full(shape, terminated), np.full(shape, truncated))
        ones = np.ones(shape, np.float32)
        rollout = Rollout(np.zeros((2, 1, 1)), ones, ones, ones, *flags, np.ones(shape, np.bool_), [])
        return float(compute_advantages(rollout, values, 0.5, 1.0)[0, 0])

    assert single(True, False) == 1.0
    assert single(False, True) == 6.0


# ---- actions --------------------------------------------------------------------------------------------


def test_categorical_actions_come_with_their_probabilities() -> None:
    actions = CategoricalActions(gym.spaces.Discrete(3), 1000, np.random.default_rng(1))
    logits = np.tile(np.array([0.0, 1.0, -1.0], np.float32), (1000, 1))
    drawn = np.concatenate([actions.sample(logits) for _ in range(60)])
    expected = torch.softmax(torch.tensor([0.0, 1.0, -1.0]), 0).numpy()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / len(drawn), expected, atol=0.01)
    assert (actions.best(logits) == 1).all()


def test_gaussian_actions_reach_the_environment_as_rllib_sends_them() -> None:
    space = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
    actions = GaussianActions(space, 500, np.random.default_rng(1), ppo_config())
    inputs = np.tile(np.array([0.3, -0.4, np.log(0.5), np.log(2.0)], np.float32), (500, 1))
    drawn = np.concatenate([actions.sample(inputs) for _ in range(60)])
    np.testing.assert_allclose(drawn.mean(0), [0.3, -0.4], atol=0.03)
    np.testing.assert_allclose(drawn.std(0), [0.5, 2.0], atol=0.03)
    np.testing.assert_allclose(actions.for_env(drawn[:50]), [unsquash_action(a, space) for a in drawn[:50]], atol=1e-6)


@pytest.mark.parametrize("log_std", [-8.0, 0.0, 3.0, 200.0])
def test_squashed_actions_are_spread_as_rllibs_distribution_says(log_std: float) -> None:
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    actions = SquashedGaussianActions(space, 500, np.random.default_rng(1), ppo_config())
    inputs = np.tile(np.array([0.3, -0.4, log_std, log_std], np.float32), (500, 1))
    noise = np.random.default_rng(1).standard_normal((500, 2), np.float32)
    theirs = TorchSquashedGaussian.from_logits(torch.from_numpy(inputs))._dist
    expected = torch.tanh(theirs.loc + theirs.scale * torch.from_numpy(noise)).numpy()
    np.testing.assert_allclose(actions.sample(inputs), expected, atol=1e-6)


def test_spaces_that_arrays_do_not_serve_are_named() -> None:
    with pytest.raises(UnsupportedError, match="start at 1"):
        make_actions(gym.spaces.Discrete(3, start=1), 1, RNG, ppo_config())


# ---- normalisation --------------------------------------------------------------------------------------


def test_running_moments_are_those_of_everything_seen_and_survive_rllibs_filter() -> None:
    moments = RunningMoments((3,), 4)
    data = RNG.normal([1.0, -5.0, 300.0], [1.0, 0.1, 50.0], size=(700, 4, 3))
    out = np.zeros((4, 3), np.float32)
    for raw in data:
        moments(raw, out)
    stats, flat = moments.stats(), data.reshape(-1, 3).astype(np.float32)
    np.testing.assert_allclose(stats["mean"], flat.mean(0), rtol=1e-5)
    np.testing.assert_allclose(stats["var"], flat.var(0, ddof=1), rtol=1e-4)
    assert stats["count"] == 2800
    connector = MeanStdFilter()
    connector.input_action_space = gym.spaces.Discrete(2)
    connector.input_observation_space = gym.spaces.Box(-1, 1, (3,))
    moments.to_filter(connector)
    expected = connector._filters[None](data[0, 0], update=False)
    moments.apply(data[0], out)
    np.testing.assert_allclose(out[0], expected, atol=1e-4)
    other = RunningMoments((3,), 2)
    other.from_filter(connector)
    np.testing.assert_allclose(other.stats()["mean"], stats["mean"])


def test_a_policy_sees_normalised_observations() -> None:
    envs = SyncEnvs(lambda i: CountEnv(length=50), 4)
    rollout = collector(envs, RunningMoments((2,), 4)).collect(2000)
    steps = rollout.obs[200:, :, 1]
    assert abs(steps.mean()) < 0.3
    assert 0.7 < steps.std() < 1.3


# ---- replay ---------------------------------------------------------------------------------------------


def test_the_sum_tree_finds_what_a_running_sum_finds() -> None:
    tree, priorities = SumTree(5000), np.zeros(5000)
    for _ in range(20):
        index = RNG.integers(0, 5000, 300)
        values = RNG.random(300) * 10
        tree.set(index, values)
        priorities[index] = values
        np.testing.assert_allclose(tree.get(index), priorities[index])
    priorities = tree.get(np.arange(5000))
    assert tree.total == pytest.approx(priorities.sum())
    assert tree.smallest == pytest.approx(priorities[priorities > 0].min())
    mass = RNG.random(1000) * tree.total
    np.testing.assert_array_equal(tree.find(mass), np.searchsorted(np.cumsum(priorities), mass, side="right"))


def test_prioritised_sampling_follows_the_errors_and_weighs_them_as_in_the_paper() -> None:
    replay = Replay(100, 2, 64, np.random.default_rng(0), alpha=0.5, beta=0.4)
    replay.extend(np.column_stack([np.arange(4), np.arange(4)]).astype(np.float32))
    errors = np.array([1.0, 4.0, 9.0, 16.0])
    counts = np.zeros(4)
    for _ in range(300):
        drawn = replay.sample()[:, 0].astype(int)
        replay.prioritise(errors[drawn])
        counts += np.bincount(drawn, minlength=4)
    np.testing.assert_allclose(counts[1:] / counts[:3], [2.0, 1.5, 4 / 3], rtol=0.1)
    drawn = replay.sample()[:, 0].astype(int)
    chances = errors**0.5 / 10.0
    expected = (chances * 4) ** -0.4 / ((chances.min() * 4) ** -0.4)
    np.testing.assert_allclose(replay.weights, expected[drawn], rtol=1e-5)


def test_a_full_replay_memory_forgets_the_oldest() -> None:
    replay = Replay(10, 1, 500, np.random.default_rng(0))
    for start in range(0, 24, 4):
        replay.extend(np.arange(start, start + 4, dtype=np.float32)[:, None])
    assert set(replay.sample()[:, 0].astype(int)) == set(range(14, 24))
    other = Replay(10, 1, 5, np.random.default_rng(0))
    other.set_state(replay.get_state())
    np.testing.assert_array_equal(other.rows[:, 0], np.arange(14, 24))


# ---- transitions ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("truncate", [False, True])
@pytest.mark.parametrize("envs", [1, 2])
def test_transitions_are_full_windows_inside_one_episode(n_step: int, truncate: bool, envs: int) -> None:
    length, gamma = 5, 0.5
    vector = SyncEnvs(lambda i: CountEnv(length=length, truncate=truncate), envs)
    actions = CategoricalActions(vector.single_action_space, envs, np.random.default_rng(0))
    layout = RowLayout((2,), 1)
    stepper = Stepper(
        vector,
        actions,
        lambda obs, clock: np.zeros(len(obs), np.int64),
        TransitionPacker(layout, envs, n_step, gamma),
        normaliser=None,
        seed=0,
    )
    rows, taken, episodes = stepper.collect(20 * envs, 0)
    assert taken == 20 * envs
    assert episodes == [(15.0, 5)] * (4 * envs)
    obs, after, _, rewards, discounts = layout.views(rows)
    assert len(rows) == 4 * envs * (length - n_step + 1)
    np.testing.assert_array_equal(after[:, 0], obs[:, 0])  # one episode
    np.testing.assert_array_equal(after[:, 1], obs[:, 1] + n_step)
    np.testing.assert_allclose(rewards, sum(gamma**k * (obs[:, 1] + 1 + k) for k in range(n_step)))
    ends = after[:, 1] == length
    np.testing.assert_allclose(discounts[~ends], gamma**n_step)
    np.testing.assert_allclose(discounts[ends], gamma**n_step if truncate else 0.0)
