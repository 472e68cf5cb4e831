"""Copies of an environment in processes of their own, for Gymnasium's ``AsyncVectorEnv``.

Gymnasium names an exception of a step or a reset, but not one of the constructor, an exit or a dead process, and its
processes may not start any of their own. So a copy is made by its first reset, in its process, and behind the door.
"""

from __future__ import annotations

import contextlib
import functools
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym

from rltune.envs.closing import COPIES, call_make, close_env
from rltune.envs.episode import RECORD
from rltune.envs.guest import call_guest, raise_fault
from rltune.envs.spaces import PlainNumbers
from rltune.envs.step_count import read_observation, read_rewards
from rltune.errors import GUEST_FAULTS, Cause, GuestError, RltuneError

CLOSE_S = 10.0  # How long a process may take to close its copy after another one has failed.


class ProcessCopy(gym.Env[Any, Any]):
    """An environment that is made by its first reset, so never in the process that only looks at its spaces.

    Args:
        make: Builds environment number i.
        index: Its number.
        spaces: The spaces of its observations and actions.
    """

    def __init__(self, make: Callable[[int], Any], index: int, spaces: tuple[Any, Any]) -> None:
        self.observation_space, self.action_space = spaces
        self.metadata: dict[str, Any] = {}
        self._make, self._index, self._copy = make, index, f"copy {index + 1}"
        self._env: Any = None
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Start an episode; the first one makes the environment."""
        with _carry_error():
            self._make_once()
            self._steps = 0
            with call_guest(f"reset of {self._copy}"):
                obs, _ = self._env.reset(seed=seed, options=options)
            return self._read(obs, "reset"), {}

    def step(self, action: Any) -> Any:
        """Take a step."""
        self._steps += 1
        with _carry_error():
            try:
                obs, reward, terminated, truncated, info = self._env.step(action)
                obs, reward = read_observation(obs, self.observation_space.shape or ()), *read_rewards([reward])
            except GUEST_FAULTS as error:
                raise_fault(error, f"step {self._steps} of {self._copy}")
        # The engine reads nothing else of an info. Gymnasium would put the infos of all copies into arrays, which fails
        # if their types differ.
        return obs, reward, terminated, truncated, {RECORD: info[RECORD]} if RECORD in info else {}

    def _make_once(self) -> None:
        if self._env is None:
            # Gymnasium's processes are daemons, which may not start a process, as simulators do.
            multiprocessing.current_process().daemon = False
            with call_make(f"make of {self._copy}", self._index, COPIES):
                self._env = PlainNumbers(self._make(self._index))

    def get_wrapper_attr(self, name: str) -> Any:
        """Return an attribute of the environment or its wrappers."""
        with _carry_error():
            self._make_once()
            return self._env.get_wrapper_attr(name)

    def set_wrapper_attr(self, name: str, value: Any, *, force: bool = True) -> bool:
        """Set an attribute of the environment or its wrappers."""
        return bool(self._env.set_wrapper_attr(name, value, force=force))

    def close(self) -> None:
        """Close the environment if it was made."""
        if self._env is not None:
            close_env(self._env)

    def _read(self, obs: Any, call: str) -> Any:
        try:
            return read_observation(obs, self.observation_space.shape or ())
        except GuestError as error:
            raise_fault(error, f"{call} of {self._copy}")


@contextlib.contextmanager
def _carry_error() -> Iterator[None]:
    """Put an error of ours into one whose constructor takes it: Gymnasium makes an exception anew from itself."""
    try:
        yield
    except RltuneError as error:
        raise RuntimeError(error) from error


def make_process_copies(make: Callable[[int], Any], count: int, spaces: tuple[Any, Any]) -> list[Callable[[], Any]]:
    """Return functions for ``AsyncVectorEnv``; those of the other processes get no copy before the first reset."""
    return [functools.partial(ProcessCopy, make, index, spaces) for index in range(count)]


def find_lost_process(envs: Any, error: BaseException) -> GuestError | None:
    """Return the error for a copy whose process has ended, which Gymnasium only sees as a broken pipe.

    Args:
        envs: A vector environment.
        error: What it has raised.
    """
    if not isinstance(error, EOFError | OSError):
        return None
    for index, process in enumerate(getattr(envs, "processes", ())):
        process.join(1.0)
        if code := process.exitcode:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            return GuestError(
                f"the process of copy {index + 1} {how}",
                "an environment that leaves its process alive",
                "look for os._exit, a crash in a library, or too little memory",
                cause=Cause.LOST_PROCESS,
            )
    return None


def close_processes(envs: Any) -> None:
    """Close an ``AsyncVectorEnv`` of which a copy has failed, so that it does not answer to its own ``close``.

    Each process closes its environment and ends if nobody is at the other end of its pipe.
    """
    for pipe in filter(None, envs.parent_pipes):
        pipe.close()
    for process in envs.processes:
        process.join(CLOSE_S)
        if process.is_alive():
            process.kill()
    envs.closed = True
