"""Collect on-policy rollouts from array environments into preallocated arrays.

Runs in the trial's process or inside a remote env runner; knows nothing of RLlib.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rltune.engine.sampling.action_distributions import Actions
from rltune.engine.sampling.observation_filter import Moments, RunningMoments
from rltune.engine.sampling.vector_envs import ArrayEnvs, find_row_dtype
from rltune.envs.episode import EpisodeRecord
from rltune.envs.step_count import STEPS, SamplingEnded

Array = NDArray[Any]


@dataclass
class Rollout:
    """The data of T steps in N environments; the arrays are views that the next rollout overwrites.

    Attributes:
        obs: [T + 1, N, ...] float32, as the policy saw them, or rows of bytes; the last one follows the last step.
        actions: [T, N] or [T, N, size], as the distribution gave them.
        dist: [T, N, inputs], the distribution's inputs.
        rewards: [T, N] float32.
        terminated: [T, N].
        truncated: [T, N].
        valid: [T, N]; False where the step only reset the environment or has failed.
        episodes: The episodes that ended, in order.
        moments: What the normaliser learned since it was last loaded, or None.
    """

    obs: Array
    actions: Array
    dist: Array
    rewards: Array
    terminated: Array
    truncated: Array
    valid: Array
    episodes: list[EpisodeRecord]
    moments: Moments | None = None

    @property
    def num_steps(self) -> int:
        """The number of environment steps, without those that are not valid."""
        return int(np.count_nonzero(self.valid))


class EpisodeTracker:
    """Sums the returns and lengths of episodes that extend over several rollouts."""

    def __init__(self, num_envs: int) -> None:
        self.returns = np.zeros(num_envs)
        self.lengths = np.zeros(num_envs, np.int64)

    def add(
        self, rewards: Array, valid: Array, done: Array, records: Mapping[tuple[int, int], EpisodeRecord]
    ) -> list[EpisodeRecord]:
        """Add [T, N] steps, and return the ended episodes in order of time.

        Args:
            records: What is known of an episode by the step and environment of its end; others are worth their return.
        """
        # An episode's return is the difference of two cumulative sums of rewards, so the Python loop only visits ended
        # episodes.
        returns = self.returns + np.cumsum(rewards, axis=0, dtype=np.float64)
        lengths = self.lengths + np.cumsum(valid, axis=0)
        ended: list[EpisodeRecord] = []
        base_return, base_length = np.zeros(len(self.returns)), np.zeros(len(self.returns), np.int64)
        for step, env in zip(*np.nonzero(done), strict=True):
            total, length = float(returns[step, env] - base_return[env]), int(lengths[step, env] - base_length[env])
            # An episode that was cut has ended by the step before the one that failed, which has its record.
            if (after := records.get((step + 1, env))) is None or not after.cut:
                ended.append(records.get((step, env)) or EpisodeRecord(total, length, total))
            base_return[env], base_length[env] = returns[step, env], lengths[step, env]
        self.returns, self.lengths = returns[-1] - base_return, lengths[-1] - base_length
        return ended


class Collector:
    """Steps environments with a policy, and records the steps in arrays.

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
        self._last = 0  # The index of the previous rollout's newest observation, with which the next one begins.
        # The rows and environment steps so far of a rollout that a SamplingEnded has interrupted.
        self._row = self._taken = 0
        # The records of episodes that have ended in the rollout, by row and environment.
        self._records: dict[tuple[int, int], EpisodeRecord] = {}

    def _allocate(self, rows: int) -> None:
        """Allocate buffers for ``rows`` steps of all environments, and copy the contents of the present buffers."""
        envs, space = self.envs.num_envs, self.envs.row_space
        fresh = {
            "_obs": np.zeros((rows + 1, envs, *(space.shape or ())), find_row_dtype(space)),
            "_actions": np.zeros((rows, envs, *self.actions.shape), self.actions.dtype),
            "_dist": np.zeros((rows, envs, self.actions.num_inputs), np.float32),
            "_rewards": np.zeros((rows, envs), np.float32),
            "_terminated": np.zeros((rows, envs), np.bool_),
            "_truncated": np.zeros((rows, envs), np.bool_),
            # Entry [t, i] is true if the last step before t ended an episode, so that step t only resets environment i,
            # or if step t has failed.
            "_over": np.zeros((rows + 1, envs), np.bool_),
        }
        for name, array in fresh.items():
            if self._rows:
                old = getattr(self, name)
                array[: len(old)] = old
            setattr(self, name, array)
        self._rows = rows

    def state(self) -> dict[str, Any] | None:
        """Return the state of the running episodes and of an interrupted rollout; None before the first step."""
        if not self._started:
            return None
        obs, over = self._obs[self._last].copy(), self._over[self._last].copy()
        episodes = {"returns": self._episodes.returns, "lengths": self._episodes.lengths}
        part = {name: array[: self._row].copy() for name, array in self._part().items()}
        records = [(*place, *record) for place, record in self._records.items()]
        return {"obs": obs, "over": over, **episodes, "part": part, "taken": self._taken, "records": records}

    @property
    def kept_steps(self) -> int:
        """The environment steps so far of an interrupted rollout, which `state` has."""
        return self._taken

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; the environments themselves were restored before."""
        part = state["part"]
        self._row, self._taken = len(part["rewards"]), state["taken"]
        self._records = {(row, env): EpisodeRecord(*record) for row, env, *record in state["records"]}
        self._allocate(self._row + 1)
        self._obs[0], self._over[0] = state["obs"], state["over"]
        self._episodes.returns, self._episodes.lengths = state["returns"], state["lengths"]
        for name, array in self._part().items():
            array[: self._row] = part[name]
        self._started, self._last = True, 0

    def load_rollout(self, state: dict[str, Any]) -> None:
        """Restore an interrupted rollout whose environments are gone: their episodes are cut where it was saved.

        Its next row only resets, in all environments. The step before is bootstrapped, and the episodes that ran then
        count in no score, as after a failure.
        """
        row = len(state["part"]["rewards"])
        if not row:
            return
        self.load(state)
        self._allocate(row + 2)
        running = ~self._over[row]
        self._truncated[row - 1, running] = True
        self._records |= {(row, int(env)): EpisodeRecord(cut=True) for env in np.flatnonzero(running)}
        self._over[row] = True
        self._write(self.envs.reset(self.seeds), row + 1)
        self._row = row + 1

    def _part(self) -> dict[str, Array]:
        """Return views of the buffers that a rollout fills row by row, for `state` and `load`."""
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
        """Take at least ``steps`` environment steps, and fewer than one step of all environments more.

        Returns:
            Views of this collector's buffers, which the next call overwrites.

        Raises:
            SamplingEnded: Sampling was to end before that. The next call goes on with the same rollout.
        """
        envs = self.envs.num_envs
        # Rows with reset steps have fewer environment steps, so the number of rows is not known in advance. A quarter
        # more than without resets is allocated; with very short episodes, twice as many follow.
        if self._rows < math.ceil(steps / envs) + 1:
            self._allocate(math.ceil(steps / envs * 1.25) + 2)
        if not self._started:
            self._start()
        elif self._last:  # The new rollout begins with the observation after the previous rollout's last step.
            self._obs[0] = self._obs[self._last]
            self._over[0] = self._over[self._last]
            self._last = 0
        row, taken = self._row, self._taken
        while taken < steps:
            if STEPS.is_ending or STEPS.steps >= STEPS.pause_at:
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
            if self.envs.records:
                self._keep_records(row)
            # For small boolean arrays, count_nonzero is several times as fast as sum().
            taken += envs - int(np.count_nonzero(over[row]))
            row += 1
            self._write(obs, row)
        return self._finish(row)

    def _keep_records(self, row: int) -> None:
        """Keep the records of the episodes that a row has ended, and drop the steps that have failed.

        The environment truncates such an episode by itself one step earlier: the step before it is bootstrapped from
        the observation in which the copy failed, and the failed one becomes a second step that only resets.
        """
        for env, record in self.envs.records:
            self._records[row, env] = record
            if record.cut:
                self._truncated[row, env] = False
                # At a rollout's begin the step before it was bootstrapped as the last one of the previous rollout.
                if row and not self._over[row - 1, env]:
                    self._truncated[row - 1, env] = True
                self._over[row, env] = True

    def _finish(self, rows: int) -> Rollout:
        """Record the ended episodes, and return the rollout as views of the buffers."""
        valid = ~self._over[:rows]
        done = self._over[1 : rows + 1]
        episodes = self._episodes.add(self._rewards[:rows], valid, done, self._records)
        self._records = {}
        moments = None
        if self.normaliser is not None:
            # Observation statistics that are pending belong to this rollout, so they are merged before they are sent.
            self.normaliser.flush()
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
