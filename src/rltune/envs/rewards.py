"""Shape the rewards that an algorithm learns from, and keep the true returns and what the episodes are worth."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, SupportsFloat, cast

import gymnasium

from rltune.envs.objective import make_score

Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
Episodes = deque[tuple[float, int, float]]
Moments = tuple[int, float, float]

DISCOUNT, CLIP = 0.99, 10.0
"""Stable-Baselines3's defaults for normalised rewards."""


class RewardScale:
    """Keep the running variance of discounted returns, by whose root rewards are divided (Welford 1962).

    Attributes:
        moments: How many returns were seen, their mean and the sum of squared deviations from it.
    """

    def __init__(self) -> None:
        self.moments: Moments = (0, 0.0, 0.0)

    def update(self, value: float) -> float:
        """Take in a discounted return, and return the standard deviation; 1 until there are two."""
        count, mean, squares = self.moments
        shift = value - mean
        mean += shift / (count + 1)
        squares += shift * (value - mean)
        self.moments = count + 1, mean, squares
        return math.sqrt(squares / (count + 1) + 1e-8) if count else 1.0


# RLlib builds the environments, and a trial cannot hand them its sink for returns. So environments find in this
# variable the sink and the scale that they share.
_SINK: ContextVar[tuple[Episodes, RewardScale] | None] = ContextVar("rltune_returns", default=None)


class ShapedReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Scale, normalise and clip the rewards, in this order; the episodes go to the sink of `collect_returns`.

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
        """Leave out the sink, since a copy would collect for nobody, and what may not be pickled."""
        return {**self.__dict__, "_sink": None, "_score": None, "_info": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the sink of the `collect_returns` around."""
        self.__dict__.update(state, _sink=get_return_sink(), _score=make_score(state.get("_objective") or {}))

    @property
    def reward_moments(self) -> Moments:
        """The moments of the reward scale, which environments may share and a restore sets."""
        return self._deviation.moments

    @reward_moments.setter
    def reward_moments(self, moments: Moments) -> None:
        self._deviation.moments = moments

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode. The last one ends here if an outer wrapper cut it off, and counts too."""
        self._end_episode()
        return cast(tuple[Any, dict[str, Any]], self.env.reset(**kwargs))

    def step(self, action: Any) -> Step:
        """Step, and return the shaped reward in place of the true one."""
        obs, raw, terminated, truncated, info = self.env.step(action)
        self._return, self._length, self._info = self._return + float(raw), self._length + 1, info
        reward = self._shape(float(raw))
        if terminated or truncated:
            self._end_episode()
        return obs, reward, terminated, truncated, info

    def _shape(self, reward: float) -> float:
        reward *= self._scale
        if self._normalise:
            self._discounted = self._discounted * self._discount + reward
            reward /= self._deviation.update(self._discounted)
        # This order of arguments keeps NaN, which ends the trial, because min(clip, nan) is clip.
        return max(min(reward, self._clip), -self._clip) if self._clip else reward

    def _end_episode(self) -> None:
        if self._length and self._sink is not None:
            self._sink.append((self._return, self._length, self._score(self._return, self._length, self._info)))
        self._return, self._length, self._discounted = 0.0, 0, 0.0


def read_reward_moments(envs: Any) -> list[Moments]:
    """Return the moments by which each environment normalises rewards; empty if its rewards are not shaped.

    Args:
        envs: A Gymnasium vector environment, or one of the engine's.
    """
    try:
        return list(envs.unwrapped.get_attr("reward_moments"))
    except AttributeError:  # Rewards of native environments are not normalised.
        return []


def write_reward_moments(envs: Any, moments: Sequence[Sequence[Any]]) -> None:
    """Set what `read_reward_moments` returned; another number of environments takes them in turn."""
    if moments and read_reward_moments(envs):
        envs.unwrapped.set_attr("reward_moments", [tuple(moments[env % len(moments)]) for env in range(envs.num_envs)])


def get_return_sink() -> Episodes | None:
    """Return the sink of the surrounding `collect_returns`; None without it."""
    around = _SINK.get()
    return around and around[0]


@contextmanager
def collect_returns(sink: Episodes) -> Iterator[None]:
    """Collect the true return, the length and the score of each episode of the environments that are built inside.

    They share the scale by which their rewards are normalised.
    """
    token = _SINK.set((sink, RewardScale()))
    try:
        yield
    finally:
        _SINK.reset(token)
