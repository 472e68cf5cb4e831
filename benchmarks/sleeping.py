"""A trial that sleeps in a process that has imported RLlib, for ``benchmarks/cluster.py``. Runs in a worker."""

from __future__ import annotations

import importlib
import os
import time

from benchmarks.cluster import SECONDS
from benchmarks.instant import InstantRunner
from rltune.trial.metrics import Progress
from rltune.trial.trainable import Trial


class SleepingRunner(InstantRunner):
    """Pretends to train one seed, and takes its time."""

    def train(self) -> Progress:
        """100 environment steps."""
        time.sleep(float(os.environ[SECONDS]))
        return super().train()


class SleepingTrial(Trial):
    """A trial over `SleepingRunner`, in a process with all that a real one imports."""

    def build_runner(self, seed: int) -> SleepingRunner:
        """After the imports; a process that has them has them at once."""
        importlib.import_module("rltune.trial.algorithm_runner")
        importlib.import_module(str(self.task.build["algo"]["class"]).partition(":")[0])
        return SleepingRunner(1.0 + seed % 10)
