"""Shape the rewards that an algorithm learns from, and record each episode's true return and score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, SupportsFloat, cast

import gymnasium

from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.objective import make_score
from rltune.envs.step_count import read_reward, read_step

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
    """Scale, normalise and clip rewards, in this order; an episode's true return and score go into its record.

    Normalising divides by the running standard deviation of the discounted return, as Stable-Baselines3's
    VecNormalize does, and what is normalised is clipped at 10 where no clip is set.

    Args:
        env: What gives the true rewards.
        rewards: ``scale``, ``normalise`` and ``clip``, each of which may be missing.
        objective: As for `rltune.envs.objective.make_score`.
        discount: That of the algorithm.
        deviation: What rewards are normalised by, one for all copies of an environment in this process; None for one of
            its own.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        rewards: Mapping[str, Any],
        objective: Mapping[str, Any] | None = None,
        discount: float = DISCOUNT,
        deviation: RewardScale | None = None,
    ) -> None:
        super().__init__(env)
        self._scale = float(rewards.get("scale") or 1.0)
        self._normalise = bool(rewards.get("normalise"))
        self._clip = rewards.get("clip") or (CLIP if self._normalise else None)
        self._discount = discount
        self._deviation = deviation or RewardScale()
        self._objective = objective or {}
        self._score = make_score(self._objective)
        self._return, self._length, self._discounted = 0.0, 0, 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the score's function, which may not be picklable."""
        return {**self.__dict__, "_score": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled wrapper."""
        self.__dict__.update(state, _score=make_score(state["_objective"]))

    @property
    def reward_moments(self) -> Moments:
        """Count, mean and squared deviations of the discounted returns by which rewards are normalised."""
        return self._deviation.moments

    @reward_moments.setter
    def reward_moments(self, moments: Moments) -> None:
        self._deviation.moments = moments

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode."""
        self._return, self._length, self._discounted = 0.0, 0, 0.0
        return cast(tuple[Any, dict[str, Any]], self.env.reset(**kwargs))

    def step(self, action: Any) -> Step:
        """Take a step, and return the shaped reward in place of the true one."""
        obs, raw, terminated, truncated, info = read_step(self.env.step(action))
        reward = read_reward(raw)
        if not (terminated or truncated):
            self._return, self._length = self._return + reward, self._length + 1
            return obs, self._shape(reward), terminated, truncated, info
        record: EpisodeRecord = info.get(RECORD) or EpisodeRecord()
        if not record.cut:
            self._return, self._length = self._return + reward, self._length + 1
            reward = self._shape(reward)
            record = record._replace(score=self._score(self._return, self._length, info))
        # The environment may return the same dict at each step, so the record goes into a copy.
        info = {**info, RECORD: record._replace(total=self._return, length=self._length)}
        self._discounted = 0.0
        return obs, reward, terminated, truncated, info

    def _shape(self, reward: float) -> float:
        reward *= self._scale
        if self._normalise:
            self._discounted = self._discounted * self._discount + reward
            reward /= self._deviation.update(self._discounted)
        # min(clip, NaN) would be clip and hide a NaN. In this order of arguments NaN stays, and later ends the trial.
        return max(min(reward, self._clip), -self._clip) if self._clip else reward


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
