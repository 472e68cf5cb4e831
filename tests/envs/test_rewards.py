"""What is learned from, and the true returns beside it."""

from __future__ import annotations

import json
import math
import shlex

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv
from gymnasium.wrappers import TransformReward
from hydra.core.override_parser.overrides_parser import OverridesParser

from rltune.algorithms.rllib_env import Creator
from rltune.envs.build import make_env, make_training_env
from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.rewards import RewardScale, ShapedReward, SummedReward, read_reward_moments, write_reward_moments
from rltune.envs.spec import EnvSpec, spec_of
from rltune.errors import ConfigError, RewardError
from tests.envs.walk import Walk, check, refuse


def test_learning_sees_shaped_rewards_the_objective_true_ones():
    """Learning sees shaped rewards and the objective the true ones."""
    spec = spec_of({"id": "Pendulum-v1", "rewards": {"scale": 0.1, "clip": 0.5, "normalise": False}})
    assert spec_of({"id": "Pendulum-v1", "rewards": {"scale": 1.0, "clip": None, "normalise": False}}).rewards == {}
    assert spec_of({"id": "Pendulum-v1", "rewards": {"normalise": True, "scale": 1.0}}).rewards == {"normalise": True}
    shaped, true = make_training_env(spec), make_env(spec)
    shaped.reset(seed=3)
    true.reset(seed=3)
    total = 0.0
    for _ in range(200):
        action = np.array([1.0], np.float32)
        raw, (_, seen, *_, info) = true.step(action)[1], shaped.step(action)
        assert seen == pytest.approx(max(-0.5, 0.1 * raw))
        total += raw
    assert info[RECORD] == (pytest.approx(total), 200, pytest.approx(total), False, 0, "", ())


def test_normalised_rewards_settle_at_a_scale_of_their_own():
    """Normalised rewards settle at a scale of their own whatever the environments."""

    def late(scale):
        env = make_training_env(EnvSpec("Pendulum-v1", {}, (), False, {"normalise": True, "scale": scale}))
        env.reset(seed=0)
        return [env.step(np.zeros(1, np.float32))[1] for _ in range(190)][-20:]

    assert late(1.0) == pytest.approx(late(1000.0), rel=1e-3)


def test_an_episode_that_is_given_up_leaves_no_record():
    """Who resets in the middle of an episode has not seen its end."""
    env = make_training_env(EnvSpec("failing:Failing-v0", {"length": 2}, rewards={"scale": 2.0}))
    env.reset(seed=0)
    assert env.step(0)[1] == 2.0
    env.reset()
    assert [env.step(0)[4].get(RECORD) for _ in range(2)] == [None, EpisodeRecord(3.0, 2, 3.0)]


def test_reward_moments_go_from_one_trial_to_another():
    """Another number of environments shares them; native ones have none."""
    spec = EnvSpec("Pendulum-v1", rewards={"normalise": True})
    create = Creator(spec)
    source = SyncVectorEnv([lambda: create({})] * 2)
    source.reset(seed=0)
    for _ in range(50):
        source.step(np.zeros((2, 1), np.float32))
    kept = read_reward_moments(source)
    assert [count for count, _, _ in kept] == [100, 100]
    assert kept[0] == kept[1]
    target = SyncVectorEnv([lambda: make_training_env(spec)] * 3)
    write_reward_moments(target, json.loads(json.dumps(kept)))
    assert read_reward_moments(target) == [kept[0]] * 3
    native = gym.make_vec("CartPole-v1", 2, "vector_entry_point")
    write_reward_moments(native, kept)
    assert read_reward_moments(native) == []


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_clipping_hides_no_reward_that_is_no_number(reward):
    """The largest reward in place of NaN would be learned from."""
    env = make_training_env(EnvSpec("CartPole-v1", rewards={"clip": 1.0}))
    env.env = TransformReward(env.env, lambda _: reward)
    env.reset(seed=0)
    assert str(env.step(0)[1]) == str(float(np.clip(reward, -1.0, 1.0)))


class Paying(gym.Env):
    """Pays what it is told, step by step; episodes have ten steps."""

    observation_space = gym.spaces.Box(-1, 1, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, rewards):
        self.rewards, self.steps = iter(rewards), 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        return np.zeros(1, np.float32), next(self.rewards), self.steps == 10, False, {}


def normalise_as_sb3(rewards, discount):
    """Rewards [steps, environments] as VecNormalize has them, but for its prior of a ten-thousandth of a return."""
    seen, returns, normalised = [], np.zeros(rewards.shape[1]), []
    for step, row in enumerate(rewards):
        returns = returns * discount + row
        seen.extend(returns)
        normalised.append(np.clip(row / np.sqrt(np.var(seen) + 1e-8), -10.0, 10.0))
        returns = returns * (step % 10 != 9)
    return np.array(normalised)


@pytest.mark.parametrize("discount", [0.9, 0.999])
def test_rewards_are_normalised_as_vecnormalize_does(discount):
    """One variance for all environments, the discount of the algorithm, and a clip at 10."""
    rewards = np.random.default_rng(0).normal(3.0, 5.0, (200, 4))
    rewards[150, 0] = 1e4
    shared = RewardScale()
    envs = [
        ShapedReward(Paying(column), EnvSpec("", rewards={"normalise": True}), discount, shared) for column in rewards.T
    ]
    normalised = []
    for step in range(200):
        if step % 10 == 0:
            [env.reset() for env in envs]
        normalised.append([env.step(0)[1] for env in envs])
    # Within a step ours knows of the environments that come later one step less.
    np.testing.assert_allclose(normalised[100:], normalise_as_sb3(rewards, discount)[100:], rtol=0.02)
    assert normalised[150][0] == 10.0


def test_a_clip_that_is_set_stays():
    env = ShapedReward(Paying([0.0] * 9 + [1e6]), EnvSpec("", rewards={"normalise": True, "clip": 2.5}))
    env.reset()
    assert [env.step(0)[1] for _ in range(10)][-1] == 2.5


SEVERAL = (
    [1.0, 2.0],
    (1, 2),
    np.array([1.0, 2.0], np.float32),
    np.array([[1.0], [2.0]]),
    {"left": 1.0, "right": np.float32(2)},
)


@pytest.mark.parametrize("rewards", SEVERAL)
def test_several_rewards_are_answered_with_what_sums_them(rewards):
    refusal = refuse(lambda: Walk(reward=lambda: rewards))
    override = OverridesParser.create().parse_override(shlex.split(refusal.fix)[0])
    assert override.key_or_group == "env.wrappers"
    check(lambda: Walk(reward=lambda: rewards), wrappers=tuple(override.value()))
    env = SummedReward(Walk(reward=lambda: rewards), **override.value()[0]["kwargs"])
    env.reset(seed=0)
    assert env.step(0)[1] == 3.0


@pytest.mark.parametrize(
    "key", ["fuel use", "a:b", "a,b", ("x", 1), 3, -1, "été", "x" * 300, "", "it's", "true", "1.5"]
)
def test_rewards_of_any_key_are_answered_with_what_sums_them(key):
    rewards = {key: 1.0, "other": 2.0}
    override = OverridesParser.create().parse_override(shlex.split(refuse(lambda: Walk(reward=lambda: rewards)).fix)[0])
    check(lambda: Walk(reward=lambda: rewards), wrappers=tuple(override.value()))


@pytest.mark.parametrize("rewards", SEVERAL)
def test_several_rewards_are_weighed(rewards):
    weights = {"left": 1.0, "right": -0.5} if isinstance(rewards, dict) else [1.0, -0.5]
    env = SummedReward(Walk(reward=lambda: rewards), weights)
    env.reset(seed=0)
    assert env.step(0)[1] == 0.0


@pytest.mark.parametrize("weights", [[1.0], [1.0, 1.0, 1.0], {"left": 1.0, "right": 1.0}])
def test_weights_that_do_not_fit_the_rewards_are_refused(weights):
    wrapper = {"entry_point": "rltune.envs.rewards:SummedReward", "kwargs": {"weights": weights}}
    refusal = refuse(lambda: Walk(reward=lambda: [1.0, 2.0]), wrappers=(wrapper,))
    assert isinstance(refusal, ConfigError)
    assert refusal.key == "env.wrappers"
    assert "2 rewards" in refusal.what


def test_a_part_of_a_reward_that_is_no_number_is_refused():
    env = SummedReward(Walk(reward=lambda: {"left": 1.0, "right": None}))
    env.reset(seed=0)
    with pytest.raises(RewardError):
        env.step(0)
