"""Read from a sweep's folder all that its report shows.

Everything comes from the folder, so that a report can be made again at any time, also of an interrupted sweep.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rltune.algorithms.arguments import build_search_space
from rltune.config.settings_file import read_settings
from rltune.errors import RltuneError
from rltune.search.schedulers import build_stopping_rule
from rltune.search.space import Space
from rltune.study.record import TrialRecord, rank_records
from rltune.study.storage import open_study
from rltune.study.study import Study


@dataclass(frozen=True)
class SweepData:
    """A sweep as its report shows it, whatever state it is in.

    Attributes:
        name: The sweep's.
        status: complete, stopped, interrupted, failed or running.
        settings: The composed config.
        trials: All of them, in order.
        rungs: Where weak trials are stopped, in environment steps.
        winner: As ``summary.json`` has it; None without one.
        certification: The record of the ledger; None without one.
        cost: As ``summary.json`` has it; empty while the sweep has none.
        model: The registered model; None without one.
        about: Further study attributes: versions, git_commit, command, began.
    """

    name: str
    status: str
    settings: Mapping[str, Any]
    trials: Sequence[TrialRecord]
    rungs: Sequence[int]
    winner: Mapping[str, Any] | None
    certification: Mapping[str, Any] | None
    cost: Mapping[str, float]
    model: Mapping[str, Any] | None
    about: Mapping[str, Any]

    @property
    def env_steps(self) -> int:
        """A trial's whole budget."""
        return int(self.settings["budget"]["env_steps"])

    @property
    def ranked(self) -> list[TrialRecord]:
        """Trials that may win, the best first."""
        return rank_records(self.trials)

    @property
    def winner_trial(self) -> int | None:
        """The winner's number; None without a winner, and where the control won."""
        return self.winner.get("trial") if self.winner else None

    @property
    def space(self) -> Space:
        """The search space."""
        return build_search_space(self.settings["algo"], self.settings["space"])


def load_sweep_data(folder: Path) -> SweepData:
    """Read a sweep's folder.

    Raises:
        StudyError: It is no sweep's folder, or its ledger cannot be read.
    """
    study = open_study(folder)
    try:
        return read_sweep_data(folder, study)
    finally:
        study.close()


def read_sweep_data(folder: Path, study: Study) -> SweepData:
    """Do as `load_sweep_data`, by a ledger that is open already: opening one takes longer than a page."""
    settings: Any = OmegaConf.to_container(read_settings(folder))
    summary = folder / "summary.json"
    ended = json.loads(summary.read_text()) if summary.is_file() else {}
    return SweepData(
        name=folder.name,
        status=str(study.attribute("status", "running")),
        settings=settings,
        trials=study.trials(),
        rungs=_read_rungs(settings),
        winner=study.attribute("winner") or ended.get("winner"),
        certification=study.attribute("certification"),
        cost=ended.get("cost") or {},
        model=study.attribute("champion") or ended.get("model"),
        about={key: study.attribute(key) for key in ("versions", "git_commit", "command", "began")},
    )


def _read_rungs(settings: Mapping[str, Any]) -> list[int]:
    """Return the rungs in environment steps; none for a scheduler without rungs, or one that is refused by now."""
    try:
        rule = build_stopping_rule(
            settings["scheduler"]["kind"], settings["scheduler"].get("args") or {}, settings["budget"]["env_steps"]
        )
    except RltuneError:
        return []
    return [int(level) for level in getattr(rule, "levels", ())]
