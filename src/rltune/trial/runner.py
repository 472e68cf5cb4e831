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
        """Train one iteration, the smallest step after which numbers are known."""

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        """Write the training state and the policy into ``folder``, which is empty; the policy carries ``info``."""

    def restore(self, folder: Path) -> None:
        """Load the training state that `save` wrote."""

    def stop(self) -> None:
        """Free environments and networks."""
