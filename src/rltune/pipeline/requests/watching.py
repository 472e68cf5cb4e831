"""Watch a sweep that another process runs, on whatever machine: the console's own table, drawn from the ledger."""

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

LOOK_S = 1.0  # between two looks into the ledger
DRAW_S = 0.25
WAITING = "WAITING"
EXIT_CODES = {"failed": EXIT_NONE, "interrupted": 128 + SIGINT}


def watch_sweep(
    ref: SweepRef,
    *,
    stream: TextIO | None = None,
) -> int:
    """Show a sweep as its own terminal does, until it has ended; an interrupt leaves it as it is.

    Args:
        ref: The sweep. One that has ended is shown by its closing lines.
        stream: Where to show it; None is standard output.

    Returns:
        The sweep's exit code: 0 with a winner, 1 where every trial failed, 130 where it was interrupted, 75 where its
        driver is gone without an end.

    Raises:
        StudyError: There is no such sweep.
    """
    with open_asked(ref) as asked:
        console = open_console(asked, stream)
        with contextlib.ExitStack() as stack:
            stack.callback(console.stop)
            try:
                status = _follow(asked, console)
            except KeyboardInterrupt:
                console.stop()
                again = spell_command(f"watch sweep={asked.name}")
                print(f"{asked.name} goes on; to watch it again: {again}", file=stream or sys.stdout, flush=True)
                raise
        if status == "running":
            said = f"{asked.name}: its driver is gone without an end; to go on: {asked.resume_command}"
            print(said, file=stream or sys.stdout, flush=True)
            return EXIT_TRY_AGAIN
        show_end(asked, console, status, stream)
        return EXIT_CODES.get(status, EXIT_WINNER)


def open_console(asked: AskedSweep, stream: TextIO | None = None) -> Console:
    """Open a console for a sweep that another process runs."""
    config, states = asked.config, list(asked.ledger.trials.read_states().values())
    return Console(
        name=asked.name,
        num_trials=max(config.budget.trials, len(states)),
        env_steps=config.budget.env_steps,
        total_env_steps=config.budget.total_env_steps,
        replicates=config.replicates,
        slots=max(1, states.count("RUNNING")),
        num_reports=config.budget.reports,
        shown=Shown.of(asdict(config.objective)),
        scored=asked.ledger.criteria.scored,
        stream=stream,
    )


def show_end(asked: AskedSweep, console: Console, status: str, stream: TextIO | None = None) -> None:
    """Show the closing lines of a sweep that has ended.

    Args:
        asked: The sweep.
        console: Where it was watched.
        status: How it ended.
        stream: Where to, without a folder that has them.
    """
    outcome = load_outcome(asked.folder) if asked.folder else None
    if outcome is None:  # they are where the sweep's folder is
        print(asked.describe_end(status), file=stream or sys.stdout, flush=True)
        return
    can_go_on = outcome.trials["interrupted"] or status == "interrupted"
    resume = asked.resume_command if can_go_on else None
    to_begin = max(0, asked.config.budget.trials - outcome.trials["total"])
    shown = Shown.of(asdict(asked.config.objective))
    records = asked.ledger.trials.records()
    console.summary(make_closing_page(outcome, records, None, resume, to_begin, asked.ledger.criteria, shown))


def _follow(asked: AskedSweep, console: Console) -> str:
    """Show what comes into the ledger until the sweep has ended, and return how; ``running`` without a driver."""
    if asked.status() != "running" and not asked.find_driver():
        return asked.status()
    trials, runs = asked.ledger.trials, asked.ledger.runs
    known, known_runs = trials.records(), runs.records()
    console.start([trial_view_of(record) for record in known])
    followed = [_Follower(trials, console, known)]
    config = asked.config
    if config.certify.seeds:
        count = _RunCount(runs, config.certify.seeds * (config.certify.top + 1))
        shown = CertificationConsole(console, count, Shown.of(asdict(config.objective)))
        followed.append(_Follower(runs, shown, known_runs))
    was_running = False
    while True:
        status = asked.status()  # before the last look at its trials
        was_running |= status == "running"
        for follower in followed:
            follower.look()
        if was_running and status != "running":
            return status
        if asked.lease.look() is False:
            return asked.status()
        looked = time.monotonic()
        while time.monotonic() - looked < LOOK_S:
            console.tick()
            time.sleep(DRAW_S)


class _Follower:
    """Shows a console what has changed in the ledger of the trials of one kind.

    Args:
        trials: Of the kind.
        console: Shows them.
        known: Those that it shows already, none of them as one that runs.
    """

    def __init__(self, trials: TrialTable, console: StageConsole, known: Iterable[TrialRecord]) -> None:
        self._trials, self._console = trials, console
        self._seen = {
            record.number: replace(record, stop_reason=WAITING) if record.state == "RUNNING" else record
            for record in known
        }

    def look(self) -> None:
        """Show the trials that run, and those that have begun or ended since the last look."""
        states = self._trials.read_states()
        seen = {number: record.state for number, record in self._seen.items()}
        changed = [number for number, state in states.items() if state == "RUNNING" or seen.get(number) != state]
        for record in self._trials.records(changed):
            self._show(record, self._seen.get(record.number))
            self._seen[record.number] = record

    def _show(self, record: TrialRecord, before: TrialRecord | None) -> None:
        then, now = _find_phase(before) if before else None, _find_phase(record)
        if now == WAITING and then in (None, WAITING):
            return
        if then != "RUNNING" and now != WAITING:
            self._console.show_start(record)
        marks = [mark for mark in record.reports if before is None or mark not in before.reports]
        for mark in marks:
            self._console.show_report(Report(record.number, mark, record.reports[mark]), record.breaks)
        if now == "RUNNING":
            self._console.show_steps(record.number, record.env_steps)
        else:
            self._console.show_end(record)


def _find_phase(record: TrialRecord) -> str:
    """Return a trial's state, WAITING for one that does not run: it was interrupted, or is to be tried again."""
    return WAITING if record.state == "RUNNING" and record.stop_reason else record.state


@dataclass(frozen=True)
class _RunCount:
    """Counts the certification's runs by what the ledger has of them; which will come, only its driver knows.

    Attributes:
        runs: The ledger's.
        num_runs: How many there are to be at most.
    """

    runs: TrialTable
    num_runs: int

    def describe_progress(self) -> str:
        """Say how many of them are done."""
        return f"{self._count_ended()} of up to {self.num_runs} runs"

    def count_runs_left(self) -> int:
        """Count those that are not."""
        return max(0, self.num_runs - self._count_ended())

    def _count_ended(self) -> int:
        return sum(state != "RUNNING" for state in self.runs.read_states().values())
