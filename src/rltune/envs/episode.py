"""The record of an episode, which travels in the info of its last step: one way for all ways of stepping.

The wrapper that knows something of an episode's end puts it there, inside the process that steps the copy: what the
episode is worth, with the user's own metrics (`rltune.envs.rewards`), and that a failure has cut it
(`rltune.envs.restarts`). Whoever samples reads it there, be it the engine, in this process or in another one, or stock
RLlib. An episode without a record is worth the sum of the rewards that were seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

RECORD = "rltune_episode"
"""Key in the info of an episode's last step for its `EpisodeRecord`."""


class EpisodeRecord(NamedTuple):
    """An episode that has ended, and the failures of its copy of the environment since the previous episode's end.

    Attributes:
        total: Its return, in the environment's own rewards.
        length: In environment steps.
        score: What it is worth by the sweep's objective, which is the return unless a sweep says otherwise; NaN if its
            infos lack what the objective reads, so that it has no score.
        cut: Whether a failure of the environment ended it, so that it counts in no score. Its last step, which failed,
            is no transition and no environment step: it has the last observation again and no reward.
        restarts: How many times the copy was made again.
        fault: The last failure in one line; empty without any.
        metrics: Its own numbers in the order of `rltune.envs.spec.EnvSpec.metrics`; NaN for one that its infos lack.
    """

    total: float = 0.0
    length: int = 0
    score: float = 0.0
    cut: bool = False
    restarts: int = 0
    fault: str = ""
    metrics: tuple[float, ...] = ()


def was_cut(info: Mapping[str, Any]) -> bool:
    """Return whether a failure of the environment has cut the episode of whose last step this is the info."""
    return RECORD in info and bool(info[RECORD].cut)
