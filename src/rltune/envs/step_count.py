"""Count environment steps while they are taken, and end the taking early.

An iteration in a slow environment lasts for minutes. A thread of the same process reads here how far it is, and asks
for its end. One trial trains in a process at a time, so that one count serves it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rltune.errors import RewardError


class SamplingEnded(BaseException):
    """Sampling was asked to end before its batch was full.

    As an interruption from the keyboard it is no `Exception`: RLlib (2.60) takes each of those for the environment's.
    """


class StepCount:
    """Counts the steps of one process. Threads may read it at any time.

    Attributes:
        steps: Taken so far in all environments; steps that only reset one are counted too.
        is_ending: Whether sampling is to end before its next step.
    """

    def __init__(self) -> None:
        self.steps = 0
        self.is_ending = False


STEPS = StepCount()


def require_finite(rewards: Sequence[float]) -> None:
    """Refuse what the environments returned before somebody learns from it: then all is NaN, and nothing says why.

    Raises:
        RewardError: One is NaN or infinite.
    """
    if not all(map(math.isfinite, rewards)):  # of a list: NumPy takes ten times as long for a few numbers
        wrong = next(reward for reward in rewards if not math.isfinite(reward))
        raise RewardError(f"the environment returned a reward of {wrong}")


def count_steps_of(envs: Any) -> None:
    """Count the steps of RLlib's own vector environment, and raise `SamplingEnded` in it when sampling is to end.

    Its rewards are looked at, too; those of several agents come in mappings.

    Counting the same one again changes nothing.
    """
    if "step" in vars(envs):
        return
    take, num_envs = envs.step, envs.num_envs

    def step(*args: Any, **kwargs: Any) -> Any:
        if STEPS.is_ending:
            raise SamplingEnded
        result = take(*args, **kwargs)
        STEPS.steps += num_envs
        require_finite([one for each in result[1] for one in (each.values() if isinstance(each, Mapping) else [each])])
        return result

    envs.step = step
