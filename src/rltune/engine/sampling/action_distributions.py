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
from rltune.envs.actions import ActionPart, ActionParts
from rltune.envs.facts import describe_space
from rltune.policies.bundle_reader import CategoricalHead, GaussianHead, Head, PartsHead

Array = NDArray[Any]

NOISE_VALUES = 16_384
"""Random numbers drawn at a time: a draw of a few costs mostly its call, and this many still fit into the cache."""


class Noise:
    """Random noise for one step at a time, drawn in blocks because that is faster.

    Args:
        shape: The shape of the noise for one step.
        gumbel: How many columns have Gumbel noise, from the first one; the others have standard normal noise.
    """

    def __init__(self, rng: np.random.Generator, shape: tuple[int, ...], gumbel: int) -> None:
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
        width = self._block.shape[-1]
        if self.gumbel in (0, width):
            self._draw(self._block, self.gumbel > 0)
        else:  # NumPy draws into whole arrays only.
            for columns in (slice(0, self.gumbel), slice(self.gumbel, width)):
                drawn = np.empty(self._block[..., columns].shape, np.float32)
                self._draw(drawn, columns.start == 0)
                self._block[..., columns] = drawn
        self._next = 0

    def _draw(self, block: Array, is_gumbel: bool) -> None:
        if is_gumbel:  # If E is exponentially distributed, then -log(E) follows the Gumbel distribution.
            self.rng.standard_exponential(dtype=np.float32, out=block)
            # In float32, a draw can be exactly zero, and its logarithm infinite; so a tiny lower bound
            # is applied.
            np.maximum(block, 1e-30, out=block)
            np.log(block, out=block)
            np.negative(block, out=block)
        else:
            self.rng.standard_normal(dtype=np.float32, out=block)


class Actions:
    """Samples actions from a network's outputs, and scales them to the environment's action space.

    Args:
        head: The meaning of the outputs.
        space: The space in which the network chooses, see `rltune.envs.spaces.make_network_actions`.
        num_envs: Rows of a step.
        config: RLlib's, for ``normalize_actions``.

    Attributes:
        shape: The shape of one action: () for a single choice, else that of a row, see `rltune.envs.actions`.
        dtype: The type of actions. Discrete ones have the type of argmax, so that nothing is cast for the environment.
        num_inputs: The number of outputs that describe an action's distribution.
        best: Returns the most likely actions [envs, ...] of outputs [envs, num_inputs].
    """

    def __init__(self, head: Head, space: gym.Space[Any], num_envs: int, rng: np.random.Generator, config: Any) -> None:
        sizes, num_numbers = count_parts(space)
        is_one_choice = isinstance(space, gym.spaces.Discrete)
        self.shape: tuple[int, ...] = () if is_one_choice else (len(sizes) + num_numbers,)
        self.dtype: Any = np.float32 if num_numbers else np.int64
        self.num_inputs = head.count_outputs(sizes[0] if is_one_choice else len(sizes) + num_numbers)
        self.noise = Noise(rng, (num_envs, sum(sizes) + num_numbers), gumbel=sum(sizes))
        self._numbers: ActionPart | None = None
        if isinstance(space, gym.spaces.Box):
            # The wrapper of the environment scales and clips the numbers of several parts.
            (self._numbers,) = ActionParts(describe_space(space), clips=not config.normalize_actions).parts
        self.best, self._draw = head.choose_best, head.draw

    def sample(self, inputs: Array) -> Array:
        """Sample actions [envs, ...] from the network's outputs [envs, num_inputs]."""
        return self._draw(inputs, self.noise())

    def for_env(self, actions: Array) -> Array:
        """Scale and clip actions as RLlib's ``NormalizeAndClipActions`` does, each number by its own bounds."""
        if self._numbers is None:
            return actions
        scaled: Array = self._numbers.decode(actions)
        return scaled


def count_parts(space: gym.Space[Any]) -> tuple[tuple[int, ...], int]:
    """Return the number of values of each choice in a network's space, and the number of its continuous outputs."""
    actions = ActionParts(describe_space(space))
    return actions.sizes, actions.num_numbers


def make_actions(
    space: gym.Space[Any],
    num_envs: int,
    rng: np.random.Generator,
    config: Any,
    continuous: type[Head] = GaussianHead,
) -> Actions:
    """Build the sampling for an action space, with the distribution that RLlib's default modules use for it.

    Args:
        space: The space in which the network chooses, see `rltune.envs.spaces.make_network_actions`.
        num_envs: Rows of a step.
        continuous: The kind of head for continuous actions.

    Raises:
        UnsupportedError: For another space, in which only stock RLlib acts.
    """
    kinds = gym.spaces
    if isinstance(space, kinds.Discrete) and space.start == 0:
        return Actions(CategoricalHead(CategoricalHead.describe()), space, num_envs, rng, config)
    is_box = isinstance(space, kinds.Box) and np.issubdtype(space.dtype, np.floating) and len(space.shape) == 1
    if is_box:
        return Actions(continuous(continuous.describe()), space, num_envs, rng, config)
    parts = [type(part) for part in space] if isinstance(space, kinds.Tuple) else []
    if parts == [kinds.MultiDiscrete, kinds.Box] or isinstance(space, kinds.MultiDiscrete):
        return Actions(PartsHead(PartsHead.describe(sizes=count_parts(space)[0])), space, num_envs, rng, config)
    raise UnsupportedError(f"action space {space}")
