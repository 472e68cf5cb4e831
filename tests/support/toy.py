"""A toy trial with a known curve: search, stopping, crash and resume come out exact, in milliseconds.

The objective is ``quality * env_steps / 1000``; ``fault`` makes a trial misbehave on purpose.
"""

from __future__ import annotations

import io
import json
import math
import os
import secrets
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.errors import NonFiniteError
from rltune.ledger.outcome import Outcome
from rltune.ledger.storage import open_ledger
from rltune.policies.result import Evaluation
from rltune.records import TrialRecord
from rltune.trial.assignment import Assignment
from rltune.trial.metrics import Progress
from rltune.trial.trainable import Trial

if TYPE_CHECKING:
    import pytest

HURRY = "RLTUNE_TESTS_HURRY"  # in the environment of a trial's process: it is not slowed down
DEADLY = "RLTUNE_TESTS_DEADLY"  # in the environment of a node: it kills every trial that it gets
STEP = 100  # environment steps an iteration, unless ``params['batch']`` says otherwise
TOY = (
    # The toy reads these two; they stand in the algo file so that the space may name them.
    "+algo.training.learner_config_dict.quality=1.0",
    "+algo.training.learner_config_dict.fault=null",
    "+algo.training.learner_config_dict.seconds=0.0",
    "~tuned",
    "~space",
    "+space.quality=[uniform,0,1]",
    "warm_start=[]",
    "searcher=random",
    "budget.env_steps=2000",
    "budget.trials=6",
    "certify=off",
    "certify.top=0",
    "tracking.register=false",
    "report=false",
    "resources.max_concurrent=2",
)


class ToyRunner:
    """Pretends to train one seed."""

    def __init__(self, params: Mapping[str, Any], seed: int, seconds: float) -> None:
        self.params, self.seed, self.seconds = params, seed, seconds
        self.env_steps, self.resumed = 0, False
        if params.get("fault") == "build":
            raise ValueError("a network of size 0")

    def train(self) -> Progress:
        time.sleep(0.0 if HURRY in os.environ else self.seconds)
        self.env_steps += self.params.get("batch", STEP)
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
        if fault == "numbered" and self.env_steps == 500:
            raise ValueError(f"the pole broke at {self.seed / 7}")
        if fault == "nan_loss" and self.env_steps == 500:
            raise NonFiniteError("non-finite numbers: total_loss=nan")
        if fault == f"seed-{self.seed}" and self.env_steps == 500:  # the certification's seeds are known beforehand
            raise NonFiniteError("non-finite numbers: total_loss=nan")
        if fault == "hang" and self.env_steps == 500:
            time.sleep(3600)
        if fault == "die" and self.env_steps == 500:
            print("the fault told it to", file=sys.stderr, flush=True)
            os._exit(1)
        if fault == "raise_once" and self.env_steps == 500 and not self.resumed:
            raise ValueError("the pole broke, this time")
        if fault == "die_once" and self.env_steps == 500 and not self.resumed:
            os._exit(1)
        if fault == "stall" and self.env_steps > 500:
            self.env_steps = 500

    def save(self, folder: Path, info: Mapping[str, Any]) -> None:
        if self.params.get("fault") == "full" and not (folder.parents[3] / "room").exists():
            Path("/dev/full").write_text("no room")  # the kernel's own refusal
        if self.params.get("fault") == "save" and not (folder.parents[3] / "room").exists():
            raise ValueError("a network that cannot be saved")
        (folder / "toy.json").write_text(json.dumps({"env_steps": self.env_steps, "seed": self.seed}))

    def restore(self, folder: Path) -> None:
        self.env_steps, self.resumed = json.loads((folder / "toy.json").read_text())["env_steps"], True

    def play(self, *, copies: Any, **episodes: Any) -> Evaluation:
        """Every episode is worth what ``env`` says, or the square of the curve."""
        count = episodes["episodes"]
        for done in range(count):
            episodes["progress"](done, count)
        worth = episodes["env"].get("worth", (self.params["quality"] * self.env_steps / 1000) ** 2)
        self.played = [*getattr(self, "played", []), (self.env_steps, episodes["seed"], count)]
        return Evaluation((worth,) * count, (1,) * count, worth, 0.0, worth, None, None, worth, worth)

    @property
    def kept_steps(self) -> int:
        """None: an iteration of the toy is not interrupted."""
        return 0

    @property
    def replay_bytes(self) -> int:
        """A memory of a kilobyte a step, where the parameters ask for one."""
        return 1000 * self.env_steps if self.params.get("replay") else 0

    def save_replay(self, folder: Path) -> None:
        (folder / "toy.bin").write_bytes(bytes(self.replay_bytes))

    def load_replay(self, folder: Path | None) -> int:
        if not self.params.get("replay"):
            return 0
        return 50 if folder is None or len((folder / "toy.bin").read_bytes()) != self.replay_bytes else 0

    def close_envs(self) -> None:
        pass

    def stop(self) -> None:
        pass


class ToyTrial(Trial):
    """A trial over a toy; ``params['seconds']`` slows its iterations down."""

    def build_runner(self, seed: int) -> ToyRunner:
        if DEADLY in os.environ:
            os.kill(os.getpid(), signal.SIGKILL)
        return ToyRunner(self.task.params, seed, float(self.task.params.get("seconds", 0.0)))

    def _open_score_copies(self, score: Mapping[str, Any]) -> Any:
        return None

    def play(
        self, folder: Path, copies: Any, seed: int, env: Mapping[str, Any]
    ) -> tuple[list[float], dict[str, list[float | None]]]:
        """The same return in each episode: ``worth``, else the curve's end, and ``luck`` times -2 to 2 by the seed."""
        params, trained = self.task.params, json.loads((folder / "toy.json").read_text())["seed"]
        worth = params.get("worth", params["quality"] * self.task.env_steps / 1000)
        returns = [worth + params.get("luck", 0.0) * (trained % 5 - 2)] * self.task.episodes
        return returns, {name: list(returns) for name in params.get("metrics", ())}


def make_task(sweep: Path, **other: Any) -> dict[str, Any]:
    """Return Tune's config of a trial with two reports, whose checkpoints are due every 100 steps."""
    known: dict[str, Any] = {
        "number": 0, "params": {"quality": 1.0}, "seeds": (1,), "sweep": str(sweep), "env_steps": 1000, "reports": 2,
        "checkpoint_every_s": 0.0, "replay_gb": 0.0, "stall_s": 600.0, "threads": 1, "engine": "rllib",
        "build": {"algo": {"name": "toy"}, "env": {"id": "Toy-v0"}}, "attempt": secrets.token_hex(4),
    }  # fmt: skip
    return Assignment(**known | other).to_config()


def run_toy(folder: Path, patch: pytest.MonkeyPatch, stream: io.StringIO, *overrides: str) -> Outcome:
    """Run a toy sweep in a folder, whose store is ready; RLlib's own checks do not apply to what the toy invents."""
    from composing import compose
    from server import put_store

    from rltune.config.validation import parse_config
    from rltune.driver.run import run_sweep

    patch.chdir(folder)
    patch.delenv("MLFLOW_TRACKING_URI", raising=False)
    patch.setattr("rltune.driver.plan.preflight", lambda *_: ())
    if "tracking=off" not in overrides:
        put_store(folder)
    config = parse_config(compose("run", f"output_dir={folder / 'outputs'}", *TOY, *overrides))
    return run_sweep(config, stream=stream, trainable=ToyTrial)


def ledger(outcome: Outcome) -> list[TrialRecord]:
    """All trials of a sweep."""
    opened = open_ledger(outcome.folder)
    records = opened.trials.records()
    opened.close()
    return records
