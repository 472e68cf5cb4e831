"""Order a rollout's steps as RLlib's learner receives them: episode chunk by episode chunk.

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
    """Parts of episodes in a rollout, in the order of RLlib's env runner: ended ones by time, then running ones.

    Attributes:
        env: [chunks], the environment.
        first: [chunks], the vector step of its first step.
        last: [chunks], the vector step of its last step.
    """

    env: Array
    first: Array
    last: Array

    def order_steps(self, num_envs: int) -> Array:
        """Return the indices that sort flattened rollout arrays [T * num_envs, ...] chunk by chunk."""
        lengths = self.last - self.first + 1
        ends = np.cumsum(lengths)
        # A running count gives each chunk consecutive steps; the repeated offset moves it to the chunk's first step.
        steps = np.arange(ends[-1]) + np.repeat(self.first - (ends - lengths), lengths)
        result: Array = steps * num_envs + np.repeat(self.env, lengths)
        return result

    def loss_mask(self) -> Array:
        """Return RLlib's loss mask over all chunks: False for the artificial step that RLlib appends to each chunk."""
        ends = np.cumsum(self.last - self.first + 2)
        mask = np.ones(ends[-1], np.bool_)
        mask[ends - 1] = False
        return mask


def find_chunks(rollout: Rollout) -> Chunks:
    """Find the episode chunks of a rollout."""
    steps = len(rollout.valid)
    # Between two episodes of an environment there is always a step that is not valid, because it only resets.
    apart = np.zeros((1, rollout.valid.shape[1]), np.bool_)
    padded = np.concatenate([apart, rollout.valid, apart])
    env, first = np.nonzero((padded[1:-1] & ~padded[:-2]).T)
    _, last = np.nonzero((padded[1:-1] & ~padded[2:]).T)
    has_ended = (rollout.terminated | rollout.truncated)[last, env]
    order = np.lexsort((env, np.where(has_ended, last, steps)))
    return Chunks(env[order], first[order], last[order])
