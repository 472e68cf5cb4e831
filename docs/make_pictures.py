"""Draw docs/live-table.svg: the live table of a sweep that has ended, as it stood while the search was at work.

    python docs/make_live_table.py outputs/<sweep>

The sweep's ledger is copied and filled again with what had happened by each moment, up to a share of the search's time.
The picture is drawn from views of this copy, as in a terminal. Nothing is invented, and nothing is trained.
"""

from __future__ import annotations

import argparse
import io
import re
import tempfile
from pathlib import Path
from typing import Any

from rich.console import Console as RichConsole
from rich.text import Text

import rltune
from rltune.config.settings_file import format_settings, read_settings
from rltune.ledger.ledger import Ledger
from rltune.records import TRIALS, Report, TrialRecord
from rltune.views.progress import Line, describe_changes, render_live_table
from rltune.views.sweep_view import DriverState, SweepView

WIDTH, HEIGHT, LINES_BEFORE = 104, 24, 5
PICTURE = Path(__file__).with_name("live-table.svg")


def draw(folder: Path, share: float = 0.75) -> str:
    """Return the picture as SVG.

    Args:
        folder: A sweep's.
        share: The share of the search's time after which the picture is taken.
    """
    ledger = rltune.open_ledger(folder)
    table = ledger.table(TRIALS)
    records = table.records()
    events = _list_events(records, [report for record in records for report in table.read_reports(record.number)])
    ledger.close()
    began, ended = events[0][0], max(record.ended_s or 0.0 for record in records)
    slots = max(1, sum(1 for record in records if (record.began_s or 0.0) - began < 1.0))
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as copy_folder:
        copy = Ledger(f"sqlite:///{copy_folder}/ledger.db", folder.name, create=True)
        copy.change_sweep(status="running", config=format_settings(read_settings(folder)))
        before = view = SweepView.read(copy, None, DriverState(slots=slots), now_s=began)
        for time_s, event in events:
            if time_s > began + share * (ended - began):
                break
            _apply(copy, event, time_s)
            before, view = view, SweepView.read(copy, view, DriverState(slots=slots), now_s=time_s)
            lines += [line for line in describe_changes(before, view) if line.is_printed]
        copy.close()
    paper = RichConsole(
        record=True, width=WIDTH, file=io.StringIO(), highlight=False, force_terminal=True, color_system="truecolor"
    )
    for line in lines[-LINES_BEFORE:]:
        paper.print(Text(line.text, line.style), no_wrap=True, overflow="ellipsis")
    paper.print(render_live_table(view, HEIGHT, WIDTH))
    picture = paper.export_svg(title=f"sweep {folder.name}", unique_id="rltune")
    return re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)  # rich has it load fonts from a server


def _list_events(records: list[TrialRecord], reports: list[Report]) -> list[tuple[float, Any]]:
    """List what has happened, in order; a trial stands for its beginning, and later for its end."""
    begun = [(record.began_s or 0.0, record) for record in records]
    ended = [(record.ended_s, record) for record in records if record.ended_s]
    return sorted([*begun, *((report.time_s, report) for report in reports), *ended], key=lambda event: event[0])


def _apply(copy: Ledger, event: Report | TrialRecord, time_s: float) -> None:
    """Write an event into the copy."""
    if isinstance(event, Report):
        copy.trials.add_report(event)
    elif event.ended_s == time_s:
        copy.trials.end(event.number, event.state, event.stop_reason or "", diverged=event.diverged)
    else:
        copy.trials.start(copy.trials.add(event.params, event.seeds).number)


def main() -> None:
    """Write the picture beside this file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of a sweep that has ended")
    parser.add_argument("--out", type=Path, default=PICTURE)
    arguments = parser.parse_args()
    arguments.out.write_text(draw(arguments.folder))


if __name__ == "__main__":
    main()
