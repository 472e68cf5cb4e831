"""Read from a sweep's folder and its ledger all that its report shows.

Nothing else is needed, so that a report can be made again at any time, also of an interrupted sweep.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from rltune.algorithms.arguments import build_search_space
from rltune.config.criteria import Criteria
from rltune.config.settings_file import read_settings
from rltune.envs.objective import Shown
from rltune.errors import RltuneError
from rltune.formatting import first_line, format_state
from rltune.records import Report, SweepRecord, TrialRecord
from rltune.search.schedulers import build_stopping_rule
from rltune.search.space import Space
from rltune.study.ledger import Ledger
from rltune.study.outcome import load_outcome
from rltune.study.ranking import find_front, rank_records
from rltune.study.storage import open_ledger
from rltune.study.sweep_folder import make_resume_command


@dataclass(frozen=True)
class SweepData:
    """A sweep as its report shows it, whatever state it is in.

    Attributes:
        name: Its folder's, by which commands find it.
        record: What the ledger knows of it as a whole.
        settings: The composed config.
        trials: All of them, in order.
        reports: Their reports in the order in which they came, without the numbers beside the objective.
        rungs: Where weak trials are stopped, in environment steps.
        cost: As ``summary.json`` has it; empty while the sweep has none.
        criteria: What it asks of a trial besides its score.
    """

    name: str
    record: SweepRecord
    settings: Mapping[str, Any]
    trials: Sequence[TrialRecord]
    reports: Sequence[Report]
    rungs: Sequence[int]
    cost: Mapping[str, float]
    criteria: Criteria

    @property
    def status(self) -> str:
        """The sweep's: complete, stopped, interrupted, failed or running."""
        return self.record.status or "running"

    def explain_end(self, trial: TrialRecord) -> str:
        """Say which bounds a trial breaks, and why it ended; empty where there is nothing to say."""
        return "; ".join(filter(None, [trial.breaks, trial.stop_reason and first_line(trial.stop_reason)]))

    def state_of(self, trial: TrialRecord) -> str:
        """Return a trial's state in a word: complete, stopped, failed, and running or interrupted as the sweep is."""
        return format_state(trial.state, self.status == "running")

    @property
    def shown(self) -> Shown:
        """What shows its scores: by the name of what they are of, as the values that a person knows."""
        return Shown.of(self.settings.get("objective"))

    @property
    def resume_command(self) -> str:
        """What to type to go on with it."""
        return make_resume_command(Path(self.settings["output_dir"]).expanduser().absolute() / self.name, self.settings)

    @property
    def env_steps(self) -> int:
        """A trial's whole budget."""
        return int(self.settings["budget"]["env_steps"])

    @property
    def ranked(self) -> list[TrialRecord]:
        """Trials that may win, the best first."""
        return rank_records(self.trials)

    @property
    def front(self) -> list[TrialRecord]:
        """The whole trials that no other one beats in both objectives, the highest score first."""
        return find_front(self.trials, self.criteria.direction)

    @property
    def winner_trial(self) -> int | None:
        """The winner's number; None without a winner, and where the baseline won."""
        return self.record.winner.get("trial") if self.record.winner else None

    @property
    def space(self) -> Space:
        """The search space."""
        return build_search_space(self.settings["algo"], self.settings["space"])


def load_sweep_data(folder: Path, ledger_url: str | None = None) -> SweepData:
    """Read a sweep's folder and its ledger.

    Args:
        folder: The sweep's.
        ledger_url: As for `rltune.study.storage.open_ledger`.

    Raises:
        StudyError: It is no sweep's folder, or its ledger cannot be read.
    """
    with closing(open_ledger(folder, ledger_url)) as ledger:
        return read_sweep_data(folder, ledger)


def read_sweep_data(folder: Path, ledger: Ledger, status: str | None = None) -> SweepData:
    """Do as `load_sweep_data`, by a ledger that is open already: opening one takes longer than a page.

    Args:
        folder: The sweep's.
        ledger: The sweep's.
        status: How the sweep ends, in place of what the ledger says: it is marked there after everything is published.
    """
    settings: Any = OmegaConf.to_container(read_settings(folder))
    outcome, record = load_outcome(folder), ledger.sweep()
    return SweepData(
        name=folder.name,
        record=replace(record, status=status or record.status),
        settings=settings,
        trials=ledger.trials.records(),
        reports=ledger.trials.read_curves(),
        rungs=_read_rungs(settings),
        cost=outcome.cost if outcome else {},
        criteria=ledger.criteria,
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
