"""Print sections (`rltune.views.page.Section`) and text tables in a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from dataclasses import replace
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from rltune.errors import clean_text
from rltune.formatting import TextTable
from rltune.views.page import Section

PADDING = 2  # Spaces between columns.
SHORT = 10  # Words up to this length are not broken over two lines; of longer ones, only numbers are not.
NUMBER = re.compile(r"(?:\S+=)?([\[({+-]*\d\S*)")
"""A word that is a number with the signs around it, alone or after its name, as in ``lr=3e-4``."""


def open_console(stream: TextIO | None) -> Console:
    """Open a rich console; without a terminal it is wide, so that lines are not wrapped in pipes and files."""
    is_terminal = (stream or sys.stdout).isatty()
    return Console(file=stream, highlight=False, markup=False, emoji=False, width=None if is_terminal else 200)


def print_sections(out: Console, sections: Iterable[Section]) -> None:
    """Print the sections of a sweep's description one below the other."""
    for index, section in enumerate(sections):
        title, *lines = map(clean_text, section.list_lines())
        if index:
            out.print()
        out.print(Text(title, "bold"))
        if section.table:
            out.print(make_rich_table(section.table, out.width))
        for number, line in enumerate(lines):
            # Users copy paths and commands from facts, so these are not wrapped.
            is_fact = number < len(section.facts)
            out.print(Text(line), soft_wrap=is_fact)


def make_rich_table(table: TextTable, width: int) -> RenderableType:
    """Convert a text table to rich's for a width, so that no number is broken over two lines.

    The widest columns are narrowed first, each not below its numbers and short words. If these do not fit side by side,
    then the cells of a row are below each other.
    """
    table = replace(table, rows=tuple(tuple(map(clean_text, row)) for row in table.rows))
    lines = (table.headings, *table.rows)
    columns = [[str(cell) for cell in column] for column in zip(*lines, strict=True)]
    least = [max(_measure_words(cell) for cell in column) for column in columns]
    most = [max(map(len, column)) for column in columns]
    room = width - PADDING * len(columns)
    if sum(least) > room:
        rows = (zip(table.headings, row, strict=True) for row in table.rows)
        texts = ["\n".join(f"{heading}: {cell}" for heading, cell in row if cell) for row in rows]
        return Group(*(Text(f"{text}\n", _style(index == table.best)) for index, text in enumerate(texts)))
    widths = most
    for cap in range(max(most), 0, -1):
        widths = [max(low, min(high, cap)) for low, high in zip(least, most, strict=True)]
        if sum(widths) <= room:
            break
    rich = Table(box=None, padding=(0, PADDING, 0, 0), header_style="dim")
    for heading, column_width in zip(table.headings, widths, strict=True):
        rich.add_column(heading, overflow="fold", width=column_width)
    for index, row in enumerate(table.rows):
        cells = (_break_values(cell, column_width) for cell, column_width in zip(row, widths, strict=True))
        rich.add_row(*map(Text, cells), style=_style(index == table.best))
    return rich


def _measure_words(cell: str) -> int:
    """Return the width that a cell needs at least: that of its longest number or short word."""
    words = [(word, NUMBER.fullmatch(word)) for word in cell.split()]
    return max(
        (len(number[1]) if number else len(word) for word, number in words if number or len(word) <= SHORT), default=0
    )


def _break_values(cell: str, width: int) -> str:
    """Allow a line break after the ``=`` of words that are longer than the width, so that their numbers stay whole."""
    return " ".join(word.replace("=", "= ", 1) if len(word) > width else word for word in cell.split(" "))


def _style(is_best: bool) -> str:
    return "bold green" if is_best else ""
