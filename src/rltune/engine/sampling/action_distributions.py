"""Sample actions from a network's outputs on arrays, according to `rltune.policies.bundle_reader.Head`.

Random numbers are drawn for many steps at once.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from rltune.engine.features import UnsupportedError
from rltune.policies.bundle_reader import ActionScaling, CategoricalHead, GaussianHead, Head, make_scaling

Array = NDArray[Any]

NOISE_VALUES = 16_384
"""Random numbers drawn at a time: a draw of a few costs mostly its call, and this many still fit into the cache."""


class Noise:
    """Random noise for one step at a time, drawn in blocks because that is faster.

    Args:
        shape: The shape of the noise for one step.
        gumbel: Gumbel noise instead of standard normal.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], gumbel: bool) -> None:
        self.rng, self.gumbel = rng, gumbel
        rows = max(1, NOISE_VALUES // max(1, math.prod(shape)))
        self._block = np.empty((rows, *shape), np.float32)
        self._next = rows

    def __call__(self) -> Array:
        """Return the noise of the next step; the array is overwritten when the next block is drawn."""
        if self._next >= len(self._block):
            self._fill()
        self._next += 1
        row: Array = self._block[self._next - 1]
        return row

    def state(self) -> Array:
        """Return the drawn but unused noise [rows, ...], for a checkpoint."""
        return self._block[self._next :].copy()

    def load(self, unused: Array) -> None:
        """Restore what `state` returned; if the number of environments differs, new noise is drawn instead."""
        if unused.shape[1:] == self._block.shape[1:]:
            self._next = len(self._block) - len(unused)
            self._block[self._next :] = unused

    def _fill(self) -> None:
        if self.gumbel:  # If E is exponentially distributed, then -log(E) follows the Gumbel distribution.
            self.rng.standard_exponential(dtype=np.float32, out=self._block)
            # In float32, a draw can be exactly zero, and its logarithm infinite; so a tiny lower bound
            # is applied.
            np.maximum(self._block, 1e-30, out=self._block)
            np.log(self._block, out=self._block)
            np.negative(self._block, out=self._block)
        else:
            self.rng.standard_normal(dtype=np.float32, out=self._block)
        self._next = 0


class Actions:
    """Samples actions from a network's outputs, and scales them to the environment's action space.

    Args:
        head: The meaning of the outputs.
        num_envs: Rows of a step.
        config: RLlib's, for ``normalize_actions`` and ``clip_actions``.

    Attributes:
        dtype: The type of actions. Discrete ones have the type of argmax, so that nothing is cast for the environment.
        num_inputs: The number of outputs that describe an action's distribution.
        best: Returns the most likely actions [envs, ...] of outputs [envs, num_inputs].
    """

    def __init__(self, head: Head, space: gym.Space[Any], num_envs: int, rng: np.random.Generator, config: Any) -> None:
        self.shape: tuple[int, ...] = space.shape or ()
        self.dtype: Any = np.int64 if head.is_discrete else np.float32
        size = int(space.n) if isinstance(space, gym.spaces.Discrete) else math.prod(self.shape)
        self.num_inputs = head.count_outputs(size)
        self.noise = Noise(rng, (num_envs, size), gumbel=head.is_discrete)
        self._scaling: ActionScaling | None = None
        if isinstance(space, gym.spaces.Box):
            mode = "normalize" if config.normalize_actions else "clip" if config.clip_actions else "raw"
            self._scaling = make_scaling(mode, space.low, space.high)
        self.best, self._draw = head.choose_best, head.draw

    def sample(self, inputs: Array) -> Array:
        """Sample actions [envs, ...] from the network's outputs [envs, num_inputs]."""
        return self._draw(inputs, self.noise())

    def for_env(self, actions: Array) -> Array:
        """Scale and clip actions as RLlib's ``NormalizeAndClipActions`` does."""
        return actions if self._scaling is None else self._scaling.apply(actions)


def make_actions(
    space: gym.Space[Any],
    num_envs: int,
    rng: np.random.Generator,
    config: Any,
    continuous: type[Head] = GaussianHead,
) -> Actions:
    """Build the sampling for an action space, with the distribution that RLlib's default modules use for it.

    Args:
        num_envs: Rows of a step.
        continuous: The kind of head for continuous actions.

    Raises:
        UnsupportedError: For a space that only stock RLlib handles.
    """
    if isinstance(space, gym.spaces.Discrete):
        if space.start != 0:
            raise UnsupportedError(f"discrete actions that start at {space.start}")
        return Actions(CategoricalHead(CategoricalHead.describe()), space, num_envs, rng, config)
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        if len(space.shape) != 1:
            raise UnsupportedError(f"actions of shape {space.shape}")
        return Actions(continuous(continuous.describe()), space, num_envs, rng, config)
    raise UnsupportedError(f"action space {type(space).__name__}")
