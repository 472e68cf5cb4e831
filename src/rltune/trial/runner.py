"""The interface between a trial and what it trains, so that tests can train a toy.

Imports nothing heavy. `rltune.trial.algorithm_runner.AlgorithmRunner` implements it with RLlib.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from rltune.trial.metrics import Progress


class Runner(Protocol):
    """Trains one seed of one configuration."""

    def train(self) -> Progress:
        """Train one iteration, the smallest step after which numbers are known.

        Raises:
            SamplingEnded: `rltune.envs.step_count.STEPS` said that it was to end early.
        """

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        """Write the training state and the policy into ``folder``, which is empty; the policy carries ``info``."""

    def restore(self, folder: Path) -> None:
        """Load the training state that `save` wrote."""

    @property
    def replay_bytes(self) -> int:
        """Size of the replay memory as `save_replay` writes it now; 0 without one that can be written."""

    def save_replay(self, folder: Path) -> None:
        """Write the replay memory into ``folder``, which is empty."""

    def load_replay(self, folder: Path | None) -> int:
        """Load the replay memory after `restore`; without a copy that fits begin with an empty one.

        Args:
            folder: What `save_replay` wrote; None without a copy.

        Returns:
            Environment steps that are sampled before learning goes on; 0 where nothing is lost.
        """

    def stop(self) -> None:
        """Free environments and networks."""
