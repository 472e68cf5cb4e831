"""Read the keys of a file in ``conf/``: the value of each as it is written, and its comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Setting:
    """One key of a file.

    Attributes:
        key: Its dotted name.
        value: Its value as it is written.
        meaning: Its comment; empty without one.
    """

    key: str
    value: str
    meaning: str


def read_keys(path: Path, prefix: str = "") -> list[Setting]:
    """Return the keys of a file in their order, without its list of defaults.

    Args:
        path: The file.
        prefix: The group of its keys with a dot at its end; empty for a file of whole settings.
    """
    text = path.read_text()
    root = yaml.compose(text)
    return list(_walk(root, prefix, text.splitlines())) if isinstance(root, yaml.MappingNode) else []


def _walk(node: yaml.MappingNode, prefix: str, lines: list[str]) -> Iterator[Setting]:
    for key, value in node.value:
        if key.value == "defaults" and not prefix:
            continue
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _walk(value, f"{prefix}{key.value}.", lines)
        else:
            yield Setting(f"{prefix}{key.value}", _read_value(value, lines), _read_meaning(key, value, lines))


def _read_value(node: yaml.Node, lines: list[str]) -> str:
    """Return a value as it is written, joined to one line."""
    first, last = node.start_mark, node.end_mark
    if first.line == last.line:
        return lines[first.line][first.column : last.column]
    # A block ends where the next line begins, so that nothing of its last line belongs to it.
    end = [lines[last.line][: last.column]] if last.column else []
    value_lines = [lines[first.line][first.column :], *lines[first.line + 1 : last.line], *end]
    return " ".join(line.split(" #")[0].strip() for line in value_lines)


def _read_meaning(key: yaml.Node, value: yaml.Node, lines: list[str]) -> str:
    """Return the comment behind the value and the one directly above the key, but not the file's heading."""
    line, column = key.start_mark.line, key.start_mark.column
    first = line
    while first and re.match(rf" {{{column}}}#", lines[first - 1]):
        first -= 1
    above = [text.strip(" #") for text in lines[first:line]] if first else []
    behind = re.findall(r"#\s*(.*)$", lines[line][value.end_mark.column :]) if value.end_mark.line == line else []
    return " ".join([*behind, *above])
