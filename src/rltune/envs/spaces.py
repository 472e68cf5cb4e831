"""Flatten compound observation and action spaces, because RLlib's networks and policy bundles only take plain ones."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rltune.errors import ConfigError

MAX_FLAT_ACTIONS = 4096  # The most combinations of discrete actions; each needs an output of the network.
SLACK = 1e-5  # Because of rounding, an observation may exceed a bound of its space by this share of max(1, |bound|).
NOT_FINITE = "look for a division by zero, a root or a logarithm behind it"


def has_plain_observations(space: gymnasium.Space[Any]) -> bool:
    """Return whether observations need no flattening: a vector of floats, an image, or a Discrete value."""
    if isinstance(space, spaces.Box):
        return len(space.shape) == 3 or (len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating))
    return isinstance(space, spaces.Discrete)


def has_plain_actions(space: gymnasium.Space[Any]) -> bool:
    """Return whether actions need no flattening: a Box or a Discrete space."""
    return isinstance(space, spaces.Box | spaces.Discrete)


def check_observation(key: str, space: gymnasium.Space[Any], observation: Any) -> None:
    """Refuse an observation that is not finite, or that lies outside of its Box or Discrete space.

    Another precision is allowed, since samplers cast, and so is rounding at a bound. A wider tolerance is not needed:
    played at random, no environment of conf/env leaves its space in ten thousand steps.

    Args:
        key: What to name: the setting, and the agent where there are several.
        space: As the environment declares it.
        observation: What its reset or its step returned.

    Raises:
        ConfigError: Names the first component that is wrong, its value, and what the space allows.
    """
    array = np.asarray(observation)
    if array.shape != (space.shape or ()) or not np.can_cast(array.dtype, space.dtype or object, "same_kind"):
        raise ConfigError(
            f"{key}: observations have shape {array.shape} and type {array.dtype}, their space is {space}",
            f"shape {space.shape or ()} and type {space.dtype}, as the observation_space says",
            "correct the observation_space, or what reset and step return (a wrapper: what it returns)",
        )
    low, high = _find_bounds(space)
    wrong = ~np.isfinite(array)
    if not wrong.any():
        below, above = (SLACK * np.maximum(1.0, np.abs(bound)) for bound in (low, high))
        wrong = (array < low - below) | (array > high + above)
    if not wrong.any():
        return
    place = tuple(map(int, np.argwhere(wrong)[0]))
    value, least, greatest = (np.broadcast_to(part, array.shape)[place] for part in (array, low, high))
    problem = f"{key}: observation{''.join(f'[{index}]' for index in place)} is {value}"
    if not np.isfinite(value):
        raise ConfigError(problem, "finite numbers", NOT_FINITE)
    raise ConfigError(
        f"{problem}, which its observation_space does not allow",
        f"{least} to {greatest} in this place",
        "correct what reset and step return, or widen the space: Box(-np.inf, np.inf, shape) has no bounds",
    )


def _find_bounds(space: Any) -> tuple[Any, Any]:
    if isinstance(space, spaces.Discrete):
        return space.start, space.start + space.n - 1
    return space.low, space.high


def check_reward(key: str, reward: Any) -> None:
    """Refuse a reward that is NaN or infinite, because no algorithm can learn from it.

    Raises:
        ConfigError: It is not finite.
    """
    if not math.isfinite(float(reward)):
        raise ConfigError(f"{key}: the reward is {float(reward)}", "finite numbers", NOT_FINITE)


class FlatObservation(gymnasium.ObservationWrapper[Any, Any, Any]):
    """Turn observations into one float32 vector; discrete parts become one-hot (`gymnasium.spaces.utils.flatten`)."""

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
        """Return the observation flattened to a float32 vector."""
        return spaces.utils.flatten(self.env.observation_space, observation).astype(np.float32)


class FlatAction(gymnasium.ActionWrapper[Any, Any, Any]):
    """Turn compound actions into one Discrete or one Box action, because off-policy algorithms take no others.

    Discrete parts together become one Discrete space that numbers their combinations, the last part fastest.
    Continuous parts together become one Box.
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
        """Convert a flat action back to the environment's compound action space."""
        if self._sizes is None:
            return spaces.utils.unflatten(self.env.action_space, action)
        digits = iter(np.unravel_index(int(action), self._sizes))
        return _fill(self.env.action_space, digits)


def _leaves(space: Any) -> Iterator[Any]:
    """Yield the leaves of nested Dict and Tuple spaces."""
    if isinstance(space, spaces.Dict):
        for part in space.spaces.values():
            yield from _leaves(part)
    elif isinstance(space, spaces.Tuple):
        for part in space.spaces:
            yield from _leaves(part)
    else:
        yield space


def _sizes(part: Any, whole: Any) -> list[int]:
    """Return the number of values of each element of a discrete space, such as ``[3, 2]`` for MultiDiscrete([3, 2]).

    Raises:
        ConfigError: The part is continuous beside discrete ones, or of another kind.
    """
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


def _fill(space: Any, digits: Iterator[Any]) -> Any:
    """Build a sample of ``space`` from zero-based indices, one for each of its discrete elements."""
    if isinstance(space, spaces.Dict):
        return {name: _fill(part, digits) for name, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(_fill(part, digits) for part in space.spaces)
    if isinstance(space, spaces.Discrete):
        return int(next(digits)) + int(space.start)
    start = getattr(space, "start", 0)
    count = int(np.prod(space.shape))
    return (np.array([next(digits) for _ in range(count)]).reshape(space.shape) + start).astype(space.dtype)
