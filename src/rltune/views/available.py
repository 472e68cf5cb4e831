"""List the environments, algorithms and search spaces that a user can choose.

Only reads their YAML files, so that the answer comes at once and lists a user's own files like ours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import yaml
from rich.console import Console
from rich.table import Table

from rltune.search.conditions import format_condition, format_yaml_value, read_allowed, split_condition

KINDS = ("envs", "algos", "spaces")
# Users copy names from these columns, so they are never wrapped.
TYPED = ("env", "id", "algo", "space", "parameter")


def list_available(kind: str, folders: Sequence[Path]) -> tuple[Sequence[str], Sequence[tuple[str, ...]]]:
    """List the environments, algorithms or search spaces as a table.

    Args:
        kind: ``envs``, ``algos`` or ``spaces``.
        folders: Where the groups' folders are, in Hydra's order: ours before a user's own.

    Returns:
        The headings and the rows.
    """
    headings, rows = {"envs": _list_envs, "algos": _list_algos, "spaces": _list_spaces}[kind](folders)
    return headings, [tuple(row) for row in rows]


def show_available(
    kind: str, headings: Sequence[str], rows: Sequence[tuple[str, ...]], stream: TextIO | None = None
) -> None:
    """Print a table that `list_available` has made.

    Args:
        kind: ``envs``, ``algos`` or ``spaces``.
        headings: The columns' headings.
        rows: The rows.
        stream: Where to; None is standard output.
    """
    watched = (stream or sys.stdout).isatty()
    out = Console(file=stream, highlight=False, markup=False, emoji=False, width=None if watched else 150)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        table.add_column(heading, overflow="fold", no_wrap=heading in TYPED)
    for row in rows:
        table.add_row(*row)
    out.print(table)
    if kind == "envs":
        out.print("What needs an extra: pip install 'rltune[<extra>]'", soft_wrap=True)


def _find_files(folders: Sequence[Path], group: str) -> dict[str, Path]:
    """Find the file of each config option; as in Hydra, the first folder that has it wins."""
    files: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((folder / group).glob("*.yaml")):
            files.setdefault(path.stem, path)
    return dict(sorted(files.items()))


def _read(path: Path) -> dict[str, Any]:
    return dict(yaml.safe_load(path.read_text()) or {})


def _list_tuned_pairs(folders: Sequence[Path]) -> list[tuple[str, str]]:
    pairs = (name.partition("_") for name in _find_files(folders, "tuned"))
    return [(algo, env) for algo, _, env in pairs]


Rows = tuple[tuple[str, ...], list[tuple[str, ...]]]


def _list_envs(folders: Sequence[Path]) -> Rows:
    tuned = _list_tuned_pairs(folders)
    rows: list[tuple[str, ...]] = []
    for name, path in _find_files(folders, "env").items():
        extra = re.search(r"^# pip install .*\[(\w+)\]", path.read_text(), re.MULTILINE)
        env_id = str(_read(path).get("id"))
        algos = ", ".join(algo for algo, env in tuned if env == name)
        rows.append((name, "env.id=..." if env_id == "???" else env_id, algos, extra[1] if extra else ""))
    return ("env", "id", "tuned settings for", "extra"), rows


def _list_algos(folders: Sequence[Path]) -> Rows:
    tuned = _list_tuned_pairs(folders)
    rows: list[tuple[str, ...]] = []
    for name, path in _find_files(folders, "algo").items():
        about = re.split(r"(?<!al)\. |: ", path.read_text().splitlines()[0].lstrip("# "))[0].rstrip(".")
        envs = ", ".join(env for algo, env in tuned if algo == name)
        rows.append((name, about, envs))
    return ("algo", "what it is", "tuned settings for"), rows


def _list_spaces(folders: Sequence[Path]) -> Rows:
    rows: list[tuple[str, ...]] = []
    for name, path in _find_files(folders, "space").items():
        for number, (parameter, form) in enumerate(_read(path).items()):
            when, plain = split_condition(str(parameter), form)
            condition = format_condition({parent: (read_allowed(value),) for parent, value in when.items()})
            rows.append(
                (name if number == 0 else "", str(parameter), f"{format_yaml_value(plain)} {condition}".rstrip())
            )
    return ("space", "parameter", "range"), rows
