"""Step Gymnasium environments, single or vectorised, behind one interface on arrays.

One contract holds for all kinds (Gymnasium 1.x, autoreset mode NEXT_STEP). After a step that ends an episode the
observation is the episode's last one. The next ``step`` ignores that environment's action, resets it and returns the
first observation with reward 0. Such a reset step is no transition: the caller drops it.

A step whose copy has failed ends its episode, too, but is no transition: it has the last observation again, and the
caller drops it as well (`rltune.envs.restarts`).

With mode SAME_STEP the last observations would come in info dicts, one object each. Here they lie at their natural
place in the caller's buffer, where a truncation bootstraps from them.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from math import isfinite
from typing import Any, NoReturn, Protocol

import gymnasium as gym
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

from rltune.compat.row_catalog import LAYOUT
from rltune.engine.features import UnsupportedError
from rltune.engine.sampling.process_copies import close_processes, find_lost_process, make_process_copies
from rltune.envs.closing import close_env, make_copies
from rltune.envs.episode import RECORD, EpisodeRecord, was_cut
from rltune.envs.guest import call_guest, import_guest, raise_fault
from rltune.envs.layout import Layout
from rltune.envs.observations import make_view_space
from rltune.envs.step_count import (
    NO_NUMBER,
    STEPS,
    make_probe,
    read_observation,
    read_reset,
    read_rewards,
    read_step,
    require_finite,
)
from rltune.errors import GUEST_FAULTS, GuestError

Array = NDArray[Any]
Step = tuple[Array, Array, Array, Array]

UNUSUAL = (*NO_NUMBER, AttributeError)
"""What a test for a finite reward and an observation's shape raises if they are of an unusual type."""

NATIVE_FROM = 12
"""Environments from which a native vector environment beats stepping single ones (measured on CartPole)."""


class ArrayEnvs(Protocol):
    """The interface of environments that step together on arrays.

    Attributes:
        records: The records of the episodes that the last step ended, each with the number of its environment; empty
            where nothing but the rewards says what an episode is worth.
        row_space: The space of the observations that come out, which are rows (`rltune.envs.layout`).
        single_observation_space: The space of what RLlib's networks see of them, which differs where rows are bytes.
    """

    num_envs: int
    records: list[tuple[int, EpisodeRecord]]
    row_space: gym.Space[Any]
    single_observation_space: gym.Space[Any]
    single_action_space: gym.Space[Any]
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]

    @property
    def unwrapped(self) -> Any:
        """The environments themselves; RLlib reads this attribute of Gymnasium's vector environments."""

    def reset(self, seeds: Sequence[int] | None) -> Array:
        """Start an episode in every environment, each with its own seed; return observations [envs, ...]."""

    def step(self, actions: Array) -> Step:
        """Step every environment; return observations, rewards, terminated and truncated in reused arrays."""

    def close(self) -> None:
        """Close the environments."""


def find_row_dtype(space: gym.Space[Any]) -> Any:
    """Return the type in which rows of a space are kept: bytes as they are, all numbers as float32."""
    return np.uint8 if space.dtype == np.uint8 else np.float32


class SyncEnvs:
    """Steps single Gymnasium environments one after another, and writes the results into arrays.

    Gymnasium's ``SyncVectorEnv`` does the same, but collects info dicts and copies observations at each step.

    Args:
        make: Builds environment number i.
    """

    def __init__(self, make: Callable[[int], gym.Env[Any, Any]], num_envs: int) -> None:
        self.envs = make_copies(make, num_envs)
        self.num_envs = num_envs
        self.row_space = self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._discrete = isinstance(self.single_action_space, gym.spaces.Discrete)
        self._shape = self.single_observation_space.shape or ()
        self._obs = np.zeros((num_envs, *self._shape), self.single_observation_space.dtype)
        # The numbers in rows of bytes have been tested where the rows were made.
        self._has_floats = self._obs.dtype.kind == "f"
        self._flat = self._obs.reshape(-1)
        self._probe = make_probe(self._obs.size, self._obs.dtype) if self._has_floats else self._obs
        self._rewards = np.zeros(num_envs, np.float64)
        self._terminated = np.zeros(num_envs, np.bool_)
        self._truncated = np.zeros(num_envs, np.bool_)
        # A list, because reading an array's element creates an object, which is slower.
        self._done = [False] * num_envs
        # The steps of all environments so far, and for each of them how many there were when its episode began.
        self._steps, self._begun = 0, [0] * num_envs
        self.records: list[tuple[int, EpisodeRecord]] = []

    @property
    def unwrapped(self) -> SyncEnvs:
        """The environments themselves, as RLlib expects."""
        return self

    def name_call(self, index: int) -> str:
        """Name the call that an environment is in; the supervisor calls this while `step` runs in another thread."""
        number = self._steps - self._begun[index]
        return f"step {number} of copy {index + 1}" if number else f"reset of copy {index + 1}"

    def reset(self, seeds: Sequence[int] | None) -> Array:
        """Start an episode in each environment with its own seed; None means random seeds."""
        for index, env in enumerate(self.envs):
            with call_guest(f"reset of copy {index + 1}"):
                obs, _ = read_reset(env.reset(seed=None if seeds is None else seeds[index]))
                self._obs[index] = read_observation(obs, self._shape)
        self._done = [False] * self.num_envs
        self._steps, self._begun = 0, [0] * self.num_envs
        require_finite(self._obs, self.name_call)
        return self._obs

    def step(self, actions: Array) -> Step:
        """Step each environment; one whose episode ended in the last step is reset instead."""
        # tolist() converts all actions to Python numbers at once. NumPy scalars would slow the environment's
        # arithmetic.
        choices = actions.tolist() if self._discrete else actions
        shape, index = self._shape, 0
        self._steps += 1
        self.records = []
        try:
            for index, env in enumerate(self.envs):
                if self._done[index]:
                    self._begun[index] = self._steps
                    self._obs[index] = read_observation(read_reset(env.reset())[0], shape)
                    self._rewards[index] = 0.0
                    self._terminated[index] = self._truncated[index] = self._done[index] = False
                    continue
                returned = env.step(choices[index])
                try:
                    obs, reward, terminated, truncated, info = returned
                    is_plain = obs.shape == shape and isfinite(reward) and type(info) is dict
                except UNUSUAL:
                    is_plain = False
                if not is_plain:
                    obs, reward, terminated, truncated, info = read_step(returned)
                    obs, (reward,) = read_observation(obs, shape), read_rewards([reward])
                self._obs[index] = obs
                self._rewards[index] = reward
                self._terminated[index] = terminated
                self._truncated[index] = truncated
                if terminated or truncated:
                    self._done[index] = True
                    if info and RECORD in info:
                        self.records.append((index, info[RECORD]))
                    STEPS.episodes += not was_cut(info)
        except GUEST_FAULTS as error:
            raise_fault(error, self.name_call(index))
        STEPS.steps += self.num_envs
        if self._has_floats and not isfinite(self._flat.dot(self._probe)):
            require_finite(self._obs, self.name_call)
        return self._obs, self._rewards, self._terminated, self._truncated

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore pickled environments; a view would come back as an array of its own."""
        self.__dict__.update(state, _flat=state["_obs"].reshape(-1))

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Return an attribute of each environment or its wrappers, like Gymnasium's vector environments."""
        return tuple(env.get_wrapper_attr(name) for env in self.envs)

    def set_attr(self, name: str, values: Sequence[Any]) -> None:
        """Set an attribute of each environment or its wrappers, like Gymnasium's vector environments."""
        for env, value in zip(self.envs, values, strict=True):
            env.set_wrapper_attr(name, value)

    def close(self) -> None:
        """Close each environment."""
        for env in self.envs:
            close_env(env)


class VectorEnvs:
    """Adapts a Gymnasium vector environment, native or asynchronous, to the interface `ArrayEnvs`.

    Args:
        env: A vector environment in autoreset mode NEXT_STEP.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any]) -> None:
        mode = env.metadata.get("autoreset_mode", AutoresetMode.NEXT_STEP)
        if mode != AutoresetMode.NEXT_STEP:
            raise UnsupportedError(f"vector environment with autoreset mode {mode}")
        self.env = env
        self.num_envs = env.num_envs
        self.row_space = self.single_observation_space = env.single_observation_space
        self.single_action_space = env.single_action_space
        self.observation_space = env.observation_space
        self.action_space = env.action_space
        self._has_floats = np.issubdtype(self.observation_space.dtype, np.floating)
        size, dtype = math.prod(self.observation_space.shape or ()), self.observation_space.dtype
        self._probe: Any = make_probe(size, dtype) if self._has_floats else None
        # Gymnasium takes the choices and the numbers of all environments as two arrays.
        parts = self.single_action_space
        self._num_choices = parts[0].shape[0] if isinstance(parts, gym.spaces.Tuple) else None
        self._steps, self._has_failed = 0, False
        self.records: list[tuple[int, EpisodeRecord]] = []

    @property
    def unwrapped(self) -> VectorEnvs:
        """The environments themselves, as RLlib expects."""
        return self

    def name_call(self, index: int) -> str:
        """Name the call that an environment is in."""
        return f"{f'step {self._steps}' if self._steps else 'reset'} of copy {index + 1}"

    def reset(self, seeds: Sequence[int] | None) -> Array:
        """Start an episode in every environment; native ones with a single generator get the first seed."""
        single = isinstance(self.env.unwrapped, AsyncVectorEnv | SyncVectorEnv)
        seed = None if seeds is None else list(seeds) if single else seeds[0]
        self._steps, call = 0, f"reset of {self.num_envs} copies"
        with call_guest(call):
            try:
                obs = np.asarray(read_reset(self.env.reset(seed=seed))[0])
            except GUEST_FAULTS as error:
                self._raise_fault(error, call)
        require_finite(obs, self.name_call)
        return obs

    def step(self, actions: Array) -> Step:
        """Step all environments at once."""
        self._steps += 1
        if (count := self._num_choices) is None:
            sent: Any = actions
        else:
            sent = actions[:, :count].astype(np.int64), actions[:, count:]
        try:
            obs, rewards, terminated, truncated, infos = read_step(self.env.step(sent))
        except GUEST_FAULTS as error:
            self._raise_fault(error, f"step {self._steps} of {self.num_envs} copies")
        records = infos.get(RECORD)
        # Gymnasium marks which copies have a key: the others have None.
        self.records = [] if records is None else [each for each in enumerate(records) if each[1] is not None]
        STEPS.steps += self.num_envs
        ended = int(np.count_nonzero(terminated) + np.count_nonzero(truncated))
        STEPS.episodes += ended - sum(record.cut for _, record in self.records)
        read_rewards(np.asarray(rewards).tolist(), self.name_call)
        if self._has_floats and not isfinite(obs.ravel("K").dot(self._probe)):
            require_finite(obs, self.name_call)
        return obs, rewards, terminated, truncated

    def close(self) -> None:
        """Close the vector environment, with its processes if it has any."""
        if self._has_failed and isinstance(self.env, AsyncVectorEnv):
            close_processes(self.env)
        else:
            close_env(self.env)

    def _raise_fault(self, error: BaseException, call: str) -> NoReturn:
        """Raise the error for an exception of a copy, or for the end of its process."""
        self._has_failed = True
        raise_fault(find_lost_process(self.env, error) or error, call)


def seed_runner(seed: int | None, worker_index: int, steps: int) -> np.random.SeedSequence:
    """Return the seed sequence of one env runner, for its environments' first reset and for its random actions.

    RLlib's runners count up from the algorithm's seed, and environments count up from their runner's. Most environments
    of several runners would draw the same initial states for ever.

    Args:
        seed: The algorithm's; None for a random one.
        worker_index: RLlib's number of the env runner.
        steps: Environment steps of the trial so far, so that a resumed trial does not repeat its first episodes.
    """
    return np.random.SeedSequence(None if seed is None else [seed, worker_index, steps])


def make_envs(config: Any, worker_index: int = 0) -> ArrayEnvs:
    """Build the environments that RLlib's ``config`` describes, single or vectorised.

    ``gym_env_vectorize_mode`` SYNC (RLlib's default) means "in this process": a native vector environment
    where Gymnasium's spec has one that takes the same arguments and there are enough environments for it
    to pay, single ones otherwise. ASYNC and VECTOR_ENTRY_POINT are taken literally.

    Args:
        worker_index: RLlib's number of the env runner, 0 for the local one.
    """
    envs = _make_envs(config, worker_index)
    if about := config.model_config.get(LAYOUT):
        envs.single_observation_space = make_view_space(Layout.from_dict(about))
        envs.observation_space = batch_space(envs.single_observation_space, envs.num_envs)
    return envs


def _make_envs(config: Any, worker_index: int) -> ArrayEnvs:
    count = config.num_envs_per_env_runner
    context = EnvContext(config.env_config or {}, worker_index=worker_index)
    mode = gym.VectorizeMode(config.gym_env_vectorize_mode)
    creator = _find_creator(config.env)
    if creator is None:
        return _make_gym_envs(config.env, dict(config.env_config or {}), count, mode)
    together = getattr(creator, "together", None)
    creator = getattr(creator, "make_rows", creator)
    if mode == gym.VectorizeMode.VECTOR_ENTRY_POINT:
        with call_guest(f"make of {count} copies"):
            return VectorEnvs(creator(EnvContext({**context, "num_envs": count}, worker_index=worker_index)))

    with call_guest(f"make of {count} copies"):
        native = together(count) if together is not None and mode == gym.VectorizeMode.SYNC else None
    if native is not None:
        return VectorEnvs(native)

    def make(index: int) -> Any:
        return creator(context.copy_with_overrides(worker_index=worker_index, vector_index=index))

    if mode == gym.VectorizeMode.ASYNC:
        return _make_async_envs(make, count)
    return SyncEnvs(make, count)


def _make_async_envs(make: Callable[[int], Any], count: int) -> ArrayEnvs:
    """Build environments in processes of their own; one is made here for its spaces, or what stands for it."""
    with call_guest("make of copy 1"):
        look = make(0)
    spaces = look.observation_space, look.action_space
    close_env(look)
    # Observations may stay in shared memory, because the sampler copies them before the next step.
    return VectorEnvs(AsyncVectorEnv(make_process_copies(make, count, spaces), copy=False))


def _find_creator(env: Any) -> Callable[[EnvContext], Any] | None:
    """Return the function or class that creates an environment registered with Tune; None for a Gymnasium id."""
    if callable(env):
        return env  # type: ignore[no-any-return]
    if _global_registry.contains(ENV_CREATOR, env):
        return _global_registry.get(ENV_CREATOR, env)  # type: ignore[no-any-return]
    return None


def _make_gym_envs(env_id: str, kwargs: dict[str, Any], count: int, mode: gym.VectorizeMode) -> ArrayEnvs:
    """Build environments of a Gymnasium id, without the checker wrapper, which would slow each step."""
    if mode == gym.VectorizeMode.ASYNC:
        return _make_async_envs(lambda _: gym.make(env_id, disable_env_checker=True, **kwargs), count)
    native = mode == gym.VectorizeMode.VECTOR_ENTRY_POINT
    if native or (count >= NATIVE_FROM and _has_native(env_id, kwargs)):
        with call_guest(f"make of {count} copies"):
            return VectorEnvs(gym.make_vec(env_id, count, gym.VectorizeMode.VECTOR_ENTRY_POINT, **kwargs))
    return SyncEnvs(lambda _: gym.make(env_id, disable_env_checker=True, **kwargs), count)


def _has_native(env_id: str, kwargs: dict[str, Any]) -> bool:
    """Return whether the id has a native vector version that can be imported and takes these arguments."""
    module, _, name = env_id.rpartition(":")
    if module:
        import_guest(module)  # gym.make imports the module in an id such as module:Name, but gym.spec does not.
    spec = gym.spec(name)
    if spec.vector_entry_point is None or spec.additional_wrappers:
        return False
    target = spec.vector_entry_point
    try:
        if isinstance(target, str):
            import_guest(target.partition(":")[0])
            target = gym.envs.registration.load_env_creator(target)
    except AttributeError:
        return False
    except GuestError as fault:  # Native JAX environments raise these errors if JAX is not installed.
        if not isinstance(fault.__cause__, ImportError | AttributeError):
            raise
        return False
    # A native version that ignores an argument would be another environment than the user named, so it is not used.
    accepted = inspect.signature(target).parameters
    return set(kwargs) | set(spec.kwargs) <= set(accepted)
