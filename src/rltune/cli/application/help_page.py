"""Write a command's ``--help`` from its YAML file in conf/: its keys, their comments and its config groups."""

from __future__ import annotations

import os
import re
import sys
import textwrap
from collections.abc import Iterator

from rltune.compose.groups import find_options, list_groups
from rltune.config.names import conf_dir
from rltune.formatting import spell_command

ROOM = 30  # The least width for a comment beside its key; a comment with less room is printed below the key.


def print_page(text: str) -> None:
    """Print a help page, of which a reader such as ``head`` may take the first lines alone."""
    try:
        print(text, flush=True)
    except BrokenPipeError:  # What is still buffered goes nowhere, or Python would complain of it at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def write_help(root: str, width: int) -> str:
    """Write a command's help page, wrapped to the width of a terminal.

    Hydra's own help has no comments and takes a second; it is still printed where overrides are typed too.

    Args:
        root: The command.
        width: The terminal's width in characters.
    """
    file = (conf_dir() / f"{root}.yaml").read_text().replace("python -m sweeps.", spell_command(""))
    above, keys = file.removeprefix("# ").split("\n\n", 1)
    head, is_composed, _ = above.partition("defaults:\n")
    parts = [f"Usage: {_wrap(head, width)}", "", _wrap(keys, width), ""]
    if groups := list(_list_options(root, width)):
        parts += [*_hang("Groups ", "(group=option; group.key=value changes a value inside):", width), *groups, ""]
    flags = "json=true prints one JSON document and nothing else"
    if is_composed:
        flags += " · --cfg job shows the composed settings · --hydra-help. "
        flags += "conf/ here, and --config-dir DIR, add your own groups."
    return "\n".join([*parts, *_hang("Flags: ", flags, width)])


def _list_options(root: str, width: int) -> Iterator[str]:
    """List a command's config groups with their default, their options and their comment."""
    groups = list_groups(root)
    column = max((len(f"  {group.name}={group.default}  ") for group in groups), default=0)
    for name, default, meaning in groups:
        options = ", ".join(find_options(name))
        yield from _hang(f"  {name}={default}".ljust(column), f"{options} ({meaning})" if meaning else options, width)


def _wrap(page: str, width: int) -> str:
    """Wrap the comments of a YAML file to a width, after joining consecutive comment lines to paragraphs."""
    joined = re.sub(r"^( *# .+)((?:\n *# .+)+)", _join, page, flags=re.MULTILINE)
    return "\n".join(part for line in joined.splitlines() for part in _wrap_line(line, width))


def _join(comment: re.Match[str]) -> str:
    return comment[1] + re.sub(r"\n *#", "", comment[2])


def _wrap_line(line: str, width: int) -> list[str]:
    before, mark, comment = line.partition("# ")
    if len(line) <= width or not mark:
        return [line]
    indent = len(before) if width - len(before) >= ROOM else len(before) - len(before.lstrip()) + 4
    return _hang(before + mark, comment, width, " " * indent + mark)


def _hang(first: str, text: str, width: int, later: str | None = None) -> list[str]:
    """Wrap a text to the terminal's width with a hanging indent.

    Args:
        first: The beginning of the first line.
        width: The terminal's width in characters.
        later: The beginning of the other lines; None is as many blanks as ``first`` has characters.
    """
    later = " " * len(first) if later is None else later
    return textwrap.wrap(
        text, width, initial_indent=first, subsequent_indent=later, break_long_words=False, break_on_hyphens=False
    )
