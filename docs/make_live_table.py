"""Draw docs/live-table.svg: the live table of a sweep that has ended, as it stood while the search was at work.

    python docs/make_live_table.py outputs/<sweep>

What happened is read from the sweep's ledger and told to the terminal's own console again, in its order, up to a share
of the search's time. Nothing is invented, and nothing is trained.
"""

from __future__ import annotations

import argparse
import io
import os
import re
from pathlib import Path
from typing import Any
from unittest import mock

from rich.console import Console as RichConsole
from rich.text import Text

import rltune
from rltune.config.settings_file import read_settings
from rltune.records import TRIALS, Report, TrialRecord
from rltune.reporting.console import Console

WIDTH, LINES_BEFORE = 104, 5
PICTURE = Path(__file__).with_name("live-table.svg")


class _Terminal(io.StringIO):
    """A stream that says that somebody watches, so that the console draws its table."""

    def isatty(self) -> bool:
        """Say so."""
        return True


class _Replay(Console):
    """The console, at the time of the event that it is told of; it keeps the lines that it prints above the table."""

    def __init__(self, began: float, **facts: Any) -> None:
        self.now, self.lines = began, list[Text]()
        self.clock = lambda: self.now
        super().__init__(**facts)

    def _print_line(self, text: str, style: str = "", cut: bool = False, log: bool = True) -> None:
        self.lines.append(Text(text, style))


def draw(folder: Path, share: float = 0.75) -> str:
    """Return the picture as SVG.

    Args:
        folder: A sweep's.
        share: Of the search's time; then the picture is taken.
    """
    with mock.patch.dict(os.environ, {"COLUMNS": str(WIDTH), "LINES": "24"}):  # of the terminal that is drawn
        return _draw(folder, share)


def _draw(folder: Path, share: float) -> str:
    ledger = rltune.open_ledger(folder)
    table, settings = ledger.table(TRIALS), read_settings(folder)
    records = table.records()
    began = min(record.began_s or 0.0 for record in records)
    ended = max(record.ended_s or 0.0 for record in records)
    events = sorted(_list_events(records, table.read_curves()), key=lambda event: event[0])
    slots = max(1, sum(1 for record in records if (record.began_s or 0.0) - began < 1.0))
    console = _Replay(
        began,
        name=folder.name,
        num_trials=settings.budget.trials,
        env_steps=settings.budget.env_steps,
        slots=slots,
        stream=_Terminal(),
    )
    console.start()
    for time_s, event in events:
        if time_s > began + share * (ended - began):
            break
        console.now = time_s
        if isinstance(event, Report):
            console.show_report(event)
        elif event.ended_s == time_s:
            console.show_end(event)
        else:
            console.show_start(event)
    screen = console._build_screen()
    console.stop()
    ledger.close()
    paper = RichConsole(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True, color_system="truecolor"
    )
    for line in console.lines[-LINES_BEFORE:]:
        paper.print(line, no_wrap=True, overflow="ellipsis")
    paper.print(screen)
    picture = paper.export_svg(title=f"sweep {folder.name}", unique_id="rltune")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # rich has it load fonts from a server


def _list_events(records: list[TrialRecord], reports: list[Report]) -> list[tuple[float, Report | TrialRecord]]:
    begun = [(record.began_s or 0.0, record) for record in records]
    ended = [(record.ended_s, record) for record in records if record.ended_s]
    return [*begun, *((report.time_s, report) for report in reports), *ended]


def main() -> None:
    """Write the picture beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a sweep that has ended")
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    arguments.out.write_text(draw(arguments.folder))


if __name__ == "__main__":
    main()
