"""Count environment steps while they are taken, and end the taking early.

An iteration in a slow environment lasts for minutes. A thread of the same process reads here how far it is, and asks
for its end. One trial trains in a process at a time, so that one count serves it.
"""

from __future__ import annotations

from typing import Any


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


def count_steps_of(envs: Any) -> None:
    """Count the steps of RLlib's own vector environment, and raise `SamplingEnded` in it when sampling is to end.

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
        return result

    envs.step = step
