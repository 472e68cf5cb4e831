"""What is logged: the statistics of learners and trials, and how they are read from RLlib's results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping
from typing import Any

from rltune.config.capabilities import UNKNOWN
from rltune.trial.progress import Progress

METRICS = (
    "objective",
    "return_mean",
    "return_min",
    "return_max",
    "return_std_over_seeds",
    "episode_length_mean",
    "episodes",
    "env_steps_per_s",
    "train_s",
)


def read_result(result: Mapping[str, Any], names: Iterable[str] = UNKNOWN.statistics) -> Progress:
    """Pick the numbers that matter out of RLlib's result, which leaves the mean return out until an episode has ended.

    Args:
        result: What ``Algorithm.train`` gave.
        names: Which of the learner's numbers to take; those that are not there are left out.
    """
    sampled = result.get("env_runners", {})
    modules = [numbers for name, numbers in result.get("learners", {}).items() if name != "__all_modules__"]
    learner = {}
    for name in names:
        values = [float(numbers[name]) for numbers in modules if numbers.get(name) is not None]
        if values:  # one a policy, which are several only where several agents learn
            learner[name] = statistics.fmean(values)
    return Progress(
        env_steps=int(sampled.get("num_env_steps_sampled_lifetime", 0)),
        episodes=int(sampled.get("num_episodes_lifetime", 0)),
        return_mean=float(sampled.get("episode_return_mean", math.nan)),
        return_min=float(sampled.get("episode_return_min", math.nan)),
        return_max=float(sampled.get("episode_return_max", math.nan)),
        episode_length_mean=float(sampled.get("episode_len_mean", math.nan)),
        learner=learner,
    )
