"""Compute generalised advantage estimates over whole rollouts (GAE, Schulman et al. 2016)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltune.engine.on_policy.rollout import Rollout

Array = NDArray[Any]


def compute_advantages(rollout: Rollout, values: Array, gamma: float, lambda_: float) -> Array:
    """Compute generalised advantage estimates [T, N] in float32; the entries of reset steps are meaningless.

    A termination has no value after it. A truncation is bootstrapped with the value of its last observation, which
    lies in the next row of ``values``. No advantage flows back over either.

    Args:
        values: [T + 1, N] of ``rollout.obs``.
    """
    alive = 1.0 - rollout.terminated
    # If an episode ended at step t, then values[t + 1] still belongs to its last observation, because with autoreset
    # NEXT_STEP the next episode's first observation comes one row later.
    deltas = rollout.rewards + gamma * alive * values[1:] - values[:-1]
    decay = (gamma * lambda_) * (alive * (1.0 - rollout.truncated))
    # A reset step is no transition; its delta does not reach other steps, because the decay before it is zero.
    steps, envs = deltas.shape
    # GAE runs backwards in time, so NumPy can only vectorise over environments, with three calls per step. With few
    # environments, these calls cost more than the arithmetic, and a loop over Python floats is faster.
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


def compute_artificial_advantages(first_returns: Array, last_values: Array, gamma: float) -> Array:
    """Compute the advantages [chunks] of the artificial steps that RLlib appends to episode chunks (see `Chunks`).

    RLlib runs GAE (``GeneralAdvantageEstimation`` of ray 2.60) over all chunks laid end to end: an artificial step
    compares the chunk's last observation with the return of the *next* chunk's first step. These advantages are large,
    and move the figures by which advantages are standardised.

    Args:
        first_returns: Of each chunk's first step [chunks]: its value, and its advantage times lambda.
        last_values: Of the observation after each chunk's last step [chunks].
    """
    result: Array = (gamma * np.append(first_returns[1:], 0.0) - last_values).astype(np.float32)
    return result


def _discount(deltas: list[float], decay: list[float]) -> list[float]:
    """Compute the discounted sums of one environment's TD errors backwards in time, in place."""
    running = 0.0
    for step in range(len(deltas) - 1, -1, -1):
        running = deltas[step] + decay[step] * running
        deltas[step] = running
    return deltas
