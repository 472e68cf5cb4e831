"""Draw actions from distribution inputs in array code, with the probabilities that RLlib's distributions give.

Random numbers are drawn for many steps at once. Categorical actions use the Gumbel-max trick (Gumbel 1954; Maddison et
al. 2014), Gaussian ones scale standard normal noise.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from ray.rllib.utils.numpy import MAX_LOG_NN_OUTPUT, MIN_LOG_NN_OUTPUT

from rltune.engine.features import UnsupportedError

Array = NDArray[Any]

NOISE_VALUES = 16_384
"""Random numbers drawn at a time: a draw of a few costs mostly its call, and this many still fit into the cache."""


class Noise:
    """Rows of noise of one shape, drawn in blocks.

    Args:
        rng: Source of randomness.
        shape: One row.
        gumbel: Gumbel noise instead of standard normal.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], gumbel: bool) -> None:
        self.rng, self.gumbel = rng, gumbel
        rows = max(1, NOISE_VALUES // max(1, math.prod(shape)))
        self._block = np.empty((rows, *shape), np.float32)
        self._next = rows

    def __call__(self) -> Array:
        """Return the next row; it is valid until the block is refilled, so use it at once."""
        if self._next >= len(self._block):
            self._fill()
        self._next += 1
        row: Array = self._block[self._next - 1]
        return row

    def state(self) -> Array:
        """Return the rows that are drawn but not used yet [rows, ...]; `load` takes them."""
        return self._block[self._next :].copy()

    def load(self, unused: Array) -> None:
        """Set what `state` returned; rows for another number of environments are drawn anew."""
        if unused.shape[1:] == self._block.shape[1:]:
            self._next = len(self._block) - len(unused)
            self._block[self._next :] = unused

    def _fill(self) -> None:
        if self.gumbel:  # -log(E) of a standard exponential E is Gumbel; all in place, in the block
            self.rng.standard_exponential(dtype=np.float32, out=self._block)
            # An exponential draw can be exactly zero in float32.
            np.maximum(self._block, 1e-30, out=self._block)
            np.log(self._block, out=self._block)
            np.negative(self._block, out=self._block)
        else:
            self.rng.standard_normal(dtype=np.float32, out=self._block)
        self._next = 0


class CategoricalActions:
    """Actions of a ``Discrete`` space from logits.

    Args:
        space: The action space.
        num_envs: Rows of a step.
        rng: Source of randomness.
    """

    dtype = np.int64  # argmax returns int64, so that nothing is cast on the way to the environment.

    def __init__(self, space: gym.spaces.Discrete, num_envs: int, rng: np.random.Generator) -> None:
        if space.start != 0:
            raise UnsupportedError(f"discrete actions that start at {space.start}")
        self.shape: tuple[int, ...] = ()
        self.num_inputs = int(space.n)
        self.noise = Noise(rng, (num_envs, self.num_inputs), gumbel=True)

    def sample(self, inputs: Array) -> Array:
        """Draw actions [envs] from logits [envs, actions]."""
        # The largest logit plus Gumbel noise is a draw from the softmax: no exponentials, no sums, no search.
        drawn: Array = (inputs + self.noise()).argmax(1)
        return drawn

    def best(self, inputs: Array) -> Array:
        """Return the most likely actions [envs]."""
        best: Array = inputs.argmax(1)
        return best

    def for_env(self, actions: Array) -> Array:
        """Return them as the environment takes them, which is as they are."""
        return actions


class GaussianActions:
    """Actions of a ``Box`` space from means and log standard deviations.

    Args:
        space: The action space.
        num_envs: Rows of a step.
        rng: Source of randomness.
        config: RLlib's, for ``normalize_actions`` and ``clip_actions``.
    """

    dtype = np.float32

    def __init__(self, space: gym.spaces.Box, num_envs: int, rng: np.random.Generator, config: Any) -> None:
        self.shape = space.shape
        size = math.prod(space.shape)
        if len(space.shape) != 1:
            raise UnsupportedError(f"actions of shape {space.shape}")
        self.num_inputs = 2 * size
        self.noise = Noise(rng, (num_envs, size), gumbel=False)
        bounded = bool(np.all(space.bounded_below) and np.all(space.bounded_above))
        self._low, self._high = space.low, space.high
        # RLlib maps normalised actions to the bounds if there are any; otherwise it may clip them.
        self._unsquash = bool(config.normalize_actions and bounded)
        self._clip = bool(self._unsquash or (config.clip_actions and not config.normalize_actions))
        self._half = (space.high - space.low) / 2.0

    def sample(self, inputs: Array) -> Array:
        """Draw actions [envs, size] from [envs, 2 * size]."""
        size = inputs.shape[1] // 2
        drawn = self._std(inputs[:, size:])  # a new array, so the rest can work in place
        drawn *= self.noise()
        drawn += inputs[:, :size]
        return drawn

    def _std(self, log_std: Array) -> Array:
        """Return standard deviations; PPO's networks have bounded their logarithms already, where RLlib's do."""
        std: Array = np.exp(log_std)
        return std

    def best(self, inputs: Array) -> Array:
        """Return the means [envs, size]."""
        return inputs[:, : inputs.shape[1] // 2]

    def for_env(self, actions: Array) -> Array:
        """Map [-1, 1] to the space's bounds and clip, as RLlib's ``NormalizeAndClipActions`` does."""
        if self._unsquash:
            actions = self._low + (actions + 1.0) * self._half
        if self._clip:
            actions = np.clip(actions, self._low, self._high)
        return actions


class SquashedGaussianActions(GaussianActions):
    """Actions of a ``Box`` space through ``tanh`` (SAC)."""

    def sample(self, inputs: Array) -> Array:
        """Draw actions in (-1, 1)."""
        return np.tanh(super().sample(inputs))

    def _std(self, log_std: Array) -> Array:
        # RLlib bounds them in TorchSquashedGaussian.from_logits. Not np.clip, which takes longer on a few rows.
        return super()._std(np.minimum(np.maximum(log_std, MIN_LOG_NN_OUTPUT), MAX_LOG_NN_OUTPUT))

    def best(self, inputs: Array) -> Array:
        """Return the squashed means [envs, size]."""
        return np.tanh(super().best(inputs))


Actions = CategoricalActions | GaussianActions


def make_actions(space: gym.Space[Any], num_envs: int, rng: np.random.Generator, config: Any) -> Actions:
    """Build the distribution that RLlib's default modules use for ``space``.

    Raises:
        UnsupportedError: For a space that only stock RLlib handles.
    """
    if isinstance(space, gym.spaces.Discrete):
        return CategoricalActions(space, num_envs, rng)
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
        return GaussianActions(space, num_envs, rng, config)
    raise UnsupportedError(f"action space {type(space).__name__}")
