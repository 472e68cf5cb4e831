"""Make a copy of an environment again after an exception, and cut its episode there.

Runs wherever the copy runs, so that all ways of stepping copies have it: one after another, in processes of their own,
in env runners, by stock RLlib, and in evaluations.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

from rltune.envs.closing import close_env
from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.guest import FOLLOWS_SEED, is_termination, make_fault
from rltune.envs.step_count import read_reset, read_step
from rltune.errors import GUEST_FAULTS, Cause, GuestError, RltuneError, describe_exception

# The limit on restarts holds for any ten minutes, and between two episodes that end by themselves, so that a copy that
# always fails ends its trial's attempt.
WINDOW_S = 600.0
# An episode that is played again from its seed and has failed so often at the same step would do so for ever. Fewer
# may be chance: a simulator that fails once in 1,000 steps fails twice at the same step after one failure in 1,000.
MAX_EQUAL = 3


class RestartingEnv(gymnasium.Wrapper[Any, Any, Any, Any]):
    """An environment that is closed and made again when its ``reset`` or ``step`` raises.

    The step that fails returns the last observation again, no reward and ``truncated``, and the record in its info says
    that the episode was cut. The next episode begins in the new copy. A ``reset`` that fails is repeated there. If an
    episode fails at the same step each time it is played from its seed, then a `GuestError` says so.

    Args:
        make: Makes the copy; for a pickle in mid-episode it must be one that can be pickled.
        restarts: How many times the copy is made again within `WINDOW_S`, and without an episode that ends by itself;
            the failure after that is raised.
    """

    env: gymnasium.Env[Any, Any]
    # Of the class, since copies of earlier releases, which checkpoints have in mid-episode, lack them.
    _episode_seed: int | None = None  # None: the episode goes on with what the copy draws after the one before.
    _length, _num_equal = 0, 0
    _last_failure: tuple[int | None, int | None, type] | None = None

    def __init__(self, make: Callable[[], gymnasium.Env[Any, Any]], restarts: int) -> None:
        super().__init__(make())
        self._make, self._limit = make, restarts
        self._times: deque[float] = deque()
        # Of the failures since the last record. A failed reset has no episode, so the next record carries it.
        self._restarts, self._fault = 0, ""
        self._obs: Any = None
        self._seed: int | None = None
        self._num_made, self._is_new = 1, False
        self._num_in_a_row = 0

    def __getstate__(self) -> dict[str, Any]:
        """Pickle without the times of restarts, which are on this process's clock."""
        return {**self.__dict__, "_times": deque()}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode, in a new copy if ``reset`` raises.

        A copy that was made again has drawn no seed yet. So that a seed's run can be repeated, it gets one that follows
        from the copy's first seed, and another one if ``reset`` fails with it.
        """
        given, self._seed = seed, self._seed if seed is None else seed
        while True:
            seed = given
            if self._is_new and seed is None and self._seed is not None:
                words = np.random.SeedSequence([self._seed, self._num_made]).generate_state(1)
                seed = int(words[0]) >> 1  # Some environments pass the seed to C as an int.
            try:
                self._obs, info = read_reset(self.env.reset(seed=seed, options=options))
            except GUEST_FAULTS as error:
                self._episode_seed = seed
                self._make_again(error, step=0)
                continue
            self._episode_seed, self._length, self._is_new = seed, 0, False
            return self._obs, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take a step; if it raises, make the copy again and cut the episode."""
        try:
            obs, reward, terminated, truncated, info = read_step(self.env.step(action))
        except GUEST_FAULTS as error:
            self._make_again(error, self._length + 1)
            return self._obs, 0.0, False, True, {RECORD: self._take_record(cut=True)}
        self._obs, self._length = obs, self._length + 1
        if terminated or truncated:
            self._num_in_a_row = 0
            if self._restarts:
                info = {**info, RECORD: self._take_record(cut=False)}
        return obs, reward, terminated, truncated, info

    def _take_record(self, *, cut: bool) -> EpisodeRecord:
        record = EpisodeRecord(cut=cut, restarts=self._restarts, fault=self._fault)
        self._restarts, self._fault = 0, ""
        return record

    def _make_again(self, error: BaseException, step: int) -> None:
        """Close the copy and make it again; raise the failure if that was done too often within `WINDOW_S`.

        Args:
            error: What the copy has raised.
            step: The number of the step in its episode; 0 for ``reset``.
        """
        self._require_restart(error, step)
        close_env(self.env)
        while True:
            try:
                self.env = self._make()
            except GUEST_FAULTS as again:
                self._require_restart(again, None)
                continue
            self._num_made, self._is_new = self._num_made + 1, True
            return

    def _require_restart(self, error: BaseException, step: int | None) -> None:
        """Count a restart, or raise the failure if it is none of the environment's or there were too many."""
        now = time.monotonic()
        while self._times and self._times[0] <= now - WINDOW_S:
            self._times.popleft()
        if is_termination(error) or (isinstance(error, RltuneError) and not isinstance(error, GuestError)):
            raise error
        failure = (self._episode_seed, step, type(error))
        is_equal = None not in failure and failure == self._last_failure
        self._last_failure, self._num_equal = failure, self._num_equal + 1 if is_equal else 1
        is_over = max(len(self._times), self._num_in_a_row) >= self._limit
        # A reset may fail for as long as a simulator takes to come back.
        if is_equal and (is_over or (step and self._num_equal >= MAX_EQUAL)):
            raise self._explain_repeats(error, f"step {step}" if step else "reset") from error
        if is_over:
            raise error
        self._times.append(now)
        self._num_in_a_row += 1
        self._restarts += 1
        self._fault = error.what if isinstance(error, RltuneError) else describe_exception(error)

    def _explain_repeats(self, error: BaseException, call: str) -> GuestError:
        call = f"{call} of the episode of seed {self._episode_seed}"
        fault = make_fault(error, call)
        problem = f"{fault.problem} each of the {self._num_equal} times that it was played, so that env.restarts"
        place = fault.place if isinstance(fault, GuestError) else ""
        return GuestError(f"{problem} cannot help", *FOLLOWS_SEED, cause=Cause.REPEATED, call=call, place=place)
