"""Pack environment steps into transitions, which are rows of the replay memory with n-step returns.

A row is ``[observation | next observation | action | reward | discount]`` in float32. The reward is the discounted sum
of n rewards; the discount is ``gamma ** n``, or zero where the episode terminated. At an episode's end the windows of
n - 1 to 1 steps become transitions too, with ``gamma ** k`` for k steps, as in Stable-Baselines3's
``NStepReplayBuffer``: otherwise the values of an episode's last states would be bootstrapped from, but never trained.
This differs from RLlib 2.60, whose prioritized buffer drops these windows, and whose ``EpisodeReplayBuffer`` bootstraps
them by ``gamma ** n`` even where the episode terminated.

Where observations are rows of bytes, that is images, each is stored once (`rltune.engine.off_policy.replay.Frames`),
and a transition has the numbers of its two. The stepper numbers the observations in their order, and the replay memory
knows where it has put each.

Rows instead of episodes, because an episode buffer cuts each window out of its episode anew at every draw; here a draw
is one gather of finished rows.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from rltune.engine.kernels.replay import count_step, pack
from rltune.engine.sampling.action_distributions import Actions
from rltune.engine.sampling.observation_filter import RunningMoments
from rltune.engine.sampling.vector_envs import ArrayEnvs, find_row_dtype
from rltune.envs.episode import EpisodeRecord

Array = NDArray[Any]


NUMBERS = 2**16
"""Observations are numbered from 0 to this again and again. More are never waited for, and float32 has each number."""


class Steps(NamedTuple):
    """The transitions of some steps of the environments.

    Attributes:
        rows: The transitions [transitions, width].
        frames: The observations that no other steps have, if transitions have their numbers [observations, bytes].
        first: The number of the first of them.
        source: The number of the env runner; each numbers its observations by itself.
    """

    rows: Array
    frames: Array | None = None
    first: int = 0
    source: int = 0


class Batch(NamedTuple):
    """Transitions whose observations are rows of bytes; arrays or tensors.

    Attributes:
        rows: [batch, width], with numbers in place of observations.
        obs: The observations [batch, bytes].
        after: The next observations [batch, bytes].
    """

    rows: Any
    obs: Any
    after: Any


def to_tensors(batch: Any, device: torch.device) -> Any:
    """Return a batch, an array or a `Batch`, as tensors on a device."""
    if isinstance(batch, Batch):
        return Batch(*(torch.from_numpy(part).to(device, non_blocking=True) for part in batch))
    return torch.from_numpy(batch).to(device, non_blocking=True)


@dataclass(frozen=True)
class RowLayout:
    """The layout of a transition in a row: observation, next observation, action, reward, discount.

    Attributes:
        obs_shape: The shape of an observation.
        action_size: Floats of one action (1 for discrete ones).
        is_numbered: Whether the observation's number takes its place.
    """

    obs_shape: tuple[int, ...]
    action_size: int
    is_numbered: bool = False

    @property
    def obs_size(self) -> int:
        """The number of floats in an observation, or in what takes its place."""
        return 1 if self.is_numbered else math.prod(self.obs_shape)

    @property
    def width(self) -> int:
        """The number of floats in a row."""
        return 2 * self.obs_size + self.action_size + 2

    def views(self, rows: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Return observation, next observation, action, reward and discount of rows (array, tensor or `Batch`)."""
        if isinstance(rows, Batch):
            return rows.obs, rows.after, *self.views(rows.rows)[2:]
        size = self.obs_size
        obs, after, action = rows[:, :size], rows[:, size : 2 * size], rows[:, 2 * size : -2]
        if len(self.obs_shape) != 1 and not self.is_numbered:
            obs, after = (part.reshape(-1, *self.obs_shape) for part in (obs, after))
        return obs, after, action, rows[:, -2], rows[:, -1]


class TransitionPacker:
    """Packs the steps of all environments into transitions.

    Args:
        n_step: Steps of a return.
    """

    def __init__(self, layout: RowLayout, num_envs: int, n_step: int, gamma: float) -> None:
        self.layout, self.gamma, self.num_steps = layout, gamma, n_step
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


class FrameNumbers:
    """Numbers observations in their order, and hands them out once.

    Args:
        num_envs: Observations of each step.
        num_steps: How many of the last steps transitions may still be made of.

    Attributes:
        last: The numbers of the newest observations [envs, 1].
    """

    def __init__(self, num_envs: int, num_steps: int) -> None:
        self.last = np.zeros((num_envs, 1), np.float32)
        self._next = 0
        # A checkpoint has the observations of transitions that are not complete, since the replay memory may be lost.
        self._recent: deque[Array] = deque(maxlen=num_steps + 1)
        self._waiting: list[Array] = []

    def add(self, frames: Array) -> Array:
        """Number the observations of a step [envs, bytes]; return the numbers [envs, 1]."""
        self.last = ((self._next + np.arange(len(frames))) % NUMBERS).astype(np.float32)[:, None]
        self._next += len(frames)
        self._recent.append(frames.copy())
        self._waiting.append(self._recent[-1])
        return self.last

    def take(self) -> tuple[Array, int]:
        """Return the observations since the last call [observations, bytes], and the number of the first."""
        waiting, self._waiting = self._waiting, []
        frames = waiting[0] if len(waiting) == 1 else np.concatenate(waiting)
        return frames, (self._next - len(frames)) % NUMBERS

    def state(self) -> dict[str, Any]:
        """Return the newest observations and their numbers, for a checkpoint."""
        return {"next": self._next, "last": self.last.copy(), "recent": list(self._recent)}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned, and hand the observations out again."""
        self._next, self.last, self._waiting = state["next"], state["last"], list(state["recent"])
        self._recent.clear()
        self._recent.extend(self._waiting)


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
        shape, dtype = (envs.num_envs, *(envs.row_space.shape or ())), find_row_dtype(envs.row_space)
        self._obs, self._after = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self.frames = FrameNumbers(envs.num_envs, packer.num_steps) if packer.layout.is_numbered else None
        self._over, self._valid = np.zeros((2, envs.num_envs), np.bool_)
        self._returns, self._lengths = np.zeros(envs.num_envs), np.zeros(envs.num_envs, np.int64)
        self.episodes: list[EpisodeRecord] = []
        self._started = False

    def state(self) -> dict[str, Any] | None:
        """Return the state of the running episodes; None before the first step."""
        if not self._started:
            return None
        parts = {"obs": self._obs, "over": self._over, "returns": self._returns, "lengths": self._lengths}
        state = {name: part.copy() for name, part in parts.items()} | {"window": self.packer.state()}
        return state if self.frames is None else state | {"frames": self.frames.state()}

    def load(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; the environments themselves were restored before."""
        self._obs[:], self._over[:] = state["obs"], state["over"]
        self._returns[:], self._lengths[:] = state["returns"], state["lengths"]
        self.packer.load(state["window"])
        if self.frames is not None:
            self.frames.load(state["frames"])
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
            The completed transitions [transitions, width] (overwritten by the next call) and the environment steps
            taken.
        """
        if not self._started:
            self._write(self.envs.reset(self.seeds), self._obs)
            self._started = True
            if self.frames is not None:
                self.frames.add(self._obs)
        actions = self.choose(self._obs, clock)
        raw, rewards, terminated, truncated = self.envs.step(self.actions.for_env(actions))
        self._write(raw, self._after)
        obs, after = self._obs, self._after
        if self.frames is not None:
            obs, after = self.frames.last, self.frames.add(after)
        taken, ended = count_step(rewards, terminated, truncated, self._over, self._valid, self._returns, self._lengths)
        records = dict(self.envs.records)
        failed = [env for env, record in records.items() if record.cut]
        if failed:  # A step that has failed is no transition.
            remaining = self.packer.cut(failed, obs)
            self._valid[failed] = False
            self._lengths[failed] -= 1
            taken -= len(failed)
        rows = self.packer.add(obs, actions, rewards, terminated, self._over, self._valid, after)
        if failed:
            rows = np.concatenate([remaining, rows])
        if ended:
            self._end_episodes(self._over, records)
        # The next observation of this step is the observation of the next step, so the two buffers are swapped, not
        # copied. At an episode's end, the buffer has its last observation, which the following reset step ignores.
        self._obs, self._after = self._after, self._obs
        return rows, taken

    def join_frames(self, rows: Array) -> Steps:
        """Return transitions with the observations that no earlier ones have."""
        return Steps(rows) if self.frames is None else Steps(rows, *self.frames.take())

    def _end_episodes(self, over: Array, records: Mapping[int, EpisodeRecord]) -> None:
        for env in np.flatnonzero(over).tolist():
            total, length = float(self._returns[env]), int(self._lengths[env])
            self.episodes.append(records.get(env) or EpisodeRecord(total, length, total))
        self._returns[over], self._lengths[over] = 0.0, 0

    def collect(self, steps: int, clock: int) -> tuple[Steps, int, list[EpisodeRecord]]:
        """Take at least ``steps`` environment steps; return their transitions, count and ended episodes."""
        parts, taken = [], 0
        with torch.inference_mode():
            while taken < steps:
                rows, count = self.step(clock + taken)
                parts.append(rows.copy())
                taken += count
        return self.join_frames(np.concatenate(parts)), taken, self.take_episodes()

    def take_episodes(self) -> list[EpisodeRecord]:
        """Return the episodes that ended since the last call."""
        episodes, self.episodes = self.episodes, []
        return episodes
