"""Watch a sweep that another process runs, on any machine, in the console's live table drawn from the ledger."""

from __future__ import annotations

import sys
import time
from signal import SIGINT
from typing import TextIO

from rltune.driver.requests.asked_sweep import AskedSweep, open_asked
from rltune.errors import EXIT_TRY_AGAIN
from rltune.formatting import spell_command
from rltune.ledger.outcome import EXIT_NONE, EXIT_WINNER, load_outcome
from rltune.ledger.sweep_ref import SweepRef
from rltune.views.closing_page import make_closing_page
from rltune.views.console import Console
from rltune.views.sweep_view import SweepView

POLL_S = 1.0  # Between two reads of the ledger.
EXIT_CODES = {"failed": EXIT_NONE, "interrupted": 128 + SIGINT}


def watch_sweep(ref: SweepRef, *, stream: TextIO | None = None) -> int:
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
        console = Console(stream)
        try:
            status = _follow(sweep, console)
        except KeyboardInterrupt:
            console.close()
            command = spell_command(f"watch sweep={sweep.name}")
            print(f"{sweep.name} goes on; to watch it again: {command}", file=stream or sys.stdout, flush=True)
            raise
        finally:
            console.close()
        if status == "running":
            message = f"{sweep.name}: its driver is gone without an end; to go on: {sweep.resume_command}"
            print(message, file=stream or sys.stdout, flush=True)
            return EXIT_TRY_AGAIN
        show_end(sweep, console, status, stream)
        return EXIT_CODES.get(status, EXIT_WINNER)


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
    console.close(make_closing_page(SweepView.read(sweep.ledger), outcome, None, resume))


def _follow(sweep: AskedSweep, console: Console) -> str:
    """Draw the sweep until it has ended.

    Returns:
        The state in which the sweep ended; ``running`` if it has no driver that could end it.
    """
    view = SweepView.read(sweep.ledger)
    if view.status != "running" and not sweep.find_driver():
        return view.status
    was_running = False
    while True:
        console.draw(view)
        was_running |= view.status == "running"
        if was_running and view.status != "running":
            return view.status
        if sweep.lease.look() is False:
            return sweep.status()
        time.sleep(POLL_S)
        view = SweepView.read(sweep.ledger, view)
