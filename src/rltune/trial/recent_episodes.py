"""Keep the recent episodes whose mean is a trial's score: those of the last environment steps before a report."""

from __future__ import annotations

import json
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

from rltune.envs.episode import EpisodeRecord
from rltune.records import SCORED_EPISODES

EPISODES_FILE = "episodes.json"  # The file in a checkpoint with the recent episodes.


class RecentEpisodes:
    """The episodes that ended within the last ``steps`` environment steps, and at least the last `SCORED_EPISODES`.

    An episode belongs to where it ended. Those that began in the window as well would be short ones for the most part:
    with 16 environments and a window of 5,000 steps no episode of more than 312 steps both begins and ends in it.

    Args:
        steps: How far the window reaches back. Whole iterations count: the episodes of one that is longer than the
            window are all in it, since they are by the same policy.
    """

    def __init__(self, steps: float) -> None:
        self._steps = steps
        self._ended: deque[tuple[int, EpisodeRecord]] = deque()

    def add(self, env_steps: int, episodes: Iterable[EpisodeRecord]) -> None:
        """Add the episodes of an iteration but those that a failure has cut, and drop those before the window.

        Args:
            env_steps: Environment steps at the iteration's end.
            episodes: Those that ended in it, in their order.
        """
        self._ended.extend((env_steps, episode) for episode in episodes if not episode.cut)
        while len(self._ended) > SCORED_EPISODES and self._ended[0][0] <= env_steps - self._steps:
            self._ended.popleft()

    def summarize(self) -> dict[str, float]:
        """Return the metrics of `rltune.trial.metrics.Progress` about the episodes in the window; empty without any."""
        if not self._ended:
            return {}
        totals, lengths, scores, *_ = zip(*(episode for _, episode in self._ended), strict=True)
        return {
            "return_mean": statistics.fmean(totals),
            "return_min": min(totals),
            "return_max": max(totals),
            "score": statistics.fmean(scores),
            "episode_length_mean": statistics.fmean(lengths),
            "episode_length_max": float(max(lengths)),
        }

    def state(self) -> list[list[float]]:
        """Return the episodes in the window as JSON values, for a checkpoint."""
        return [[env_steps, *episode[:3]] for env_steps, episode in self._ended]

    def load(self, state: Iterable[Sequence[float]]) -> None:
        """Restore the episodes that `state` has returned."""
        self._ended = deque((int(at), EpisodeRecord(total, int(length), score)) for at, total, length, score in state)


def explain_no_episode(env_steps: int, copies: int) -> str:
    """Explain why no episode has ended, with what to type.

    Args:
        env_steps: The environment steps of a trial and seed by then.
        copies: The copies of the environment that have shared them.
    """
    each = max(1, env_steps // copies)
    limit = (
        f"+env.kwargs.max_episode_steps={max(1, each // 10)} ends episodes there (TimeLimit; PettingZoo: max_cycles)"
    )
    if copies == 1:
        return f"no episode has ended within {each:,} steps; {limit}"
    fewer = "algo.env_runners.num_envs_per_env_runner=1 gives one copy all steps"
    return f"no episode has ended: each of {copies} copies has taken {each:,} steps; {limit}; {fewer}"


def read_training_scores(checkpoint: Path) -> list[float]:
    """Read the scores of a checkpoint's recent training episodes, in which actions were sampled.

    Returns:
        The scores; empty without the file, and of an offline algorithm, whose episodes are deterministic evaluations.
    """
    try:
        kept = json.loads((checkpoint / EPISODES_FILE).read_text())
    except FileNotFoundError:
        return []
    return [] if kept["evaluated"] else [EpisodeRecord(*episode).score for _, *episode in kept["recent"]]
