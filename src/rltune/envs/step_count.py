"""Count environment steps during a training iteration, and end its sampling early on request.

An iteration in a slow environment takes minutes. Another thread of the process reads the count as a sign of life, and
may request the end of sampling. Only one trial trains in a process at a time, so that one count is enough.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rltune.errors import RewardError


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
        raise RewardError(f"the environment returned a reward of {wrong}")


def count_steps_of(envs: Any) -> None:
    """Count the steps of RLlib's own vector environment, check its rewards, and end its sampling on request.

    A second call for the same environment changes nothing.
    """
    if "step" in vars(envs):
        return
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
