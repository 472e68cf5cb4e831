"""Count environment steps during a training iteration, and end its sampling early on request.

An iteration in a slow environment takes minutes. Another thread of the process reads the count as a sign of life, and
may request the end of sampling. Only one trial trains in a process at a time, so that one count is enough.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import SyncVectorEnv

from rltune.errors import RewardError

NO_NUMBER = (TypeError, ValueError, OverflowError, RuntimeError)
"""What a conversion to a number raises if there is no single number; torch raises a RuntimeError."""


class SamplingEnded(BaseException):
    """Raised in an environment's step to end an iteration's sampling before the batch is full.

    Like a KeyboardInterrupt it is not an `Exception`, because RLlib (2.60) takes every `Exception` for an error of the
    environment.
    """


class StepCount:
    """Counts the environment steps of this process. Any thread may read the count.

    Attributes:
        steps: The number of steps in all environments, including steps that only reset an environment.
        is_ending: Whether sampling ends before its next step.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.is_ending = False


STEPS = StepCount()


def require_finite(rewards: Sequence[float]) -> None:
    """Refuse NaN and infinite rewards, because a single one would turn all of the network's weights into NaN.

    Raises:
        RewardError: A reward is NaN or infinite.
    """
    if not all(map(math.isfinite, rewards)):  # For a few numbers, NumPy would take ten times as long.
        wrong = next(reward for reward in rewards if not math.isfinite(reward))
        raise RewardError(f"the reward is {wrong}")


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
        weigh = "a wrapper that weighs them into one number: env.wrappers=[{entry_point: 'module:Class'}]"
        fix = f"{weigh}; if each is another agent's, env=pettingzoo with a pettingzoo.ParallelEnv"
    return RewardError(f"the reward is {what}", "one finite number for each step", fix)


def count_steps_of(envs: Any) -> None:
    """Count the steps of RLlib's own vector environment, check its rewards, and end its sampling on request.

    A second call for the same environment changes nothing.
    """
    if "step" in vars(envs):
        return
    inner = getattr(envs, "unwrapped", envs)  # RLlib wraps Gymnasium's vector environment.
    if isinstance(inner, SyncVectorEnv):
        from rltune.envs.spaces import PlainNumbers  # Imported here, because it reads rewards by this module.

        inner.envs = tuple(map(PlainNumbers, inner.envs))
    take, num_envs = envs.step, envs.num_envs

    def step(*args: Any, **kwargs: Any) -> Any:
        if STEPS.is_ending:
            raise SamplingEnded
        result = take(*args, **kwargs)
        STEPS.steps += num_envs
        # Each environment returns one reward, or with several agents a mapping from agents to rewards.
        by_env = [rewards.values() if isinstance(rewards, Mapping) else [rewards] for rewards in result[1]]
        require_finite([reward for rewards in by_env for reward in rewards])
        return result

    envs.step = step
