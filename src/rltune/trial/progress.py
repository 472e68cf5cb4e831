"""What a trial knows of the thing that it trains: its progress in plain numbers, and what it can be asked to do.

Imports nothing heavy. Runs in a worker.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from rltune.errors import NonFiniteError


@dataclass(frozen=True)
class Progress:
    """How far one seed has come.

    Attributes:
        env_steps: Environment steps since the trial began.
        episodes: Finished episodes since then.
        return_mean: Over the last finished episodes, 50 by default; NaN before the first.
        return_min: Least of them.
        return_max: Greatest of them.
        episode_length_mean: In environment steps.
        learner: Statistics of the last update, by name.
    """

    env_steps: int
    episodes: int
    return_mean: float = math.nan
    return_min: float = math.nan
    return_max: float = math.nan
    episode_length_mean: float = math.nan
    learner: Mapping[str, float] = field(default_factory=dict)

    def after(self, before: Progress) -> Progress:
        """This progress, with the returns known before while no further episode has ended.

        A restored algorithm has lost the window over its last episodes.

        Raises:
            NonFiniteError: Episodes have ended, and their mean return is no number.
        """
        if math.isfinite(self.return_mean):
            return self
        if self.episodes > before.episodes:
            raise NonFiniteError(f"non-finite numbers: return_mean={self.return_mean}")
        return replace(
            self,
            return_mean=before.return_mean,
            return_min=before.return_min,
            return_max=before.return_max,
            episode_length_mean=before.episode_length_mean,
        )


class Runner(Protocol):
    """What a trial needs of the thing that it trains."""

    def train(self) -> Progress:
        """Train one iteration, the smallest step after which numbers are known."""

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        """Write everything that is needed to go on, and the policy, into an empty folder."""

    def restore(self, folder: Path) -> None:
        """Go on from what `save` wrote."""

    def stop(self) -> None:
        """Free what it holds."""
