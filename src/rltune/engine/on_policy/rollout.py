"""Collect on-policy rollouts: from a policy and array environments into preallocated arrays.

Runs in the trial's process or inside a remote env runner; knows nothing of RLlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltune.engine.sampling.action_distributions import Actions
from rltune.engine.sampling.observation_filter import Moments, RunningMoments
from rltune.engine.sampling.vector_envs import ArrayEnvs
from rltune.envs.step_count import STEPS, SamplingEnded

Array = NDArray[Any]


@dataclass
class Rollout:
    """Steps of N environments over T vector steps; views that the next rollout overwrites.

    Attributes:
        obs: [T + 1, N, ...] float32, as the policy saw them; the last row follows the last step.
        actions: [T, N] or [T, N, size], as the distribution gave them.
        dist: [T, N, inputs], the distribution's inputs.
        rewards: [T, N] float32.
        terminated: [T, N].
        truncated: [T, N].
        valid: [T, N]; False where the step only reset the environment.
        episodes: Return and length of each episode that ended, in order.
        moments: What the normaliser learned since it was last loaded, or None.
    """

    obs: Array
    actions: Array
    dist: Array
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    episodes: list[tuple[float, int]]
    moments: Moments | None = None

    @property
    def num_steps(self) -> int:
        """Environment steps, resets not counted."""
        return int(np.count_nonzero(self.valid))


class EpisodeTracker:
    """Sums up returns and lengths of episodes across rollouts."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)

    def add(self, rewards: Array, valid: Array, done: Array) -> list[tuple[float, int]]:
        """Add [T, N] steps; returns and lengths of the episodes that ended, in order of time."""
        # An episode's return is the running sum of rewards at its end minus that at its start. So the Python loop runs
        # over ended episodes only.
        returns = self.returns + np.cumsum(rewards, axis=0, dtype=np.float64)
        lengths = self.lengths + np.cumsum(valid, axis=0)
        ended: list[tuple[float, int]] = []
        base_return, base_length = np.zeros(len(self.returns)), np.zeros(len(self.returns), np.int64)
        for step, env in zip(*np.nonzero(done), strict=True):
            ended.append((float(returns[step, env] - base_return[env]), int(lengths[step, env] - base_length[env])))
            base_return[env], base_length[env] = returns[step, env], lengths[step, env]
        self.returns, self.lengths = returns[-1] - base_return, lengths[-1] - base_length
        return ended


class Collector:
    """Steps environments with a policy into arrays.

    Args:
        actions: Draws actions from the distribution's inputs.
        policy: Maps observations [N, ...] to distribution inputs [N, inputs].
        seeds: The seeds of the environments' first reset, one each; None for random ones.
        explore: Draw actions instead of taking the most likely ones.
    """

    _obs: Array
    _actions: Array
    _dist: Array
    _rewards: Array
    _terminated: Array
    _truncated: Array
    _over: Array

    def __init__(
        self,
        envs: ArrayEnvs,
        actions: Actions,
        policy: Callable[[Array], Array],
        *,
        normaliser: RunningMoments | None,
        seeds: Sequence[int] | None,
        explore: bool = True,
    ) -> None:
        self.envs, self.actions, self.policy = envs, actions, policy
        self.normaliser, self.seeds = normaliser, seeds
        self._choose = actions.sample if explore else actions.best
        self._episodes = EpisodeTracker(envs.num_envs)
        self._started = False
        self._rows = 0
        self._last = 0  # The row of the newest observation in the previous rollout.
        self._row = self._taken = 0  # The rows and environment steps of a rollout that ended early.

    def _allocate(self, rows: int) -> None:
        """Allocate buffers for ``rows`` vector steps, keeping what is in the present ones."""
        envs, shape = self.envs.num_envs, self.envs.single_observation_space.shape or ()
        fresh = {
            "_obs": np.zeros((rows + 1, envs, *shape), np.float32),
            "_actions": np.zeros((rows, envs, *self.actions.shape), self.actions.dtype),
            "_dist": np.zeros((rows, envs, self.actions.num_inputs), np.float32),
            "_rewards": np.zeros((rows, envs), np.float32),
            "_terminated": np.zeros((rows, envs), np.bool_),
            "_truncated": np.zeros((rows, envs), np.bool_),
            # Row t is true if the step before t ended an episode, so that step t only resets.
            "_over": np.zeros((rows + 1, envs), np.bool_),
        }
        for name, array in fresh.items():
            if self._rows:
                old = getattr(self, name)
                array[: len(old)] = old
            setattr(self, name, array)
        self._rows = rows

    def state(self) -> dict[str, Any] | None:
        """Return the episodes under way, and the rollout that was ended early; None before the first step."""
        if not self._started:
            return None
        obs, over = self._obs[self._last].copy(), self._over[self._last].copy()
        episodes = {"returns": self._episodes.returns, "lengths": self._episodes.lengths}
        part = {name: array[: self._row].copy() for name, array in self._part().items()}
        return {"obs": obs, "over": over, **episodes, "part": part, "taken": self._taken}

    def load(self, state: dict[str, Any]) -> None:
        """Set what `state` returned; the environments are as they were then."""
        part = state.get("part", {})  # Checkpoints of older versions lack the key "part".
        self._row, self._taken = len(part.get("rewards", ())), state.get("taken", 0)
        self._allocate(self._row + 1)
        self._obs[0], self._over[0] = state["obs"], state["over"]
        self._episodes.returns, self._episodes.lengths = state["returns"], state["lengths"]
        for name, array in self._part().items():
            if self._row:
                array[: self._row] = part[name]
        self._started, self._last = True, 0

    def _part(self) -> dict[str, Array]:
        """Return what a rollout writes, row by row."""
        names = ("_actions", "_dist", "_rewards", "_terminated", "_truncated")
        return {"obs": self._obs[1:], "over": self._over[1:]} | {name[1:]: getattr(self, name) for name in names}

    def _start(self) -> None:
        raw = self.envs.reset(self.seeds)
        self._write(raw, 0)
        self._over[0] = False
        self._started = True

    def _write(self, raw: Array, row: int) -> None:
        if self.normaliser is None:
            self._obs[row] = raw
        else:
            self.normaliser(raw, self._obs[row])

    def collect(self, steps: int) -> Rollout:
        """Take at least ``steps`` environment steps (less than one vector step more).

        Returns:
            Views of this collector's buffers, which the next call overwrites.

        Raises:
            SamplingEnded: Sampling was to end before that. The next call goes on with the same rollout.
        """
        envs = self.envs.num_envs
        # Reset steps fill rows without counting, so the number of rows is not known beforehand. A quarter more rows
        # than without resets are allocated, and twice as many if episodes are so short that this is not enough.
        if self._rows < math.ceil(steps / envs) + 1:
            self._allocate(math.ceil(steps / envs * 1.25) + 2)
        if not self._started:
            self._start()
        elif self._last:  # A rollout begins with the last observation of the previous rollout.
            self._obs[0] = self._obs[self._last]
            self._over[0] = self._over[self._last]
            self._last = 0
        row, taken = self._row, self._taken
        while taken < steps:
            if STEPS.is_ending:
                self._row, self._taken = row, taken
                raise SamplingEnded
            if row == self._rows:
                self._allocate(2 * self._rows)
            dist = self.policy(self._obs[row])
            actions = self._choose(dist)
            obs, rewards, terminated, truncated = self.envs.step(self.actions.for_env(actions))
            self._dist[row] = dist
            self._actions[row] = actions
            self._rewards[row] = rewards
            self._terminated[row] = terminated
            self._truncated[row] = truncated
            over = self._over
            np.logical_or(terminated, truncated, out=over[row + 1])
            # For a few booleans, count_nonzero is several times faster than sum(), which takes the general reduction.
            taken += envs - int(np.count_nonzero(over[row]))
            row += 1
            self._write(obs, row)
        return self._finish(row)

    def _finish(self, rows: int) -> Rollout:
        """Sum up the episodes and return views of the buffers."""
        valid = ~self._over[:rows]
        done = self._over[1 : rows + 1]
        episodes = self._episodes.add(self._rewards[:rows], valid, done)
        moments = None
        if self.normaliser is not None:
            self.normaliser.flush()  # Pending statistics belong to this rollout and must reach the learner with it.
            moments = self.normaliser.delta
        self._last, self._row, self._taken = rows, 0, 0
        return Rollout(
            self._obs[: rows + 1],
            self._actions[:rows],
            self._dist[:rows],
            self._rewards[:rows],
            self._terminated[:rows],
            self._truncated[:rows],
            valid,
            episodes,
            moments,
        )
