"""Count environment steps and episodes during a training iteration, and end its sampling early on request.

An iteration in a slow environment takes minutes. Another thread of the process reads the count as a sign of life, and
may request the end of sampling. Only one trial trains in a process at a time, so that one count is enough.
"""

from __future__ import annotations

import contextlib
import functools
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv

from rltune.envs.guest import call_guest, make_fault, raise_fault
from rltune.errors import GUEST_FAULTS, Cause, GuestError, RewardError, spell

NO_NUMBER = (TypeError, ValueError, OverflowError, RuntimeError)
"""What a conversion to a number raises if there is no single number; torch raises a RuntimeError."""


SUMMED_REWARD = "rltune.envs.rewards:SummedReward"
MAX_WEIGHTS = 8  # An advice spells the weights of so many rewards.
# Weights that Hydra reads as they are spelt.
TYPED = re.compile(r"(?ai)\[[1,]+\]|\{(?:(?!(?:true|false|null|nan|inf):)-?\w[\w -]*:1,?)+\}")

MAX_NUMBER = float(np.finfo(np.float32).max)
FINITE = f"finite numbers, up to {MAX_NUMBER:.2g}, the greatest of float32"


class SamplingEnded(BaseException):
    """Raised in an environment's step to end an iteration's sampling before the batch is full.

    Like a KeyboardInterrupt it is not an `Exception`, because RLlib (2.60) takes every `Exception` for an error of the
    environment.
    """


class StepCount:
    """Counts the environment steps of this process. Any thread may read the count.

    Attributes:
        steps: The number of steps in all environments, including steps that only reset an environment.
        episodes: The number of episodes that have ended, other than by a failure, where they end one by one.
        is_ending: Whether sampling ends before its next step, because the sweep ends.
        pause_at: The number of steps at which sampling pauses, so that the trial saves its state.
    """

    def __init__(self) -> None:
        self.steps = self.episodes = 0
        self.is_ending = False
        self.pause_at = math.inf


STEPS = StepCount()


def read_rewards(rewards: Sequence[Any], name_call: Callable[[int], str] = lambda index: "") -> list[float]:
    """Return the rewards of a step as floats; a single NaN would turn all of the network's weights into NaN.

    Args:
        rewards: What the environments have returned, one of each.
        name_call: Names the step of an environment, from its index.

    Raises:
        RewardError: A reward is no single finite number.
    """
    try:
        if all(map(math.isfinite, rewards)):  # For a few numbers, NumPy would take ten times as long.
            return list(map(float, rewards))
    except NO_NUMBER:
        pass
    numbers = []
    for index, reward in enumerate(rewards):
        try:
            number = read_reward(reward)
            if not math.isfinite(number):
                raise RewardError(f"the reward is {number}")
        except RewardError as error:
            raise make_fault(error, name_call(index)) from None
        numbers.append(number)
    return numbers


def read_reward(reward: Any) -> float:
    """Return a reward as a float, also one that is not finite; an array of one number counts as that number.

    Raises:
        RewardError: It is no single number; names its type and its shape.
    """
    if isinstance(reward, float):
        return reward
    with contextlib.suppress(*NO_NUMBER):
        math.isnan(reward)  # It refuses a text of digits, which `float` would take.
        return float(reward)
    with contextlib.suppress(*NO_NUMBER):
        if hasattr(reward, "__array__"):
            number = np.asarray(reward).item()
            math.isnan(number)
            return float(number)
    raise _make_reward_error(reward)


def _make_reward_error(reward: Any) -> RewardError:
    """Make the error for a reward that is no single number."""
    kind, count = type(reward).__name__, 1
    if isinstance(reward, Mapping):
        what, count = f"a {kind} with the keys {', '.join(map(str, reward))}", len(reward)
    elif isinstance(reward, list | tuple):
        count = len(reward)
        what = f"a {kind} of {count} number{'s' * (count != 1)}"
    elif shape := getattr(reward, "shape", ()):
        what, count = f"a {kind} of shape {tuple(shape)} and type {getattr(reward, 'dtype', kind)}", math.prod(shape)
    else:
        what = "None" if reward is None else f"{str(reward)[:80]!r}, a {kind}"
    fix = "return float(reward) in every branch of step"
    if count > 1 or isinstance(reward, Mapping):
        weights = spell(dict.fromkeys(reward, 1) if isinstance(reward, Mapping) else [1] * count)
        is_typed = count <= MAX_WEIGHTS and TYPED.fullmatch(weights)
        more, how = (f", kwargs: {{weights: {weights}}}", " with these weights") if is_typed else ("", "")
        fix = (
            f"'env.wrappers=[{{entry_point: \"{SUMMED_REWARD}\"{more}}}]' sums them{how}; if they belong to "
            "the agents of a pettingzoo.ParallelEnv, env=pettingzoo"
        )
    return RewardError(f"the reward is {what}", "one finite number for each step", fix)


def read_step(returned: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
    """Return the observation, reward, terminated, truncated and info that a step has returned.

    Raises:
        GuestError: It has returned something else, such as old Gym's four values, or None in place of the info.
    """
    if isinstance(returned, tuple) and len(returned) == 5 and isinstance(returned[4], dict):
        return returned
    raise _make_return_error(returned, is_reset=False)


def read_reset(returned: Any) -> tuple[Any, dict[str, Any]]:
    """Return the observation and the info that a reset has returned.

    Raises:
        GuestError: It has returned something else, such as the observation alone.
    """
    if isinstance(returned, tuple) and len(returned) == 2 and isinstance(returned[-1], dict):
        return returned
    raise _make_return_error(returned, is_reset=True)


def _make_return_error(returned: Any, *, is_reset: bool) -> GuestError:
    what, allowed, fix = describe_returned(returned, is_reset=is_reset)
    return GuestError(f"{what} was returned", allowed, fix)


def describe_returned(returned: Any, *, is_reset: bool) -> tuple[str, str, str]:
    """Return what a step or a reset has returned instead of Gymnasium's tuple, what is allowed, and what to write."""
    if isinstance(returned, tuple):
        last = f", the last one a {type(returned[-1]).__name__}" if returned else ""
        what = f"a tuple of {len(returned)}{last}"
    else:
        what = f"one {type(returned).__name__}"
    if is_reset:
        return what, "a tuple of two: the observation, and the info, a dict", "return observation, {}"
    return (
        what,
        "Gymnasium's five: observation, reward, terminated, truncated, and the info, a dict",
        "return observation, reward, done, False, info: the done of old Gym is terminated",
    )


def read_observation(observation: Any, shape: tuple[int, ...]) -> Any:
    """Return an observation, which may be a list, as an array of its space's shape.

    Raises:
        GuestError: It has another shape, which NumPy would partly stretch to fit.
    """
    array = np.asarray(observation)
    if array.shape == shape and array.dtype.kind in "biuf":
        return array
    raise GuestError(
        f"observation has shape {array.shape} and type {array.dtype}, its space has shape {shape}",
        f"shape {shape} and numbers, as the observation_space says",
        "correct the observation_space, or what reset and step return (a wrapper: what it returns)",
        cause=Cause.OBSERVATION,
    )


def make_probe(size: int, dtype: Any) -> Any:
    """Return what the product with an observation is finite for if its numbers are those that float32 has.

    One product is the fastest test, for few numbers and for images. It may be infinite for numbers that float32 has, so
    that `require_finite` has the last word.
    """
    is_wide = np.finfo(dtype).max > MAX_NUMBER
    return np.full(size, np.finfo(dtype).max / MAX_NUMBER if is_wide else 0, dtype)


def require_finite(observations: Any, name_call: Callable[[int], str]) -> None:
    """Refuse observations of which a number is NaN or infinite in float32, because the network would learn from it.

    Args:
        observations: Those of all environments, [envs, ...]. Whole numbers are always finite.
        name_call: Names the step of an environment, from its index.

    Raises:
        GuestError: Names the first such number.
    """
    if observations.dtype.kind == "f" and not (is_finite := np.abs(observations) <= MAX_NUMBER).all():
        env, *place = map(int, np.argwhere(~is_finite)[0])
        name = f"observation{''.join(f'[{index}]' for index in place)}"
        value = observations[(env, *place)]
        problem = GuestError(
            f"{name} is {value}",
            FINITE,
            "look for a division by zero, a root or a logarithm behind it",
            cause=Cause.OBSERVATION,
        )
        raise make_fault(problem, name_call(env))


def count_steps_of(envs: Any) -> None:
    """Count the steps of RLlib's own vector environment, check what it returns, and end its sampling on request.

    A second call for the same environment changes nothing.
    """
    if "step" in vars(envs):
        return
    inner = getattr(envs, "unwrapped", envs)  # RLlib wraps Gymnasium's vector environment.
    if isinstance(inner, SyncVectorEnv):
        from rltune.envs.spaces import PlainNumbers  # Imported here, because it reads rewards by this module.

        inner.envs = tuple(map(PlainNumbers, inner.envs))
    begin, take, num_envs, num_steps = envs.reset, envs.step, envs.num_envs, 0

    def reset(*args: Any, **kwargs: Any) -> Any:
        with call_guest(f"reset of {num_envs} copies"):
            return begin(*args, **kwargs)

    def name_call(index: int, agent: int = 0) -> str:
        return f"step {num_steps} of copy {index + 1}"

    def step(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_steps
        if STEPS.is_ending:
            raise SamplingEnded
        num_steps += 1
        try:
            result = take(*args, **kwargs)
        except GUEST_FAULTS as error:
            raise_fault(error, f"step {num_steps} of {num_envs} copies")
        STEPS.steps += num_envs
        # Each environment returns one reward, or with several agents a mapping from agents to rewards.
        for index, rewards in enumerate(result[1]):
            by_agent = [*rewards.values()] if isinstance(rewards, Mapping) else [rewards]
            read_rewards(by_agent, functools.partial(name_call, index))
        if isinstance(result[0], np.ndarray):
            require_finite(result[0], name_call)
        return result

    envs.reset, envs.step = reset, step
