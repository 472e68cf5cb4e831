"""Actions are spread as RLlib's distributions say."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian
from ray.rllib.utils.spaces.space_utils import unsquash_action

from rltune.engine.features import UnsupportedError
from rltune.engine.sampling.action_distributions import make_actions
from rltune.policies.bundle_reader import SquashedGaussianHead
from tests.engine.engine_toy import ppo_config

RNG = np.random.default_rng(0)


def test_categorical_actions_come_with_their_probabilities() -> None:
    actions = make_actions(gym.spaces.Discrete(3), 1000, np.random.default_rng(1), ppo_config())
    logits = np.tile(np.array([0.0, 1.0, -1.0], np.float32), (1000, 1))
    drawn = np.concatenate([actions.sample(logits) for _ in range(60)])
    expected = torch.softmax(torch.tensor([0.0, 1.0, -1.0]), 0).numpy()
    np.testing.assert_allclose(np.bincount(drawn, minlength=3) / len(drawn), expected, atol=0.01)
    assert (actions.best(logits) == 1).all()


def test_gaussian_actions_reach_the_environment_as_by_rllib() -> None:
    space = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 5.0], np.float32))
    actions = make_actions(space, 500, np.random.default_rng(1), ppo_config())
    inputs = np.tile(np.array([0.3, -0.4, np.log(0.5), np.log(2.0)], np.float32), (500, 1))
    drawn = np.concatenate([actions.sample(inputs) for _ in range(60)])
    np.testing.assert_allclose(drawn.mean(0), [0.3, -0.4], atol=0.03)
    np.testing.assert_allclose(drawn.std(0), [0.5, 2.0], atol=0.03)
    np.testing.assert_allclose(actions.for_env(drawn[:50]), [unsquash_action(a, space) for a in drawn[:50]], atol=1e-6)


@pytest.mark.parametrize("log_std", [-8.0, 0.0, 3.0, 200.0])
def test_squashed_actions_are_spread_as_rllibs_distribution_says(log_std: float) -> None:
    space = gym.spaces.Box(-1, 1, (2,), np.float32)
    actions = make_actions(space, 500, np.random.default_rng(1), ppo_config(), SquashedGaussianHead)
    inputs = np.tile(np.array([0.3, -0.4, log_std, log_std], np.float32), (500, 1))
    noise = np.random.default_rng(1).standard_normal((500, 2), np.float32)
    theirs = TorchSquashedGaussian.from_logits(torch.from_numpy(inputs))._dist
    expected = torch.tanh(theirs.loc + theirs.scale * torch.from_numpy(noise)).numpy()
    np.testing.assert_allclose(actions.sample(inputs), expected, atol=1e-6)


def test_spaces_that_arrays_do_not_serve_are_named() -> None:
    with pytest.raises(UnsupportedError, match="start=1"):
        make_actions(gym.spaces.Discrete(3, start=1), 1, RNG, ppo_config())
