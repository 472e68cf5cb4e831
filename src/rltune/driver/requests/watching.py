"""Watch a sweep from another process or machine: the driver's live table, drawn from the ledger."""

from __future__ import annotations

from signal import SIGINT
from typing import TextIO

from rltune.driver.requests.handle import SweepHandle, open_handle
from rltune.errors import EXIT_REQUEST
from rltune.formatting import spell_command
from rltune.ledger.outcome import EXIT_NONE, EXIT_WINNER, load_outcome
from rltune.ledger.sweep_ref import SweepRef
from rltune.views.console import Console
from rltune.views.next_steps import describe_end
from rltune.views.sweep_view import SweepView

# Exit codes of `watch` by the final state of a sweep, or of its submission to a service.
EXIT_CODES = {"complete": EXIT_WINNER, "failed": EXIT_NONE, "refused": EXIT_REQUEST, "interrupted": 128 + SIGINT}


def watch_sweep(ref: SweepRef, *, stream: TextIO | None = None) -> int:
    """Show a sweep's live table until the sweep ends; Ctrl-C stops the watching but not the sweep.

    Args:
        ref: The sweep. A sweep that has ended is only described.
        stream: Where to print; None is standard output.

    Returns:
        The sweep's exit code: 0 with a winner, 1 without one, and 130 if it was interrupted or its driver died.

    Raises:
        StudyError: There is no such sweep.
    """
    with open_handle(ref) as sweep:
        console = Console(stream)
        try:
            status = _follow(sweep, console)
        except KeyboardInterrupt:
            console.close()
            command = spell_command(f"watch sweep={sweep.name}")
            print(f"{sweep.name} goes on; to watch it again: {command}", file=stream, flush=True)
            raise
        finally:
            console.close()
        outcome = load_outcome(sweep.folder) if status != "running" and sweep.folder else None
        if outcome and sweep.folder:
            is_unfinished = outcome.trials["interrupted"] or status == "interrupted"
            resume = sweep.resume_command if is_unfinished else None
            view = SweepView.read(sweep.ledger).in_folder(sweep.folder)
            console.close(describe_end(view, outcome, resume=resume))
        else:
            # The full closing description needs summary.json in the sweep's folder, so one line has to do.
            print(sweep.describe_end(), file=stream, flush=True)
        state = "interrupted" if status == "running" else status
        return EXIT_CODES.get(state, outcome.exit_code if outcome else EXIT_WINNER)


def _follow(sweep: SweepHandle, console: Console) -> str:
    """Draw the live table until the sweep ends or its driver is gone.

    Returns:
        The state in the ledger; ``running`` if the sweep has no driver that could end it.
    """
    view = SweepView.read(sweep.ledger)
    if view.record.status != "running" and not sweep.find_driver():
        return sweep.read_status()
    was_running = False

    def draw_until_ended() -> bool:
        nonlocal view, was_running
        view = SweepView.read(sweep.ledger, view)
        console.draw(view)
        was_running |= view.record.status == "running"
        # Before a driver starts, the ledger still has the status of the sweep's previous end.
        return was_running and view.record.status != "running"

    has_ended = sweep.wait_until(draw_until_ended)
    return str(view.record.status) if has_ended else sweep.read_status()
