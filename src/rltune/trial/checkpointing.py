"""Save a trial's checkpoints when they are due, and restore the trial from them.

The best state is saved whenever the objective improves, and the latest state at an interval, with the replay memory
if it is small enough. The driver records both in the ledger. Runs in a worker.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltune.checkpoints.store import REPLAY, Store, compute_digest, find_replay, read_state
from rltune.envs.objective import Objective
from rltune.records import CheckpointRecord
from rltune.trial.assignment import Assignment
from rltune.trial.metrics import Progress
from rltune.trial.runner import Runner

FIRST_GAP = 128
"""After a failed attempt the latest state is also saved after so many environment steps, then after twice as many, and
so on. So an environment that fails again and again delays its trial and does not end it, and one that has failed once
costs a few checkpoints."""


@dataclass
class TrialState:
    """The progress of a trial, which its checkpoints contain.

    Attributes:
        progress: One per seed.
        train_s: Seconds trained, all seeds together.
        reports: Reports sent: how many of the budget's marks are behind it.
        curve: The environment steps at each report, and its score.
        ended: Why the trial has ended early, see `rltune.config.early_end`; None if it has not.
    """

    progress: list[Progress] = field(default_factory=list)
    train_s: float = 0.0
    reports: int = 0
    curve: list[tuple[int, float]] = field(default_factory=list)
    ended: str | None = None

    @property
    def env_steps(self) -> int:
        """The environment steps that every seed has taken at least."""
        return min((seed.env_steps for seed in self.progress), default=0)


class TrialCheckpoints:
    """Saves and restores the checkpoints of one trial.

    Args:
        store: The sweep's.

    Attributes:
        best: The record of the checkpoint with the best objective; None without one.
        due_at: The environment steps of each seed at which a latest checkpoint is due before its time.
        notes: Notes about the restore for the user; each goes on with a sentence that begins with the trial's name.
    """

    def __init__(self, task: Assignment, store: Store) -> None:
        self._task, self._store = task, store
        self._direction = Objective.from_settings(task.build["env"].get("objective")).direction
        self.best = CheckpointRecord(**task.best) if task.best else None
        self._saved_at = time.monotonic()
        self._gap = FIRST_GAP if task.saves_early else math.inf
        self.due_at = math.inf
        self._paths: set[str] = set()  # The paths of checkpoints that this attempt of the trial has already written.
        self.notes: list[str] = []

    def restore(self, runners: Sequence[Runner]) -> TrialState:
        """Restore the newest intact checkpoint that the task names, if any, and return the trial's progress."""
        folder = self._open_newest()
        if folder is None:
            return TrialState([Progress() for _ in runners])
        state, replay = read_state(folder), find_replay(folder)
        for index, runner in enumerate(runners):
            runner.restore(_seed_folder(folder, index))
        waits = [runner.load_replay(replay and replay / str(index)) for index, runner in enumerate(runners)]
        if any(waits):
            size, limit = state["replay_bytes"] / 1e9, self._task.replay_gb
            why = f" ({size:.2f} GB, checkpoint.replay_gb={limit:g})" if size > limit else ""
            self.notes.append(
                f"continues without its replay memory{why} and learns again after {max(waits):,} environment steps"
            )
        progress = [Progress(**saved) for saved in state["progress"]]
        curve = [(int(steps), float(score)) for steps, score in state.get("curve", ())]
        return TrialState(progress, state["train_s"], state["reports"], curve, state.get("ended"))

    def _open_newest(self) -> Path | None:
        """Open the task's latest checkpoint or else its older one; None if neither is there and intact."""
        records = [CheckpointRecord(**record) for record in (self._task.latest, self._task.older) if record]
        for record in records:
            if folder := self._store.open(record):
                if record is not records[0]:
                    self.notes.append(
                        f"continues from {record.path}: its checkpoint {records[0].path} is damaged or gone"
                    )
                return folder
        if records:
            self.notes.append(
                f"starts anew: its checkpoint {records[0].path} is damaged or gone, and there is no other"
            )
            self.best = None
        return None

    def begin(self, env_steps: int) -> None:
        """Begin the gap before the next latest checkpoint.

        Args:
            env_steps: Environment steps of each seed so far.
        """
        self._saved_at = time.monotonic()
        self.due_at, self._gap = env_steps + self._gap, 2 * self._gap

    def is_due(self, env_steps: int) -> bool:
        """Return whether the latest checkpoint is old enough to save a new one.

        Args:
            env_steps: Environment steps of each seed so far.
        """
        return env_steps >= self.due_at or time.monotonic() - self._saved_at >= self._task.checkpoint_every_s

    def save_if_due(self, state: TrialState, runners: Sequence[Runner], objective: float) -> dict[str, Any]:
        """Save a best checkpoint if the score improved, and a latest checkpoint if one is due.

        Args:
            state: Where the trial is.
            runners: What it trains.
            objective: The report's; NaN before the first episode ended.

        Returns:
            The records for the ledger: ``best`` and ``latest``, where written.
        """
        records, keeps_replay = {}, self._keeps_replay(runners)
        if self._is_best(objective):
            records["best"] = self._save("best", state, runners, objective)
            self.best = CheckpointRecord(**records["best"])
        if self.is_due(state.env_steps):
            # If both are due, then one folder serves as best and latest checkpoint. But a replay memory is large and
            # only needed to continue, so a latest checkpoint with one gets its own folder, which is deleted sooner.
            shared = None if keeps_replay else records.get("best")
            records["latest"] = shared or self._save("latest", state, runners, objective, keeps_replay)
            self.begin(state.env_steps)
        return records

    def _is_best(self, objective: float) -> bool:
        before = self.best.objective if self.best else None
        return math.isfinite(objective) and (before is None or self._direction.is_better(objective, before))

    def save_latest(self, state: TrialState, runners: Sequence[Runner]) -> dict[str, Any]:
        """Save a latest checkpoint between two reports, without a score, and return its record."""
        record = self._save("latest", state, runners, math.nan, self._keeps_replay(runners))
        self.begin(record["env_steps"])
        return {"latest": record}

    def _keeps_replay(self, runners: Sequence[Runner]) -> bool:
        """Return whether the replay memories of all seeds together are small enough for a checkpoint."""
        return 0 < _measure_replay(runners) <= self._task.replay_gb * 1e9

    def _save(
        self, kind: str, state: TrialState, runners: Sequence[Runner], objective: float, keeps_replay: bool = False
    ) -> dict[str, Any]:
        task = self._task
        seeds = zip(state.progress, runners, strict=True)
        env_steps = min(progress.env_steps + runner.kept_steps for progress, runner in seeds)
        content: dict[str, Any] = {
            "env_steps": env_steps,
            "objective": objective if math.isfinite(objective) else None,  # JSON has no NaN, so it becomes None.
            "number": task.number,
            "params": dict(task.params),
            "seeds": list(task.seeds),
            "train_s": state.train_s,
            "reports": state.reports,
            "curve": state.curve,
            "ended": state.ended,
            "replay_bytes": _measure_replay(runners),
            "progress": [dict(vars(seed)) for seed in state.progress],
        }
        path = self._choose_path(kind, env_steps)
        with self._store.make_draft(path) as folder:
            for index, runner in enumerate(runners):
                target = _seed_folder(folder, index)
                target.mkdir(exist_ok=True)
                runner.save(target, self._policy_info(index, state.progress[index]))
                if keeps_replay:
                    memory = folder / REPLAY / str(index)
                    memory.mkdir(parents=True)
                    runner.save_replay(memory)
            if keeps_replay:
                content[REPLAY] = compute_digest(folder / REPLAY)
            (folder / "state.json").write_text(json.dumps(content))
            digest = self._store.save(folder, path)
        return CheckpointRecord(path, env_steps, content["objective"], digest, replay=keeps_replay).to_dict()

    def _choose_path(self, kind: str, env_steps: int) -> str:
        """Choose a new path, because the ledger may name another checkpoint of this attempt from the same step."""
        start = f"{self._task.trial_dir}/{self._task.attempt}/{kind}-{env_steps:012d}"
        paths = (f"{start}-{count}" if count > 1 else start for count in range(1, len(self._paths) + 2))
        path = next(path for path in paths if path not in self._paths)
        self._paths.add(path)
        return path

    def _policy_info(self, index: int, progress: Progress) -> Mapping[str, Any]:
        """Return the metadata of a policy, such as its seed, parameters and environment, which its bundle contains."""
        task = self._task
        return {
            "seed": task.seeds[index],
            "params": dict(task.params),
            "env_steps": progress.env_steps,
            "objective": progress.score,
            "algo": task.build["algo"]["name"],
            "env": dict(task.build["env"]),
            **(task.tags or {}),
        }


def _measure_replay(runners: Sequence[Runner]) -> int:
    return sum(runner.replay_bytes for runner in runners)


def _seed_folder(folder: Path, index: int) -> Path:
    """Return the folder of a seed's files in a checkpoint: the top folder for the first seed, else a subfolder."""
    return folder if index == 0 else folder / f"seed-{index}"
