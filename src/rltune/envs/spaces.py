"""Wrappers that rltune puts around environments by itself, and two that env files name.

Spaces that RLlib and policy bundles cannot take become flat ones; rewards are shaped for learning while the returns
of the environment itself stay the objective. Runs wherever an environment is built.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rltune.errors import ConfigError

MAX_FLAT_ACTIONS = 4096  # combinations of discrete actions up to which they are numbered one after another


def has_plain_observations(space: Any) -> bool:
    """Whether observations are passed on as they are: a vector of floats, an image, or one discrete choice."""
    if isinstance(space, spaces.Box):
        return len(space.shape) == 3 or (len(space.shape) == 1 and np.issubdtype(space.dtype, np.floating))
    return isinstance(space, spaces.Discrete)


def has_plain_actions(space: Any) -> bool:
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
