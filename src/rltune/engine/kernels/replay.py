"""Turn environment steps into rows of a replay memory, and draw rows by their priorities."""

from __future__ import annotations

import math

import numpy as np

from rltune.engine.kernels.compiler import kernel

FAN_OUT = 8
"""Children of a node of the sum tree: as many float64 as lie in a cache line."""


@kernel
def count_step(rewards, terminated, truncated, over, valid, returns, lengths):  # type: ignore[no-untyped-def]
    """Count a step of each environment; return the number of steps that were no resets, and of episodes that ended.

    Args:
        rewards: [envs].
        terminated: [envs].
        truncated: [envs].
        over: Whether the episodes have ended, before the step and then after it [envs].
        valid: Gets whether the step was no reset [envs].
        returns: The episodes' returns so far [envs].
        lengths: The episodes' steps so far [envs].
    """
    taken, ended = 0, 0
    for env in range(over.size):
        valid[env], over[env] = not over[env], terminated[env] or truncated[env]
        returns[env] += rewards[env]
        lengths[env] += valid[env]
        taken += valid[env]
        ended += over[env]
    return taken, ended


@kernel
def pack(  # type: ignore[no-untyped-def]
    past_obs, past_actions, past_rewards, age, obs, actions, rewards, terminated, over, valid, after, gamma, rows
):
    """Take one step of each environment, and write the transitions that it completes; return their number.

    Args:
        past_obs: The observations of the last n steps, oldest first [n, envs, size]; also of actions and rewards.
        past_actions: [n, envs, size].
        past_rewards: [n, envs].
        age: The steps of the present episode so far [envs].
        obs: [envs, size], before the step.
        actions: [envs, size].
        rewards: [envs].
        terminated: [envs].
        over: [envs].
        valid: [envs].
        after: [envs, size], after the step.
        gamma: The discount of a step.
        rows: Room for n transitions of each environment [n * envs, width].
    """
    (n, envs), size, count = past_rewards.shape, obs.shape[1], 0
    for env in range(envs):
        for k in range(n - 1):
            past_obs[k, env] = past_obs[k + 1, env]
            past_actions[k, env] = past_actions[k + 1, env]
            past_rewards[k, env] = past_rewards[k + 1, env]
        past_obs[n - 1, env] = obs[env]
        past_actions[n - 1, env] = actions[env]
        past_rewards[n - 1, env] = rewards[env]
        age[env] = age[env] + 1 if valid[env] else 0  # A reset step sets the age of the episode to zero.
        for length in range(min(age[env], n), 0 if over[env] else n - 1, -1):
            total, discount = 0.0, 1.0
            for k in range(n - length, n):
                total += discount * past_rewards[k, env]
                discount *= gamma
            row = rows[count]
            row[:size] = past_obs[n - length, env]
            row[size : 2 * size] = after[env]
            row[2 * size : -2] = past_actions[n - length, env]
            row[-2] = total
            row[-1] = 0.0 if terminated[env] else discount
            count += 1
    return count


@kernel
def set_priorities(sums, minima, begins, index, priorities):  # type: ignore[no-untyped-def]
    """Set priorities, and sum up the nodes above them.

    Args:
        sums: The levels of the tree, one behind the other; the first are the priorities.
        minima: The least priorities in the same order.
        begins: Where each level begins.
        index: The priorities to set; of an index that occurs twice the last value counts.
        priorities: Their values.
    """
    for i in range(index.size):
        sums[index[i]] = minima[index[i]] = priorities[i]
    for i in range(index.size):
        node = index[i]
        for level in range(begins.size - 1):
            # Each node's sum is computed anew from its children. Adding differences would accumulate rounding errors
            # over millions of updates.
            node //= FAN_OUT
            block = begins[level] + node * FAN_OUT
            total, least = 0.0, math.inf
            for child in range(block, block + FAN_OUT):
                total += sums[child]
                least = min(least, minima[child])
            sums[begins[level + 1] + node], minima[begins[level + 1] + node] = total, least


@kernel
def find_priorities(sums, begins, capacity, mass):  # type: ignore[no-untyped-def]
    """Find the index below ``capacity`` at which the running sum of priorities passes each of ``mass``."""
    drawn = np.empty(mass.size, np.int64)
    for i in range(mass.size):
        node, rest = 0, mass[i]
        for level in range(begins.size - 1, -1, -1):
            node *= FAN_OUT
            # Rounding can make the mass as large as the node's own sum; then the last child is chosen.
            last = min(node + FAN_OUT - 1, (capacity - 1) // FAN_OUT**level)
            while node < last and rest >= sums[begins[level] + node]:
                rest -= sums[begins[level] + node]
                node += 1
        drawn[i] = node
    return drawn


def warm_up() -> None:
    """Call each kernel once."""
    row, flags, ages = np.zeros((1, 1), np.float32), np.ones(1, np.bool_), np.zeros(1, np.int64)
    rewards, rows = np.zeros(1), np.zeros((1, 5), np.float32)
    for actions in (row, ages[None]):  # The warm-up compiles `pack` for continuous and for discrete actions.
        history = [row[None].copy(), row[None].copy(), row.copy(), ages.copy()]
        pack(*history, row, actions, rewards, flags, flags, flags, row, 0.99, rows)
    count_step(rewards, flags, flags, flags.copy(), flags.copy(), rewards.copy(), ages.copy())
    sums, begins = np.zeros(FAN_OUT), np.zeros(1, np.int64)
    set_priorities(sums, sums.copy(), begins, np.zeros(1, np.int64), np.ones(1))
    find_priorities(sums, begins, 1, np.zeros(1))
