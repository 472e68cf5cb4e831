"""Shape the rewards that an algorithm learns from, and record each episode's true return and score."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, SupportsFloat, cast

import gymnasium

from rltune.envs.objective import make_score
from rltune.envs.step_count import read_reward

Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
Episodes = deque[tuple[float, int, float]]
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


# RLlib builds the environments, so a trial cannot pass them the list that collects true returns. Instead, environments
# find the list, and the scale of rewards that they share, in this context variable.
_SINK: ContextVar[tuple[Episodes, RewardScale] | None] = ContextVar("rltune_returns", default=None)


class ShapedReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Scale, normalise and clip rewards, in this order; true returns go to the deque of `collect_returns`.

    Normalising divides by the running standard deviation of the discounted return, as Stable-Baselines3's
    VecNormalize does: one for all environments that are built in the same `collect_returns`, and what is normalised is
    clipped at 10 where no clip is set.

    Args:
        env: What gives the true rewards.
        rewards: ``scale``, ``normalise`` and ``clip``, each of which may be missing.
        objective: As for `rltune.envs.objective.make_score`.
        discount: That of the algorithm.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        rewards: Mapping[str, Any],
        objective: Mapping[str, Any] | None = None,
        discount: float = DISCOUNT,
    ) -> None:
        super().__init__(env)
        self._scale = float(rewards.get("scale") or 1.0)
        self._normalise = bool(rewards.get("normalise"))
        self._clip = rewards.get("clip") or (CLIP if self._normalise else None)
        self._discount = discount
        around = _SINK.get()
        self._sink: Episodes | None = around and around[0]
        self._deviation = around[1] if around else RewardScale()
        self._objective = objective or {}
        self._score = make_score(self._objective)
        self._return, self._length, self._info = 0.0, 0, dict[str, Any]()
        self._discounted = 0.0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the deque of returns, which a copy could not share, and without what may not be picklable."""
        return {**self.__dict__, "_sink": None, "_score": None, "_info": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled wrapper; its returns go to the surrounding `collect_returns`."""
        self.__dict__.update(state, _sink=get_return_sink(), _score=make_score(state.get("_objective") or {}))

    @property
    def reward_moments(self) -> Moments:
        """Count, mean and squared deviations of the discounted returns by which rewards are normalised."""
        return self._deviation.moments

    @reward_moments.setter
    def reward_moments(self, moments: Moments) -> None:
        self._deviation.moments = moments

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode. If an outer wrapper cut the previous episode off, then that episode is recorded now."""
        self._end_episode()
        return cast(tuple[Any, dict[str, Any]], self.env.reset(**kwargs))

    def step(self, action: Any) -> Step:
        """Take a step, and return the shaped reward in place of the true one."""
        obs, raw, terminated, truncated, info = self.env.step(action)
        reward = read_reward(raw)
        self._return, self._length, self._info = self._return + reward, self._length + 1, info
        reward = self._shape(reward)
        if terminated or truncated:
            self._end_episode()
        return obs, reward, terminated, truncated, info

    def _shape(self, reward: float) -> float:
        reward *= self._scale
        if self._normalise:
            self._discounted = self._discounted * self._discount + reward
            reward /= self._deviation.update(self._discounted)
        # min(clip, NaN) would be clip and hide a NaN. In this order of arguments NaN stays, and later ends the trial.
        return max(min(reward, self._clip), -self._clip) if self._clip else reward

    def _end_episode(self) -> None:
        if self._length and self._sink is not None:
            self._sink.append((self._return, self._length, self._score(self._return, self._length, self._info)))
        self._return, self._length, self._discounted = 0.0, 0, 0.0


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


def get_return_sink() -> Episodes | None:
    """Return the deque to which the surrounding `collect_returns` collects episodes; None outside of one."""
    around = _SINK.get()
    return around and around[0]


@contextmanager
def collect_returns(sink: Episodes) -> Iterator[None]:
    """Collect the true return, length and score of each episode of environments that are built in this context.

    They share the scale by which their rewards are normalised.
    """
    token = _SINK.set((sink, RewardScale()))
    try:
        yield
    finally:
        _SINK.reset(token)
