"""Watch a sweep that another process runs, on any machine, in the console's live table drawn from the ledger."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from signal import SIGINT
from typing import TextIO

from rltune.envs.objective import Shown
from rltune.errors import EXIT_TRY_AGAIN
from rltune.formatting import spell_command
from rltune.pipeline.requests.asked_sweep import AskedSweep, open_asked
from rltune.pipeline.tune.stages import CertificationConsole, StageConsole
from rltune.records import Report, TrialRecord
from rltune.reporting.closing_page import make_closing_page, trial_view_of
from rltune.reporting.console import Console
from rltune.study.outcome import EXIT_NONE, EXIT_WINNER, load_outcome
from rltune.study.sweep_ref import SweepRef
from rltune.study.trial_table import TrialTable

POLL_S = 1.0  # Between two reads of the ledger.
DRAW_S = 0.25  # Between two drawings of the live table.
WAITING = "WAITING"  # The phase of a trial that is neither running nor ended.
EXIT_CODES = {"failed": EXIT_NONE, "interrupted": 128 + SIGINT}


def watch_sweep(
    ref: SweepRef,
    *,
    stream: TextIO | None = None,
) -> int:
    """Show a sweep as its own terminal does until it has ended; an interrupt ends the watching and not the sweep.

    Args:
        ref: The sweep. A sweep that has ended is shown by its closing page.
        stream: Where to print; None is standard output.

    Returns:
        The sweep's exit code: 0 with a winner, 1 if every trial failed, 130 if it was interrupted, and 75 if its driver
        is gone without having ended it.

    Raises:
        StudyError: There is no such sweep.
    """
    with open_asked(ref) as sweep:
        console = open_console(sweep, stream)
        with contextlib.ExitStack() as stack:
            stack.callback(console.stop)
            try:
                status = _follow(sweep, console)
            except KeyboardInterrupt:
                console.stop()
                command = spell_command(f"watch sweep={sweep.name}")
                print(f"{sweep.name} goes on; to watch it again: {command}", file=stream or sys.stdout, flush=True)
                raise
        if status == "running":
            message = f"{sweep.name}: its driver is gone without an end; to go on: {sweep.resume_command}"
            print(message, file=stream or sys.stdout, flush=True)
            return EXIT_TRY_AGAIN
        show_end(sweep, console, status, stream)
        return EXIT_CODES.get(status, EXIT_WINNER)


def open_console(sweep: AskedSweep, stream: TextIO | None = None) -> Console:
    """Open the console of a sweep that another process runs."""
    config, states = sweep.config, list(sweep.ledger.trials.read_states().values())
    return Console(
        name=sweep.name,
        num_trials=max(config.budget.trials, len(states)),
        env_steps=config.budget.env_steps,
        total_env_steps=config.budget.total_env_steps,
        replicates=config.replicates,
        slots=max(1, states.count("RUNNING")),
        num_reports=config.budget.reports,
        shown=Shown.of(asdict(config.objective)),
        scored=sweep.ledger.criteria.scored,
        stream=stream,
    )


def show_end(sweep: AskedSweep, console: Console, status: str, stream: TextIO | None = None) -> None:
    """Show the closing page of a sweep that has ended.

    Args:
        sweep: The sweep.
        console: The console in which it was watched.
        status: The state in which it ended.
        stream: Where to print one line instead, if this machine does not have the sweep's folder; None is standard
            output.
    """
    outcome = load_outcome(sweep.folder) if sweep.folder else None
    if outcome is None:  # The closing page needs the summary, which lies in the sweep's folder.
        print(sweep.describe_end(status), file=stream or sys.stdout, flush=True)
        return
    is_unfinished = outcome.trials["interrupted"] or status == "interrupted"
    resume = sweep.resume_command if is_unfinished else None
    num_to_start = max(0, sweep.config.budget.trials - outcome.trials["total"])
    shown = Shown.of(asdict(sweep.config.objective))
    records = sweep.ledger.trials.records()
    console.summary(make_closing_page(outcome, records, None, resume, num_to_start, sweep.ledger.criteria, shown))


def _follow(sweep: AskedSweep, console: Console) -> str:
    """Show the ledger's changes until the sweep has ended.

    Returns:
        The state in which the sweep ended; ``running`` if it has no driver that could end it.
    """
    if sweep.status() != "running" and not sweep.find_driver():
        return sweep.status()
    trials, runs = sweep.ledger.trials, sweep.ledger.runs
    trial_records, run_records = trials.records(), runs.records()
    console.start([trial_view_of(record) for record in trial_records])
    followers = [_Follower(trials, console, trial_records)]
    config = sweep.config
    if config.certify.seeds:
        count = _RunCount(runs, config.certify.seeds * (config.certify.top + 1))
        certification_console = CertificationConsole(console, count, Shown.of(asdict(config.objective)))
        followers.append(_Follower(runs, certification_console, run_records))
    was_running = False
    while True:
        status = sweep.status()  # Read before the trials, so that their last changes are shown before the end.
        was_running |= status == "running"
        for follower in followers:
            follower.show_changes()
        if was_running and status != "running":
            return status
        if sweep.lease.look() is False:
            return sweep.status()
        read_s = time.monotonic()
        while time.monotonic() - read_s < POLL_S:
            console.tick()
            time.sleep(DRAW_S)


class _Follower:
    """Shows in a console what changes in one of the ledger's tables of trials.

    Args:
        trials: The table: the search's trials or the certification's runs.
        console: The console.
        displayed: The trials that the console displays already, none of them as running.
    """

    def __init__(self, trials: TrialTable, console: StageConsole, displayed: Iterable[TrialRecord]) -> None:
        self._trials, self._console = trials, console
        self._displayed = {
            record.number: replace(record, stop_reason=WAITING) if record.state == "RUNNING" else record
            for record in displayed
        }

    def show_changes(self) -> None:
        """Show the running trials, and the trials that have started or ended since the last call."""
        states = self._trials.read_states()
        displayed = {number: record.state for number, record in self._displayed.items()}
        changed = [number for number, state in states.items() if state == "RUNNING" or displayed.get(number) != state]
        for record in self._trials.records(changed):
            self._show(record, self._displayed.get(record.number))
            self._displayed[record.number] = record

    def _show(self, record: TrialRecord, previous: TrialRecord | None) -> None:
        previous_phase, phase = _determine_phase(previous) if previous else None, _determine_phase(record)
        if phase == WAITING and previous_phase in (None, WAITING):
            return
        if previous_phase != "RUNNING" and phase != WAITING:
            self._console.show_start(record)
        marks = [mark for mark in record.reports if previous is None or mark not in previous.reports]
        for mark in marks:
            self._console.show_report(Report(record.number, mark, record.reports[mark]), record.breaks)
        if phase == "RUNNING":
            self._console.show_steps(record.number, record.env_steps)
        else:
            self._console.show_end(record)


def _determine_phase(record: TrialRecord) -> str:
    """Return a trial's state, or WAITING for an unfinished trial that was interrupted or is to be retried."""
    return WAITING if record.state == "RUNNING" and record.stop_reason else record.state


@dataclass(frozen=True)
class _RunCount:
    """Counts the certification's runs in the ledger; only the sweep's driver knows which runs are still to come.

    Attributes:
        runs: The ledger's table of runs.
        num_runs: The largest number of runs that the certification may need.
    """

    runs: TrialTable
    num_runs: int

    def describe_progress(self) -> str:
        """Describe how many runs have ended."""
        return f"{self._count_ended()} of up to {self.num_runs} runs"

    def count_runs_left(self) -> int:
        """Count the runs that may still have to end."""
        return max(0, self.num_runs - self._count_ended())

    def _count_ended(self) -> int:
        return sum(state != "RUNNING" for state in self.runs.read_states().values())
