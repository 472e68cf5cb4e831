"""Wrappers that rltune puts around environments by itself, and two that env files name.

Spaces that RLlib and policy bundles cannot take become flat ones; rewards are shaped for learning while the returns
of the environment itself stay the objective. Runs wherever an environment is built.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, SupportsFloat, cast

import gymnasium
import numpy as np
from gymnasium import spaces

from rltune.errors import ConfigError

MAX_FLAT_ACTIONS = 4096  # combinations of discrete actions up to which they are numbered one after another
Step = tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]
Returns = deque[tuple[float, int]]
_SINK: ContextVar[Returns | None] = ContextVar("rltune_returns", default=None)


def observes_plainly(space: Any) -> bool:
    """Whether observations are passed on as they are: a vector of floats, an image, or one discrete choice."""
    if isinstance(space, spaces.Box):
        return len(space.shape) == 3 or (len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating))
    return isinstance(space, spaces.Discrete)


def acts_plainly(space: Any) -> bool:
    """Whether actions are passed on as they are: a Box, or one discrete choice."""
    return isinstance(space, spaces.Box | spaces.Discrete)


class FlatObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Any observation as one float32 vector; discrete parts become one-hot (`gymnasium.spaces.utils.flatten`)."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        try:
            flat = spaces.utils.flatten_space(env.observation_space)
        except NotImplementedError:
            flat = env.observation_space
        if not isinstance(flat, spaces.Box):
            raise ConfigError(
                f"the observations {env.observation_space} cannot become a vector",
                "Box, Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of these",
                "a wrapper that selects or encodes parts of them: env.wrappers=[{entry_point: 'module:Class'}]",
            )
        low, high = flat.low.astype(np.float32), flat.high.astype(np.float32)
        self.observation_space = spaces.Box(low, high, dtype=np.float32)

    def observation(self, observation: Any) -> Any:
        """One vector."""
        return spaces.utils.flatten(self.env.observation_space, observation).astype(np.float32)


class FlatAction(gymnasium.ActionWrapper[Any, Any, Any]):
    """Compound actions as one choice or one vector: RLlib's off-policy algorithms and bundles know no others.

    Discrete parts together become one Discrete space that numbers their combinations, the last part fastest;
    continuous parts together become one Box.
    """

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        parts = list(_leaves(env.action_space))
        if all(isinstance(part, spaces.Box) for part in parts):
            self.action_space = spaces.utils.flatten_space(env.action_space)
            self._sizes = None
            return
        sizes = [size for part in parts for size in _sizes(part, env.action_space)]
        if math.prod(sizes) > MAX_FLAT_ACTIONS:
            raise ConfigError(
                f"the actions {env.action_space} have {math.prod(sizes)} combinations",
                f"at most {MAX_FLAT_ACTIONS}",
                "a wrapper that offers fewer: env.wrappers=[{entry_point: 'module:Class'}]",
            )
        self._sizes = sizes
        self.action_space = spaces.Discrete(math.prod(sizes))

    def action(self, action: Any) -> Any:
        """The environment's own form."""
        if self._sizes is None:
            return spaces.utils.unflatten(self.env.action_space, action)
        digits = iter(np.unravel_index(int(action), self._sizes))
        return _filled(self.env.action_space, digits)


def _leaves(space: Any) -> Iterator[Any]:
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            yield from _leaves(part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            yield from _leaves(part)
    else:
        yield space


def _sizes(part: Any, whole: Any) -> list[int]:
    if isinstance(part, spaces.Discrete):
        return [int(part.n)]
    if isinstance(part, spaces.MultiDiscrete):
        return [int(size) for size in part.nvec.reshape(-1)]
    if isinstance(part, spaces.MultiBinary):
        return [2] * int(np.prod(part.shape))
    raise ConfigError(
        f"the actions {whole} cannot become one choice or one vector",
        "parts that are all discrete, or all continuous",
        "a wrapper that does it: env.wrappers=[{entry_point: 'module:Class'}]",
    )


def _filled(space: Any, digits: Iterator[Any]) -> Any:
    if isinstance(space, spaces.Dict):
        return {name: _filled(part, digits) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_filled(part, digits) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(next(digits)) + int(space.start)
    start = getattr(space, "start", 0)
    count = int(np.prod(space.shape))
    return (np.array([next(digits) for _ in range(count)]).reshape(space.shape) + start).astype(space.dtype)


class ChannelsLast(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Stacked images (frames, height, width) as (height, width, frames), the order that RLlib's networks read."""

    def __init__(self, env: gymnasium.Env[Any, Any]) -> None:
        super().__init__(env)
        space = env.observation_space
        if not (isinstance(space, spaces.Box) and len(space.shape) == 3):
            raise ConfigError(f"ChannelsLast: the observations are {space}", "images of three axes", "leave it out")
        low, high = np.moveaxis(space.low, 0, -1), np.moveaxis(space.high, 0, -1)
        self.observation_space = spaces.Box(low, high, dtype=space.dtype.type)

    def observation(self, observation: Any) -> Any:
        """The same numbers in another order."""
        return np.moveaxis(observation, 0, -1)


class FireOnReset(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Presses FIRE after each reset: some Atari games wait for it for ever (Mnih et al. 2015)."""

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode and the game in it."""
        super().reset(**kwargs)
        fire: int = self.env.unwrapped.get_action_meanings().index("FIRE")
        obs, _, terminated, truncated, info = self.env.step(fire)
        if terminated or truncated:
            return cast(tuple[Any, dict[str, Any]], super().reset())
        return obs, info


class ShapedReward(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Scales, normalises and clips what is learned from, in this order; the true returns go to `returns_into`.

    Normalising divides by the running standard deviation of the discounted return, as Stable-Baselines3's
    VecNormalize does (per environment, discount 0.99).
    """

    def __init__(self, env: gymnasium.Env[Any, Any], rewards: Mapping[str, Any]) -> None:
        super().__init__(env)
        self._scale = float(rewards.get("scale") or 1.0)
        self._clip = rewards.get("clip")
        self._normalise = bool(rewards.get("normalise"))
        self._sink = current_sink()
        self._return, self._length = 0.0, 0
        self._discounted, self._count, self._mean, self._squares = 0.0, 0, 0.0, 0.0

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        """Start an episode; one that a wrapper outside cut off counts too."""
        self._end()
        return cast(tuple[Any, dict[str, Any]], self.env.reset(**kwargs))

    def step(self, action: Any) -> Step:
        """Step with the shaped reward."""
        obs, raw, terminated, truncated, info = self.env.step(action)
        self._return, self._length = self._return + float(raw), self._length + 1
        reward = self._shaped(float(raw))
        if terminated or truncated:
            self._end()
        return obs, reward, terminated, truncated, info

    def _shaped(self, reward: float) -> float:
        reward *= self._scale
        if self._normalise:
            reward /= self._deviation(reward)
        return max(-self._clip, min(self._clip, reward)) if self._clip else reward

    def _deviation(self, reward: float) -> float:
        """The running deviation of the discounted return (Welford 1962)."""
        self._discounted = self._discounted * 0.99 + reward
        self._count += 1
        shift = self._discounted - self._mean
        self._mean += shift / self._count
        self._squares += shift * (self._discounted - self._mean)
        return math.sqrt(self._squares / self._count + 1e-8) if self._count > 1 else 1.0

    def _end(self) -> None:
        if self._length and self._sink is not None:
            self._sink.append((self._return, self._length))
        self._return, self._length, self._discounted = 0.0, 0, 0.0


def current_sink() -> Returns | None:
    """Where an environment that is built now leaves its true returns; see `returns_into`."""
    return _SINK.get()


@contextmanager
def returns_into(sink: Returns) -> Iterator[None]:
    """Environments built inside leave the true return and length of each episode in ``sink``."""
    token = _SINK.set(sink)
    try:
        yield
    finally:
        _SINK.reset(token)
