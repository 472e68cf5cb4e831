"""Tell the search's trials and the certification's runs apart, for whoever proposes and records both.

Certification runs inside the search's Tune run, where the processes are warm: a second one would start its own. Runs in
the driver.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from rltune.envs.objective import AS_RETURN, Shown
from rltune.formatting import first_line, format_objective
from rltune.records import BASELINE, TRIALS, Report, TrialRecord
from rltune.reporting.console import Console
from rltune.study.trial_table import TrialTable

if TYPE_CHECKING:
    from rltune.pipeline.tune.proposals import Proposer


class StageConsole(Protocol):
    """Show a person the trials of one kind."""

    def show_start(self, record: TrialRecord) -> None:
        """Show that a trial begins or goes on."""

    def show_report(self, report: Report, broken: str = "") -> None:
        """Show a trial's newest report, and which constraints it breaks by it."""

    def show_steps(self, number: int, env_steps: int) -> None:
        """Show how far a trial is between two reports, in environment steps of each seed."""

    def show_end(self, record: TrialRecord, where: str = "") -> None:
        """Show how a trial ended, or that it was interrupted.

        Args:
            record: The trial as the ledger has it.
            where: What is added to the reason of a failure.
        """


@dataclass(frozen=True)
class Stage:
    """One kind of trials.

    Attributes:
        trials: Theirs in the ledger.
        proposer: Says what is run next.
        console: Shows them.
    """

    trials: TrialTable
    proposer: Proposer
    console: StageConsole

    @property
    def kind(self) -> str:
        """`rltune.records.TRIALS` or CERTIFY; also the folder of their own folders."""
        return self.trials.kind

    @property
    def is_search(self) -> bool:
        """Whether these trials are the search's: they spend the sweep's budgets, and the rule stops them."""
        return self.kind == TRIALS


class RunCount(Protocol):
    """Count the certification's runs, as `rltune.certification.retraining.Retraining` does."""

    def describe_progress(self) -> str:
        """Say how many of them are done."""

    def count_runs_left(self) -> int:
        """Count those that are not."""


class CertificationConsole:
    """Shows the certification as a count, and a line a run.

    Args:
        console: The sweep's.
        retraining: Counts the runs.
        shown: Shows scores.
    """

    def __init__(self, console: Console, retraining: RunCount, shown: Shown = AS_RETURN) -> None:
        self._console, self._retraining, self._shown = console, retraining, shown
        self._show_progress()

    def show_start(self, record: TrialRecord) -> None:
        """Show how far certification is."""
        self._console.begin_run(record.number, record.env_steps)
        self._show_progress()

    def show_report(self, report: Report, broken: str = "") -> None:
        """Count a run's steps: its curve is not shown."""
        self._console.show_run_steps(report.number, report.env_steps)

    def show_steps(self, number: int, env_steps: int) -> None:
        """Count a run's steps."""
        self._console.show_run_steps(number, env_steps)

    def show_end(self, record: TrialRecord, where: str = "") -> None:
        """Show one line a run."""
        self._show_progress()
        if record.state == "RUNNING":
            return
        self._console.end_run(record.number)
        owner = BASELINE if record.of_trial is None else f"trial {record.of_trial}"
        what = f"seed {(record.seed_index or 0) + 1} of {owner}"
        if record.state == "COMPLETE":
            done = self._retraining.describe_progress()
            self._console.note(f"certified {what}: {format_objective(self._shown(record.score))} ({done})")
        else:
            reason = first_line(f"{record.stop_reason}{where}")
            self._console.note(f"certifying {what} failed, which counts against it: {reason}")

    def _show_progress(self) -> None:
        self._console.show_certification(self._retraining.describe_progress(), self._retraining.count_runs_left())
