"""Save a trial's state when it is time, and restore it.

The best state is saved whenever the objective improves, the latest one every so many seconds. The driver records both
in the ledger. Runs in a worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltune.records import CheckpointRecord
from rltune.study.checkpoints import DamagedError, is_whole, read_state, write_checkpoint
from rltune.trial.assignment import Assignment
from rltune.trial.metrics import Progress
from rltune.trial.runner import Runner


@dataclass
class TrialState:
    """How far a trial has come.

    Attributes:
        progress: One per seed.
        train_s: Seconds trained, all seeds together.
        reports: Reports sent.
    """

    progress: list[Progress] = field(default_factory=list)
    train_s: float = 0.0
    reports: int = 0

    @property
    def env_steps(self) -> int:
        """Environment steps that every seed has reached."""
        return min((seed.env_steps for seed in self.progress), default=0)


class TrialCheckpoints:
    """Saves and restores one trial.

    Args:
        task: The trial.

    Attributes:
        best_path: The checkpoint with the best objective, relative to the sweep's folder; None without one.
    """

    def __init__(self, task: Assignment) -> None:
        self._task, self._sweep = task, Path(task.sweep)
        self._best = -math.inf if task.best_objective is None else task.best_objective
        self.best_path = task.best_path
        self._saved_at = time.monotonic()

    def restore(self, runners: Sequence[Runner]) -> TrialState:
        """Load the checkpoint that the task names, and return the state then; a new state where it names none.

        Raises:
            DamagedError: The checkpoint is not as it was recorded.
        """
        if not self._task.latest:
            return TrialState([Progress() for _ in runners])
        folder = is_whole(self._sweep, CheckpointRecord(**self._task.latest))
        if folder is None:  # the driver knows which others there are; from the beginning only if there is none
            raise DamagedError(f"checkpoint {self._task.latest['path']} is damaged")
        state = read_state(folder)
        for index, runner in enumerate(runners):
            runner.restore(_seed_folder(folder, index))
        return TrialState([Progress(**saved) for saved in state["progress"]], state["train_s"], state["reports"])

    def is_due(self) -> bool:
        """Whether the latest state is to be saved by now."""
        return time.monotonic() - self._saved_at >= self._task.checkpoint_every_s

    def save_if_due(
        self, state: TrialState, runners: Sequence[Runner], objective: float, force: bool
    ) -> dict[str, Any]:
        """Save the best state when it improved, and the latest when it is time.

        Args:
            state: Where the trial is.
            runners: What it trains.
            objective: The report's; NaN before the first episode ended.
            force: Save the latest state in any case.

        Returns:
            The records for the ledger: ``best`` and ``latest``, where written.
        """
        records = {}
        if math.isfinite(objective) and objective > self._best:
            self._best = objective
            records["best"] = self._save("best", state, runners, objective)
            self.best_path = records["best"]["path"]
        if force or self.is_due():
            # The best state that was just written is the latest one too: one folder serves as both.
            latest = records.get("best") or self._save("latest", state, runners, objective)
            self._saved_at = time.monotonic()
            records["latest"] = latest
        return records

    def save_latest(self, state: TrialState, runners: Sequence[Runner]) -> dict[str, Any]:
        """Save the latest state between two reports, and return its record; it has no objective."""
        record = self._save("latest", state, runners, math.nan)
        self._saved_at = time.monotonic()
        return {"latest": record}

    def _save(self, kind: str, state: TrialState, runners: Sequence[Runner], objective: float) -> dict[str, Any]:
        task = self._task
        saved = {
            "env_steps": state.env_steps,
            "objective": objective if math.isfinite(objective) else None,  # JSON has no NaN
            "number": task.number,
            "params": dict(task.params),
            "seeds": list(task.seeds),
            "train_s": state.train_s,
            "reports": state.reports,
            "progress": [dict(vars(seed)) for seed in state.progress],
        }

        def fill(folder: Path) -> None:
            for index, runner in enumerate(runners):
                target = _seed_folder(folder, index)
                target.mkdir(exist_ok=True)
                runner.save(target, self._policy_info(index, state.progress[index]))

        return write_checkpoint(self._sweep, task.trial_dir, kind, saved, fill).to_dict()

    def _policy_info(self, index: int, progress: Progress) -> Mapping[str, Any]:
        """Say where a policy came from; it is kept inside the policy."""
        task = self._task
        return {
            "trial": task.number,
            "seed": task.seeds[index],
            "params": dict(task.params),
            "env_steps": progress.env_steps,
            "objective": progress.return_mean,
            "algo": task.build["algo"]["name"],
            "env": dict(task.build["env"]),
            **(task.tags or {}),
        }


def _seed_folder(folder: Path, index: int) -> Path:
    """Return where a seed's files stand: the first one's in the checkpoint itself, the others' in their own folders."""
    return folder if index == 0 else folder / f"seed-{index}"
