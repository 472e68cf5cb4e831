"""Generalised advantage estimation (Schulman et al. 2016) over whole rollouts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltune.engine.on_policy.rollout import Rollout

Array = NDArray[Any]


def compute_advantages(rollout: Rollout, values: Array, gamma: float, lambda_: float) -> Array:
    """Generalised advantage estimates (Schulman et al. 2016) [T, N] float32, zero where a step is a reset.

    A termination has no value after it; a truncation is bootstrapped with the value of its last
    observation, which lies in the next row of ``values``; neither lets advantages flow back over it.

    Args:
        rollout: The steps.
        values: [T + 1, N] of ``rollout.obs``.
        gamma: Discount.
        lambda_: Of the estimator.
    """
    alive = 1.0 - rollout.terminated
    deltas = rollout.rewards + gamma * alive * values[1:] - values[:-1]
    decay = (gamma * lambda_) * (alive * (1.0 - rollout.truncated))
    # A reset row has no transition: its delta must not leak (nothing flows over it, its predecessor is done).
    deltas *= rollout.valid
    steps, envs = deltas.shape
    if steps > 8 * envs:  # few environments: floats in a list beat arrays of a few elements
        columns = [_discount(deltas[:, env].tolist(), decay[:, env].tolist()) for env in range(envs)]
        return np.array(columns, np.float32).T
    deltas, decay = deltas.astype(np.float32), decay.astype(np.float32)
    running = np.zeros(envs, np.float32)
    for step in range(steps - 1, -1, -1):
        running = deltas[step] + decay[step] * running
        deltas[step] = running
    result: Array = deltas
    return result


def compute_artificial_advantages(rollout: Rollout, values: Array, gains: Array, gamma: float, lambda_: float) -> Array:
    """The advantages of the artificial last step that RLlib appends to each episode chunk, [chunks].

    RLlib (``AddOneTsToEpisodesAndTruncate``, ``GeneralAdvantageEstimation`` of ray 2.60) masks these steps in
    the loss but lets them into the mean and the deviation by which it standardises advantages. They compare
    the chunk's last observation with the return of the *next chunk's* first step, so they are large and move
    both figures; without them training would not be stock RLlib's.

    Args:
        rollout: The steps. Chunks are ordered as RLlib's env runner returns them: ended episodes, then the rest.
        values: [T + 1, N] of ``rollout.obs``.
        gains: The advantages of the steps [T, N].
        gamma: Discount.
        lambda_: Of the estimator.
    """
    steps = len(rollout.valid)
    start = np.where(rollout.valid[0], 0, 1)
    first, last = [], []
    for step, env in zip(*np.nonzero(rollout.terminated | rollout.truncated), strict=True):
        first.append(values[start[env], env] + lambda_ * gains[start[env], env])
        last.append(values[step + 1, env])
        start[env] = step + 2  # the step between only resets
    for env in np.flatnonzero(start < steps):
        first.append(values[start[env], env] + lambda_ * gains[start[env], env])
        last.append(values[steps, env])
    following = np.append(first[1:], 0.0)
    result: Array = (gamma * following - np.array(last)).astype(np.float32)
    return result


def _discount(deltas: list[float], decay: list[float]) -> list[float]:
    running = 0.0
    for step in range(len(deltas) - 1, -1, -1):
        running = deltas[step] + decay[step] * running
        deltas[step] = running
    return deltas
