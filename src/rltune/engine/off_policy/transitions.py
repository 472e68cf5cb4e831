"""Pack environment steps into transitions, which are rows of the replay memory with n-step returns.

A row is ``[observation | next observation | action | reward | discount]`` in float32. The reward is the discounted sum
of n rewards; the discount is ``gamma ** n``, or zero where the episode terminated. At an episode's end the windows of
n - 1 to 1 steps become transitions too, with ``gamma ** k`` for k steps, as in Stable-Baselines3's
``NStepReplayBuffer``: otherwise the values of an episode's last states would be bootstrapped from, but never trained.
This differs from RLlib 2.60, whose prioritized buffer drops these windows, and whose ``EpisodeReplayBuffer`` bootstraps
them by ``gamma ** n`` even where the episode terminated.

Rows instead of episodes, because an episode buffer cuts each window out of its episode anew at every draw; here a draw
is one gather of finished rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from rltune.engine.kernels.replay import count_step, pack
from rltune.engine.sampling.action_distributions import Actions
from rltune.engine.sampling.observation_filter import RunningMoments
from rltune.engine.sampling.vector_envs import ArrayEnvs
from rltune.envs.episode import EpisodeRecord

Array = NDArray[Any]


@dataclass(frozen=True)
class RowLayout:
    """The layout of a transition in a row: observation, next observation, action, reward, discount.

    Attributes:
        action_size: Floats of one action (1 for discrete ones).
    """

    obs_shape: tuple[int, ...]
    action_size: int

    @property
    def obs_size(self) -> int:
        """The number of floats in an observation."""
        return math.prod(self.obs_shape)

    @property
    def width(self) -> int:
        """The number of floats in a row."""
        return 2 * self.obs_size + self.action_size + 2

    def views(self, rows: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return observation, next observation, action, reward and discount columns of rows (array or tensor)."""
        size = self.obs_size
        obs, after, action = rows[:, :size], rows[:, size : 2 * size], rows[:, 2 * size : -2]
        if len(self.obs_shape) != 1:
            obs, after = (part.reshape(-1, *self.obs_shape) for part in (obs, after))
        return obs, after, action, rows[:, -2], rows[:, -1]


class TransitionPacker:
    """Packs the steps of all environments into transitions.

    Args:
        n_step: Steps of a return.
    """

    def __init__(self, layout: RowLayout, num_envs: int, n_step: int, gamma: float) -> None:
        self.layout, self.gamma = layout, gamma
        self._rows = np.zeros((n_step * num_envs, layout.width), np.float32)
        # The last n steps of each environment, the oldest first; "age" counts how many belong to the current episode.
        self._past: dict[str, Array] = {
            "obs": np.zeros((n_step, num_envs, layout.obs_size), np.float32),
            "actions": np.zeros((n_step, num_envs, layout.action_size), np.float32),
            "rewards": np.zeros((n_step, num_envs), np.float32),
            "age": np.zeros(num_envs, np.int64),
        }

    def state(self) -> dict[str, Array]:
        """Return the last n steps of each environment, for a checkpoint."""
        return {name: part.copy() for name, part in self._past.items()}

    def load(self, state: dict[str, Array]) -> None:
        """Restore what `state` returned; if n has changed, no steps are restored."""
        if state["obs"].shape == self._past["obs"].shape:
            for name, part in self._past.items():
                part[:] = state[name]

    def add(
        self, obs: Array, actions: Array, rewards: Array, terminated: Array, over: Array, valid: Array, after: Array
    ) -> Array:
        """Add one step of each environment, and return the transitions that it completes.

        Args:
            obs: [envs, ...], before the step.
            actions: [envs] or [envs, size].
            rewards: [envs].
            terminated: [envs].
            over: [envs]; True where the episode ended, terminated or truncated.
            valid: [envs]; False where the step only reset the environment.
            after: [envs, ...], after the step.

        Returns:
            [transitions, width], overwritten by the next call.
        """
        flat = [part if part.ndim == 2 else part.reshape(len(part), -1) for part in (obs, actions, after)]
        count = pack(*self._past.values(), *flat[:2], rewards, terminated, over, valid, flat[2], self.gamma, self._rows)
        return self._rows[:count]

    def cut(self, envs: Sequence[int], obs: Array) -> Array:
        """Return the transitions that end where an environment has failed, which its last step did not complete.

        The windows of n - 1 to 1 steps before the failed one end in the observation in which it failed, as at a
        truncation.

        Args:
            envs: The environments that have failed.
            obs: [envs, ...], the last observation of every environment.

        Returns:
            [transitions, width].
        """
        steps, ages = len(self._past["obs"]), self._past["age"]
        rows = []
        for env in envs:
            for length in range(min(ages[env], steps - 1), 0, -1):
                past_obs, past_actions, rewards = (
                    self._past[name][steps - length :, env] for name in ("obs", "actions", "rewards")
                )
                numbers = float(rewards @ self.gamma ** np.arange(length)), self.gamma**length
                rows.append(np.concatenate([past_obs[0], obs[env].reshape(-1), past_actions[0], numbers]))
        return np.array(rows, np.float32).reshape(-1, self.layout.width)


class Stepper:
    """Steps environments and packs transitions, in the trial's process or in a remote env runner.

    Args:
        actions: Maps actions to the environments' bounds.
        choose: Maps observations and the step count so far to actions.
        seeds: The seeds of the environments' first reset, one each; None for random ones.
    """

    def __init__(
        self,
        envs: ArrayEnvs,
        actions: Actions,
        choose: Callable[[Array, int], Array],
        packer: TransitionPacker,
        *,
        normaliser: RunningMoments | None,
        seeds: Sequence[int] | None,
    ) -> None:
        self.envs, self.actions, self.choose, self.packer = envs, actions, choose, packer
        self.normaliser, self.seeds = normaliser, seeds
        shape = (envs.num_envs, *(envs.single_observation_space.shape or ()))
        self._obs, self._after = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
        self._over, self._valid = np.zeros((2, envs.num_envs), np.bool_)
        self._returns, self._lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        self.episodes: list[EpisodeRecord] = []
        self._started = False

    def state(self) -> dict[str, Any] | None:
        """Return the state of the running episodes; None before the first step."""
        if not self._started:
            return None
        parts = {"obs": self._obs, "over": self._over, "returns": self._returns, "lengths": self._lengths}
        return {name: part.copy() for name, part in parts.items()} | {"window": self.packer.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; the environments themselves were restored before."""
        self._obs[:], self._over[:] = state["obs"], state["over"]
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]
        self.packer.load(state["window"])
        self._started = True

    def _write(self, raw: Array, out: Array) -> None:
        if self.normaliser is None:
            out[...] = raw
        else:
            self.normaliser(raw, out)

    def step(self, clock: int) -> tuple[Array, int]:
        """Step each environment once, and return the completed transitions and the number of steps.

        Args:
            clock: Environment steps before it, for exploration schedules.

        Returns:
            The completed transitions (overwritten by the next call) and the environment steps taken.
        """
        if not self._started:
            self._write(self.envs.reset(self.seeds), self._obs)
            self._started = True
        actions = self.choose(self._obs, clock)
        raw, rewards, terminated, truncated = self.envs.step(self.actions.for_env(actions))
        self._write(raw, self._after)
        taken, ended = count_step(rewards, terminated, truncated, self._over, self._valid, self._returns, self._lengths)
        records = dict(self.envs.records)
        failed = [env for env, record in records.items() if record.cut]
        if failed:  # A step that has failed is no transition.
            remaining = self.packer.cut(failed, self._obs)
            self._valid[failed] = False
            self._lengths[failed] -= 1
            taken -= len(failed)
        rows = self.packer.add(self._obs, actions, rewards, terminated, self._over, self._valid, self._after)
        if failed:
            rows = np.concatenate([remaining, rows])
        if ended:
            self._end_episodes(self._over, records)
        # The next observation of this step is the observation of the next step, so the two buffers are swapped, not
        # copied. At an episode's end, the buffer has its last observation, which the following reset step ignores.
        self._obs, self._after = self._after, self._obs
        return rows, taken

    def _end_episodes(self, over: Array, records: Mapping[int, EpisodeRecord]) -> None:
        for env in np.flatnonzero(over).tolist():
            total, length = float(self._returns[env]), int(self._lengths[env])
            self.episodes.append(records.get(env) or EpisodeRecord(total, length, total))
        self._returns[over], self._lengths[over] = 0.0, 0

    def collect(self, steps: int, clock: int) -> tuple[Array, int, list[EpisodeRecord]]:
        """Take at least ``steps`` environment steps; return their transitions, count and ended episodes."""
        parts, taken = [], 0
        with torch.inference_mode():
            while taken < steps:
                rows, count = self.step(clock + taken)
                parts.append(rows.copy())
                taken += count
        return np.concatenate(parts), taken, self.take_episodes()

    def take_episodes(self) -> list[EpisodeRecord]:
        """Return the episodes that ended since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes
