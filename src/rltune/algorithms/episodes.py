"""Make stock RLlib report each episode; its own results have only averages (Ray 2.60)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from rltune.envs.episode import RECORD, EpisodeRecord
from rltune.envs.step_count import STEPS

EPISODES = "episodes"
"""Key among the ``env_runners`` results of an iteration for the records of the episodes that ended in it."""


def report_episodes(config: Any) -> Any:
    """Return a copy of an RLlib config with a callback that logs each episode; the user's callbacks are kept."""
    config = config.copy(copy_frozen=False)
    others = config.callbacks_on_episode_end or []
    others = list(others) if isinstance(others, list | tuple) else [others]
    return config.callbacks(on_episode_end=[*others, log_episode])


def log_episode(*, episode: Any, metrics_logger: Any, prev_episode_chunks: Any = None, **others: Any) -> None:
    """Log the record of an episode that ended; RLlib calls this as ``on_episode_end``."""
    infos = episode.get_infos(-1)
    # With several agents they are by agent, and each has the record.
    parts = [infos, *(info for info in infos.values() if isinstance(info, dict))]
    record = next((info[RECORD] for info in parts if RECORD in info), None)
    if record is None:
        # RLlib cuts episodes at the ends of rollouts, so the return is summed over the chunks. Their lengths are not
        # summed, because RLlib's learner may append an artificial step without reward to a chunk.
        total = float(sum(part.get_return() for part in (*(prev_episode_chunks or ()), episode)))
        length = episode.env_t if hasattr(episode, "env_t") else episode.t
        record = EpisodeRecord(total, int(length), total)
    STEPS.episodes += not record.cut
    metrics_logger.log_value(EPISODES, tuple(record), reduce="item_series")


def read_episodes(sampled: Mapping[str, Any]) -> list[EpisodeRecord]:
    """Return the records of the episodes of an iteration, from its ``env_runners`` results.

    The env runner of a user's own may call no callbacks: then RLlib's mean of the iteration counts as one episode.
    """
    if EPISODES in sampled:
        episodes = sampled[EPISODES]
        # RLlib unpacks a list of length one, so that a single episode comes as a tuple.
        return [EpisodeRecord(*each) for each in ([episodes] if isinstance(episodes, tuple) else episodes)]
    mean = float(sampled.get("episode_return_mean", math.nan))
    return [] if math.isnan(mean) else [EpisodeRecord(mean, round(sampled.get("episode_len_mean", 0)), mean)]
