"""Print sections (`rltune.views.page.Section`) and text tables in a terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console
from rich.table import Table
from rich.text import Text

from rltune.config.uris import redact
from rltune.formatting import TextTable
from rltune.views.page import Section


def open_console(stream: TextIO | None) -> Console:
    """Open a rich console; without a terminal it is wide, so that lines are not wrapped in pipes and files."""
    is_terminal = (stream or sys.stdout).isatty()
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=None if is_terminal else 200)


def print_sections(out: Console, sections: Iterable[Section]) -> None:
    """Print the sections of a sweep's description one below the other."""
    for index, section in enumerate(sections):
        title, *lines = map(redact, section.list_lines())
        if index:
            out.print()
        out.print(Text(title, "bold"))
        if section.table:
            out.print(make_rich_table(section.table))
        for number, line in enumerate(lines):
            # Users copy paths and commands from facts, so these are not wrapped.
            is_fact = number < len(section.facts)
            out.print(Text(line), soft_wrap=is_fact)


def make_rich_table(table: TextTable) -> Table:
    """Convert a text table to a table of rich."""
    rich = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for heading in table.headings:
        rich.add_column(heading, overflow="fold")
    for index, row in enumerate(table.rows):
        rich.add_row(*map(Text, row), style="bold green" if index == table.best else "")
    return rich
