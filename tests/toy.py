"""A toy trial with a known curve: search, stopping, crash and resume come out exact, in milliseconds.

The objective is ``quality * env_steps / 1000``; ``fault`` makes a trial misbehave on purpose.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rltune.progress import NonFiniteError, Progress
from rltune.trial import Trial

STEP = 100  # environment steps an iteration


class ToyRunner:
    """Pretends to train one seed."""

    def __init__(self, params: Mapping[str, Any], seed: int, seconds: float) -> None:
        self.params, self.seed, self.seconds = params, seed, seconds
        self.env_steps = 0
        if params.get("fault") == "build":
            raise ValueError("a network of size 0")

    def train(self) -> Progress:
        time.sleep(self.seconds)
        self.env_steps += STEP
        self._misbehave(self.params.get("fault"))
        value = self.params["quality"] * self.env_steps / 1000
        if self.params.get("fault") == "no_episode":
            return Progress(self.env_steps, 0)
        if self.params.get("fault") == "nan_return" and self.env_steps >= 500:
            value = math.nan
        episodes = self.env_steps // 10
        return Progress(
            self.env_steps, episodes, value, value - 1, value + 1, 10.0, {"total_loss": 1.0 / self.env_steps}
        )

    def _misbehave(self, fault: Any) -> None:
        if fault == "raise" and self.env_steps == 500:
            raise ValueError("the pole broke")
        if fault == "nan_loss" and self.env_steps == 500:
            raise NonFiniteError("non-finite numbers: total_loss=nan")
        if fault == "hang" and self.env_steps == 500:
            time.sleep(3600)
        if fault == "die" and self.env_steps == 500:
            print("the fault told it to", file=sys.stderr, flush=True)
            os._exit(1)
        if fault == "stall" and self.env_steps > 500:
            self.env_steps = 500

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        (folder / "toy.json").write_text(json.dumps({"env_steps": self.env_steps, "seed": self.seed}))

    def restore(self, folder: Path) -> None:
        self.env_steps = json.loads((folder / "toy.json").read_text())["env_steps"]

    def stop(self) -> None:
        pass


class ToyTrial(Trial):
    """A trial over a toy; ``params['seconds']`` slows its iterations down."""

    def build_runner(self, seed: int) -> ToyRunner:
        return ToyRunner(self._task.params, seed, float(self._task.params.get("seconds", 0.0)))
