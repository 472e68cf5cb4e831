"""Estimate advantages over whole rollouts (GAE, Schulman et al. 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltune.engine.on_policy.rollout import Rollout

Array = NDArray[Any]


def compute_advantages(rollout: Rollout, values: Array, gamma: float, lambda_: float) -> Array:
    """Return generalised advantage estimates [T, N] float32, zero where a step is a reset.

    A termination has no value after it. A truncation is bootstrapped with the value of its last observation, which
    lies in the next row of ``values``. No advantage flows back over either.

    Args:
        rollout: The steps.
        values: [T + 1, N] of ``rollout.obs``.
        gamma: Discount.
        lambda_: Of the estimator.
    """
    alive = 1.0 - rollout.terminated
    # values[1:] is the value of the true last observation also where an episode ended: with autoreset NEXT_STEP the
    # first observation of the next episode comes one row later.
    deltas = rollout.rewards + gamma * alive * values[1:] - values[:-1]
    decay = (gamma * lambda_) * (alive * (1.0 - rollout.truncated))
    # A reset row has no transition: its delta must not leak (nothing flows over it, its predecessor is done).
    deltas *= rollout.valid
    steps, envs = deltas.shape
    # The recursion runs backwards in time, so NumPy can only work across environments: three calls a step. With few
    # environments those calls cost more than the arithmetic, and plain floats in a list are faster.
    if steps > 8 * envs:
        columns = [_discount(deltas[:, env].tolist(), decay[:, env].tolist()) for env in range(envs)]
        return np.array(columns, np.float32).T
    deltas, decay = deltas.astype(np.float32), decay.astype(np.float32)
    running = np.zeros(envs, np.float32)
    for step in range(steps - 1, -1, -1):
        running = deltas[step] + decay[step] * running
        deltas[step] = running
    result: Array = deltas
    return result


def compute_artificial_advantages(
    rollout: Rollout, values: Array, advantages: Array, gamma: float, lambda_: float
) -> Array:
    """Return the advantages of the artificial last step that RLlib appends to each episode chunk, [chunks].

    RLlib (``AddOneTsToEpisodesAndTruncate``, ``GeneralAdvantageEstimation`` of ray 2.60) masks these steps in the loss,
    but lets them into the mean and the deviation by which it standardises advantages. They compare the chunk's last
    observation with the return of the *next chunk's* first step, so they are large and move both figures. Without them
    training would not be stock RLlib's.

    Args:
        rollout: The steps. Chunks are ordered as RLlib's env runner returns them: ended episodes, then the rest.
        values: [T + 1, N] of ``rollout.obs``.
        advantages: Of the steps [T, N].
        gamma: Discount.
        lambda_: Of the estimator.
    """
    steps = len(rollout.valid)
    start = np.where(rollout.valid[0], 0, 1)  # each environment's first step of its present chunk
    first, last = [], []
    for step, env in zip(*np.nonzero(rollout.terminated | rollout.truncated), strict=True):
        first.append(values[start[env], env] + lambda_ * advantages[start[env], env])
        last.append(values[step + 1, env])
        start[env] = step + 2  # the step between only resets
    for env in np.flatnonzero(start < steps):
        first.append(values[start[env], env] + lambda_ * advantages[start[env], env])
        last.append(values[steps, env])
    # RLlib runs GAE over all chunks laid end to end: what follows a chunk's artificial step is the next chunk's first.
    following = np.append(first[1:], 0.0)
    result: Array = (gamma * following - np.array(last)).astype(np.float32)
    return result


def _discount(deltas: list[float], decay: list[float]) -> list[float]:
    """Sum ``deltas`` of one environment backwards with these factors; the list is overwritten."""
    running = 0.0
    for step in range(len(deltas) - 1, -1, -1):
        running = deltas[step] + decay[step] * running
        deltas[step] = running
    return deltas
