"""Save a trial's state when it is time, and restore it.

The best state is saved whenever the objective improves, the latest one every so many seconds, with the replay memory
where that is small enough. The driver records both in the ledger. Runs in a worker.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltune.records import CheckpointRecord
from rltune.study.checkpoints import REPLAY, DamagedError, find_replay, is_whole, read_state, write_checkpoint
from rltune.trial.assignment import Assignment
from rltune.trial.metrics import Progress
from rltune.trial.runner import Runner


@dataclass
class TrialState:
    """How far a trial has come.

    Attributes:
        progress: One per seed.
        train_s: Seconds trained, all seeds together.
        reports: Reports sent: how many of the budget's marks are behind it.
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
        sweep: The sweep's folder, or this worker's own that leads to the sweep's bucket.

    Attributes:
        best: The record of the checkpoint with the best objective; None without one.
        notes: What a person is to know of the restore, each the rest of a sentence about the trial.
    """

    def __init__(self, task: Assignment, sweep: Path) -> None:
        self._task, self._sweep = task, sweep
        self.best = CheckpointRecord(**task.best) if task.best else None
        self._best = -math.inf if self.best is None or self.best.objective is None else self.best.objective
        self._saved_at = time.monotonic()
        # What the ledger names, so that no later checkpoint drops it: by the fields of the trial's record.
        recorded = {"best": task.best, "latest": task.latest, "older": task.older}
        self._recorded = {name: str(record["path"]) for name, record in recorded.items() if record}
        self.notes: list[str] = []

    def restore(self, runners: Sequence[Runner]) -> TrialState:
        """Load the checkpoint that the task names, and return the state then; a new state where it names none.

        Raises:
            DamagedError: The checkpoint is not as it was recorded.
        """
        if not self._task.latest:
            return TrialState([Progress() for _ in runners])
        folder = self._find_whole()
        state, replay = read_state(folder), find_replay(folder)
        for index, runner in enumerate(runners):
            runner.restore(_seed_folder(folder, index))
        waits = [runner.load_replay(replay and replay / str(index)) for index, runner in enumerate(runners)]
        if any(waits):
            size, limit = state["replay_bytes"] / 1e9, self._task.replay_gb
            why = f" ({size:.2f} GB, checkpoint.replay_gb={limit:g})" if size > limit else ""
            self.notes.append(
                f"goes on without its replay memory{why} and learns again after {max(waits):,} environment steps"
            )
        return TrialState([Progress(**saved) for saved in state["progress"]], state["train_s"], state["reports"])

    def _find_whole(self) -> Path:
        """Find the checkpoint that the task names, else the older one: what lies in a bucket is read only here."""
        known = [CheckpointRecord(**one) for one in (self._task.latest, self._task.older) if one]
        for record in known:
            if folder := is_whole(self._sweep, record):
                if record is not known[0]:
                    self.notes.append(f"goes on from {record.path}: its checkpoint {known[0].path} is damaged or gone")
                return folder
        raise DamagedError(f"checkpoint {known[0].path} is damaged")  # the driver knows whether there are others

    def is_due(self) -> bool:
        """Whether the latest state is to be saved by now."""
        return time.monotonic() - self._saved_at >= self._task.checkpoint_every_s

    def save_if_due(self, state: TrialState, runners: Sequence[Runner], objective: float) -> dict[str, Any]:
        """Save the best state when it improved, and the latest when it is time.

        Args:
            state: Where the trial is.
            runners: What it trains.
            objective: The report's; NaN before the first episode ended.

        Returns:
            The records for the ledger: ``best`` and ``latest``, where written.
        """
        records, keeps_replay = {}, self._keeps_replay(runners)
        if math.isfinite(objective) and objective > self._best:
            records["best"] = self._save("best", state, runners, objective)
            self._best, self.best = objective, CheckpointRecord(**records["best"])
        if self.is_due():
            # The best state that was just written is the latest one too: one folder serves as both. Not where the
            # latest has a replay memory: the best would carry it for long.
            shared = None if keeps_replay else records.get("best")
            records["latest"] = shared or self._save("latest", state, runners, objective, keeps_replay)
            self._saved_at = time.monotonic()
        self._note_recorded(records)
        return records

    def save_latest(self, state: TrialState, runners: Sequence[Runner]) -> dict[str, Any]:
        """Save the latest state between two reports, and return its record; it has no objective."""
        record = self._save("latest", state, runners, math.nan, self._keeps_replay(runners))
        self._saved_at = time.monotonic()
        self._note_recorded({"latest": record})
        return {"latest": record}

    def _note_recorded(self, records: Mapping[str, Mapping[str, Any]]) -> None:
        """Note what the ledger will name before the next checkpoint is written: Tune records a report first."""
        if "latest" in records:
            self._recorded.pop("older", None)
        self._recorded |= {name: str(record["path"]) for name, record in records.items()}

    def _keeps_replay(self, runners: Sequence[Runner]) -> bool:
        """Whether the latest state has the replay memories: those of all seeds, or none."""
        return 0 < _measure_replay(runners) <= self._task.replay_gb * 1e9

    def _save(
        self, kind: str, state: TrialState, runners: Sequence[Runner], objective: float, keeps_replay: bool = False
    ) -> dict[str, Any]:
        task = self._task
        saved = {
            "env_steps": state.env_steps,
            "objective": objective if math.isfinite(objective) else None,  # JSON has no NaN
            "number": task.number,
            "params": dict(task.params),
            "seeds": list(task.seeds),
            "train_s": state.train_s,
            "reports": state.reports,
            "replay_bytes": _measure_replay(runners),
            "progress": [dict(vars(seed)) for seed in state.progress],
        }

        def fill(folder: Path) -> None:
            for index, runner in enumerate(runners):
                target = _seed_folder(folder, index)
                target.mkdir(exist_ok=True)
                runner.save(target, self._policy_info(index, state.progress[index]))
                if keeps_replay:
                    memory = folder / REPLAY / str(index)
                    memory.mkdir(parents=True)
                    runner.save_replay(memory)

        keep = set(self._recorded.values())
        return write_checkpoint(self._sweep, task.trial_dir, kind, saved, fill, task.attempt, keep).to_dict()

    def _policy_info(self, index: int, progress: Progress) -> Mapping[str, Any]:
        """Say where a policy came from; it is kept inside the policy."""
        task = self._task
        return {
            "trial": task.number,
            "seed": task.seeds[index],
            "params": dict(task.params),
            "env_steps": progress.env_steps,
            "objective": progress.objective,
            "algo": task.build["algo"]["name"],
            "env": dict(task.build["env"]),
            **(task.tags or {}),
        }


def _measure_replay(runners: Sequence[Runner]) -> int:
    return sum(runner.replay_bytes for runner in runners)


def _seed_folder(folder: Path, index: int) -> Path:
    """Return where a seed's files stand: the first one's in the checkpoint itself, the others' in their own folders."""
    return folder if index == 0 else folder / f"seed-{index}"
