"""A trial that costs nothing, so that ``benchmarks/driver.py`` measures the driver alone. Runs in a worker."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltune.trial.metrics import Progress
from rltune.trial.trainable import Trial


class InstantRunner:
    """Pretends to train one seed: the objective is ``quality * env_steps / 1000``."""

    def __init__(self, quality: float) -> None:
        self.quality, self.env_steps = quality, 0

    def train(self) -> Progress:
        """100 environment steps at once."""
        self.env_steps += 100
        value = self.quality * self.env_steps / 1000
        learner = {"total_loss": 1.0 / self.env_steps, "entropy": 0.5, "vf_loss": 1.0, "policy_loss": 0.1}
        return Progress(self.env_steps, self.env_steps // 10, value, value - 1, value + 1, 10.0, learner)

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        """One small file."""
        (folder / "instant.txt").write_text(str(self.env_steps))

    def restore(self, folder: Path) -> None:
        """Never needed."""

    replay_bytes = 0

    def save_replay(self, folder: Path) -> None:
        """Never called."""

    def load_replay(self, folder: Path | None) -> int:
        """Nothing is lost."""
        return 0

    def stop(self) -> None:
        """Nothing to stop."""


class InstantTrial(Trial):
    """A trial over `InstantRunner`."""

    def build_runner(self, seed: int) -> InstantRunner:
        """From the sample's ``quality``."""
        return InstantRunner(float(self.task.params["quality"]))


class PacedRunner(InstantRunner):
    """One that takes a quarter of a second for each report, so that the driver has time between two."""

    def train(self) -> Progress:
        """100 environment steps after a while."""
        time.sleep(0.25)
        return super().train()


class PacedTrial(InstantTrial):
    """An instant trial at first, which fills the ledger; from this number on one that takes its time."""

    after = 500

    def build_runner(self, seed: int) -> InstantRunner:
        """By the trial's number."""
        kind = PacedRunner if self.task.number >= self.after else InstantRunner
        return kind(float(self.task.params["quality"]))
