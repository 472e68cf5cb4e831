"""Keep the recent episodes whose mean is a trial's score: those of the last environment steps before a report."""

from __future__ import annotations

import json
import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rltune.envs.episode import EpisodeRecord
from rltune.envs.meter import average
from rltune.envs.spec import name_metric
from rltune.records import SCORED_EPISODES

USUAL_STEPS = 1000  # The highest time limit of most of Gymnasium's tasks.
EPISODES_FILE = "episodes.json"  # The file in a checkpoint with the recent episodes.


class RecentEpisodes:
    """The episodes that ended within the last ``steps`` environment steps, and at least the last `SCORED_EPISODES`.

    An episode belongs to where it ended. Those that began in the window as well would be short ones for the most part:
    with 16 environments and a window of 5,000 steps no episode of more than 312 steps both begins and ends in it.

    Args:
        steps: How far the window reaches back. Whole iterations count: the episodes of one that is longer than the
            window are all in it, since they are by the same policy.
        metrics: The user's own metrics, of which the episodes' records have the values.
    """

    def __init__(self, steps: float, metrics: Sequence[str] = ()) -> None:
        self._steps, self._metrics = steps, tuple(metrics)
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

    def summarize(self) -> dict[str, Any]:
        """Return the metrics of `rltune.trial.metrics.Progress` about the episodes in the window; empty without any."""
        if not self._ended:
            return {}
        records = [episode for _, episode in self._ended]
        totals, lengths = [record.total for record in records], [record.length for record in records]
        scores = [record.score for record in records if not math.isnan(record.score)]
        means = {name_metric(key): mean for key, mean in average(records, self._metrics).items()}
        return {
            "return_mean": statistics.fmean(totals),
            "return_min": min(totals),
            "return_max": max(totals),
            "score": statistics.fmean(scores) if scores else math.nan,
            "episode_length_mean": statistics.fmean(lengths),
            "episode_length_max": float(max(lengths)),
            "recent_episodes": len(records),
            "scored_episodes": len(scores),
            "metrics": {name: mean for name, (mean, _) in means.items()},
            "episodes_with": {name: count for name, (_, count) in means.items()},
        }

    def state(self) -> list[list[Any]]:
        """Return the episodes in the window as JSON values, for a checkpoint."""
        return [[env_steps, *episode[:3], list(episode.metrics)] for env_steps, episode in self._ended]

    def load(self, state: Iterable[Sequence[Any]]) -> None:
        """Restore the episodes that `state` has returned."""
        self._ended = deque((int(at), _read_record(values)) for at, *values in state)


def _read_record(values: Sequence[Any]) -> EpisodeRecord:
    """Return the record of an episode of which `RecentEpisodes.state` has returned the values."""
    total, length, score, *rest = values  # Checkpoints of earlier versions have no metrics.
    return EpisodeRecord(total, int(length), score, metrics=tuple(rest[0]) if rest else ())


def spell_time_limit(each: int, *, has_agents: bool = False) -> str:
    """Spell the override with which several episodes end within a trial.

    Args:
        each: The steps that each copy of the environment takes in the trial.
        has_agents: Whether it has several agents, and so PettingZoo's argument.
    """
    return f"+env.kwargs.{'max_cycles' if has_agents else 'max_episode_steps'}={min(USUAL_STEPS, max(1, each // 10))}"


def explain_no_episode(env_steps: int, copies: int, budget: int | None = None) -> str:
    """Explain why no episode has ended, with what to type.

    Args:
        env_steps: The environment steps of a trial and seed by then.
        copies: The copies of the environment that have shared them.
        budget: All steps that the trial will take, by which a time limit is suggested; None are those by then.
    """
    each = max(1, env_steps // copies)
    argument = spell_time_limit((budget or env_steps) // copies)
    limit = f"{argument} ends episodes there (TimeLimit; PettingZoo: max_cycles)"
    if copies == 1:
        return f"no episode has ended within {each:,} steps; {limit}"
    fewer = "algo.env_runners.num_envs_per_env_runner=1 gives one copy all steps"
    return f"no episode has ended: each of {copies} copies has taken {each:,} steps; {limit}; {fewer}"


def explain_no_score(episodes: int, key: str) -> str:
    """Explain why a trial has no score although episodes have ended, with what to type.

    Args:
        episodes: How many have ended.
        key: ``objective.key``.
    """
    return (
        f"no score: of {episodes:,} episodes the last ones had no {key} in an info (objective.key); "
        "objective.missing=0 counts such an episode as 0"
    )


def read_training_scores(checkpoint: Path) -> list[float]:
    """Read the scores of a checkpoint's recent training episodes, in which actions were sampled.

    Returns:
        The scores; empty without the file, and of an offline algorithm, whose episodes are deterministic evaluations.
    """
    try:
        kept = json.loads((checkpoint / EPISODES_FILE).read_text())
    except FileNotFoundError:
        return []
    scores = [_read_record(values).score for _, *values in kept["recent"]]
    return [] if kept["evaluated"] else [score for score in scores if not math.isnan(score)]
