"""Shape the rewards that an algorithm learns from, and record each episode's true return and score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np

from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.meter import EpisodeMeter
from rltune.envs.spec import EnvSpec
from rltune.envs.step_count import read_reward, read_step
from rltune.errors import ABSENT, ConfigError

Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
Moments = tuple[int, float, float]

DISCOUNT, CLIP = 0.99, 10.0
"""Stable-Baselines3's defaults for normalised rewards."""


class RewardScale:
    """Keep the running variance of discounted returns; its square root divides the rewards (Welford 1962).

    Attributes:
        moments: How many returns were seen, their mean and the sum of squared deviations from it.
    """

    def __init__(self) -> None:
        self.moments: Moments = (0, 0.0, 0.0)

    def update(self, value: float) -> float:
        """Add a discounted return, and return the standard deviation of all so far; 1.0 for the first one."""
        count, mean, squares = self.moments
        shift = value - mean
        mean += shift / (count + 1)
        squares += shift * (value - mean)
        self.moments = count + 1, mean, squares
        return math.sqrt(squares / (count + 1) + 1e-8) if count else 1.0


class ShapedReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Scale, normalise and clip rewards, in this order; what an episode is truly worth goes into its record.

    Normalising divides by the running standard deviation of the discounted return, as Stable-Baselines3's
    VecNormalize does, and what is normalised is clipped at 10 where no clip is set.

    Args:
        env: What gives the true rewards.
        spec: Its specification, with the rewards' ``scale``, ``normalise`` and ``clip``, each of which may be missing.
        discount: That of the algorithm.
        deviation: What rewards are normalised by, one for all copies of an environment in this process; None for one of
            its own.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        spec: EnvSpec,
        discount: float = DISCOUNT,
        deviation: RewardScale | None = None,
    ) -> None:
        super().__init__(env)
        rewards = spec.rewards
        self._is_shaping = bool(rewards)
        self._scale = float(rewards.get("scale") or 1.0)
        self._normalise = bool(rewards.get("normalise"))
        self._clip = rewards.get("clip") or (CLIP if self._normalise else None)
        self._discount = discount
        self._deviation = deviation or RewardScale()
        self._meter, self._discounted = EpisodeMeter(spec), 0.0

    @property
    def reward_moments(self) -> Moments:
        """Count, mean and squared deviations of the discounted returns by which rewards are normalised."""
        return self._deviation.moments

    @reward_moments.setter
    def reward_moments(self, moments: Moments) -> None:
        self._deviation.moments = moments

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._meter.begin()
        self._discounted = 0.0
        return cast(tuple[Any, dict[str, Any]], self.env.reset(**kwargs))

    def step(self, action: Any) -> Step:
        """Take a step, and return the shaped reward in place of the true one."""
        obs, reward, terminated, truncated, info = read_step(self.env.step(action))
        if type(reward) is not float:
            reward = read_reward(reward)
        if not (terminated or truncated):
            self._meter.add(reward, info)
            return obs, self._shape(reward) if self._is_shaping else reward, terminated, truncated, info
        failed: EpisodeRecord | None = info.get(RECORD)
        if failed and failed.cut:
            record = failed._replace(total=self._meter.total, length=self._meter.length)
        else:
            self._meter.add(reward, info)
            reward = self._shape(reward) if self._is_shaping else reward
            record = self._meter.describe(info)
            record = record._replace(restarts=failed.restarts, fault=failed.fault) if failed else record
        self._discounted = 0.0
        # The environment may return the same dict at each step, so the record goes into a copy.
        return obs, reward, terminated, truncated, {**info, RECORD: record}

    def _shape(self, reward: float) -> float:
        reward *= self._scale
        if self._normalise:
            self._discounted = self._discounted * self._discount + reward
            reward /= self._deviation.update(self._discounted)
        # min(clip, NaN) would be clip and hide a NaN. In this order of arguments NaN stays, and later ends the trial.
        return max(min(reward, self._clip), -self._clip) if self._clip else reward


class SummedReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Sum the rewards of several agents or objectives, which a step returns together, to one number.

    Args:
        env: The environment, whose steps return a list, tuple, array or mapping of rewards.
        weights: What each reward is multiplied by: a list in the rewards' order, or a mapping by their keys. By default
            1 each.
    """

    def __init__(
        self, env: gymnasium.Env[Any, Any], weights: Sequence[float] | Mapping[Any, float] | None = None
    ) -> None:
        super().__init__(env)
        self._weights = weights

    def step(self, action: Any) -> Step:
        """Take a step.

        Raises:
            ConfigError: There are other rewards than weights.
            RewardError: One of the rewards is no number.
        """
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, self._sum(reward), terminated, truncated, info

    def _sum(self, reward: Any) -> float:
        rewards = reward if isinstance(reward, Mapping) else dict(enumerate(np.asarray(reward).reshape(-1).tolist()))
        weights: Any = self._weights
        if weights is None:
            weights = dict.fromkeys(rewards, 1.0)
        elif not isinstance(weights, Mapping):
            weights = dict(enumerate(weights))
        if weights.keys() != rewards.keys():
            names = ", ".join(map(str, rewards)) if isinstance(reward, Mapping) else f"a list of {len(rewards)}"
            problem = f"SummedReward: {len(weights)} weights do not fit {len(rewards)} rewards"
            raise ConfigError("", ABSENT, problem, f"a weight for each reward: {names}", "kwargs: {weights: ...}")
        return math.fsum(weights[key] * read_reward(part) for key, part in rewards.items())


def read_reward_moments(envs: Any) -> list[Moments]:
    """Return the reward normalisation's statistics of each environment; empty if rewards are not shaped.

    Args:
        envs: A Gymnasium vector environment, or one of the engine's.
    """
    try:
        return list(envs.unwrapped.get_attr("reward_moments"))
    except AttributeError:  # Vector environments without this attribute, such as ale-py's, do not normalise rewards.
        return []


def write_reward_moments(envs: Any, moments: Sequence[Sequence[Any]]) -> None:
    """Restore what `read_reward_moments` returned; if there are more environments now, entries are reused."""
    if moments and read_reward_moments(envs):
        envs.unwrapped.set_attr("reward_moments", [tuple(moments[env % len(moments)]) for env in range(envs.num_envs)])
