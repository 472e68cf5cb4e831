"""Lay a rollout out as RLlib's learner sees it: episode chunk after episode chunk.

A chunk is the part of an episode that lies in one rollout. RLlib (``AddOneTsToEpisodesAndTruncate`` of ray 2.60)
appends an artificial step to each, which holds the chunk's last observation, and masks it in the loss. It has two
effects all the same: it counts where advantages are standardised, and it takes a place in a minibatch. Both are kept
here; without them training would not be stock RLlib's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltune.engine.on_policy.rollout import Rollout

Array = NDArray[Any]


@dataclass
class Chunks:
    """Episode chunks, in the order in which RLlib's env runner returns them: ended ones by time, then the rest.

    Attributes:
        env: [chunks], the environment.
        first: [chunks], the vector step of its first step.
        last: [chunks], the vector step of its last step.
    """

    env: Array
    first: Array
    last: Array

    def order_steps(self, num_envs: int) -> Array:
        """Return where each chunk's steps lie, chunk after chunk, in arrays [T * num_envs, ...]."""
        lengths = self.last - self.first + 1
        ends = np.cumsum(lengths)
        # Steps are counted on over all chunks; at the beginning of each chunk the count jumps to the chunk's first
        # step.
        steps = np.arange(ends[-1]) + np.repeat(self.first - (ends - lengths), lengths)
        result: Array = steps * num_envs + np.repeat(self.env, lengths)
        return result

    def loss_mask(self) -> Array:
        """Return RLlib's loss mask over steps and artificial steps; False at the artificial ones, each chunk's last."""
        ends = np.cumsum(self.last - self.first + 2)
        mask = np.ones(ends[-1], np.bool_)
        mask[ends - 1] = False
        return mask


def find_chunks(rollout: Rollout) -> Chunks:
    """Return the rollout's episode chunks."""
    steps = len(rollout.valid)
    start = np.where(rollout.valid[0], 0, 1)  # The first step of each environment's present chunk.
    chunks = []
    for step, env in zip(*np.nonzero(rollout.terminated | rollout.truncated), strict=True):
        chunks.append((env, start[env], step))
        start[env] = step + 2  # The step between two episodes only resets the environment.
    # An environment that has just been reset has no step in its chunk yet.
    chunks.extend((env, start[env], steps - 1) for env in np.flatnonzero(start < steps))
    return Chunks(*np.array(chunks, np.int64).T)
