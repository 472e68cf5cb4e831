"""Make the page of settings from the files in conf/ and their comments, while mkdocs builds the site.

A hook of mkdocs (mkdocs.yml names it). No such page is kept, so that none can be out of date.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rltune.cli.application.program import load_commands
from rltune.compose.explaining import describe_allowed
from rltune.config.schema import RunConfig

CONF = Path(__file__).resolve().parents[1] / "conf"
# Each group of choices, and what it decides; those in LISTED have too many alike for a table of keys each.
GROUPS = {
    "searcher": "Which values are tried next.",
    "scheduler": "Which trials are stopped early.",
    "certify": "How the winner is tested.",
    "resources": "What a trial gets of the machine.",
    "tracking": "Where MLflow is.",
    "cluster": "Where trials run.",
    "experiment": "Whole recipes.",
    "env": "What is learned in.",
    "tuned": "Known-good settings of an algorithm and an environment, tried first.",
    "portfolio": "Configurations that do well on other environments, tried after the tuned settings.",
    "space": "What is searched; it follows the algorithm.",
    "algo": "What learns.",
}
LISTED = ("env", "tuned", "portfolio")
ALIKE = ("certify", "resources", "tracking", "cluster")  # in all of a group's files a key means the same
COMMANDS = ("resume", "evaluate", "list", "show", "report", "compare", "export", "record", "probe")
COMMANDS += ("watch", "stop", "retry", "enqueue", "serve", "submit", "logs")
INTRODUCTION = """\
# Settings

Every key below can be typed behind the command: `rltune run budget.trials=8`. A group is chosen by the
name of a file: `scheduler=median` takes `conf/scheduler/median.yaml`. This page is made from the files in `conf/` and
the bounds in `src/rltune/config/schema.py`.
"""


def on_files(files: Any, config: Any) -> Any:
    """Add the page to the site; mkdocs calls it."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "settings.md", content=make_page(CONF)))
    return files


def make_page(conf: Path) -> str:
    """Return the page in Markdown."""
    of_run = read_keys(conf / "run.yaml")
    of_choices = {
        path: read_keys(path, "" if "@package _global_" in path.read_text() else f"{group}.")
        for group in GROUPS
        if group not in LISTED
        for path in sorted((conf / group).glob("*.yaml"))
    }
    alike = [settings for path, settings in of_choices.items() if path.parent.name in ALIKE]
    said = [one for settings in (of_run, *alike) for one in settings if one.meaning]
    meanings = {one.key: one.meaning for one in reversed(said)}  # of a key that stands elsewhere without a comment
    parts = [INTRODUCTION, "## A sweep\n", "`rltune run`\n", make_table(of_run, meanings, RunConfig)]
    for group, decides in GROUPS.items():
        parts += [f"## {group}\n", f"{decides}\n"]
        if group in LISTED:
            parts.append(", ".join(f"`{path.stem}`" for path in sorted((conf / group).glob("*.yaml"))) + "\n")
        for path, settings in of_choices.items():
            if path.parent.name == group:
                parts += [f"### {group}={path.stem}\n", escape(read_heading(path)) + "\n"]
                parts.append(make_table(settings, meanings, RunConfig))
    parts.append("## The other commands\n")
    for command in COMMANDS:
        parts += [f"### rltune {command}\n", f"`{read_heading(conf / f'{command}.yaml')}`\n"]
        schema = load_commands()[command].schema
        parts.append(make_table(read_keys(conf / f"{command}.yaml"), meanings, schema))
    return "\n".join(parts)


@dataclass(frozen=True)
class Setting:
    """One key of a YAML file in ``conf/``: its dotted name, its value as text, and its comment."""

    key: str
    value: str
    meaning: str


def read_keys(path: Path, prefix: str = "") -> list[Setting]:
    """Return the keys of a YAML file in their order, without Hydra's ``defaults`` list.

    Args:
        prefix: The group of its keys, with a dot at its end; empty for none.
    """
    text = path.read_text()
    # PyYAML's C loader is ten times as fast as its Python loader.
    root = yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return list(_walk(root, prefix, text)) if isinstance(root, yaml.MappingNode) else []


def _walk(node: yaml.MappingNode, prefix: str, text: str) -> Iterator[Setting]:
    for key, value in node.value:
        if key.value == "defaults" and not prefix:
            continue
        if isinstance(value, yaml.MappingNode) and not value.flow_style:
            yield from _walk(value, f"{prefix}{key.value}.", text)
        else:
            written = text[value.start_mark.index : value.end_mark.index]
            if "\n" in written:
                written = " ".join(line.split(" #")[0].strip() for line in written.splitlines()).strip()
            yield Setting(f"{prefix}{key.value}", written, _read_meaning(key, value, text.splitlines()))


def _read_meaning(key: yaml.Node, value: yaml.Node, lines: list[str]) -> str:
    """Return the comment behind a key's value, and the comment lines above the key unless they head the file."""
    line, column = key.start_mark.line, key.start_mark.column
    first = line
    while first and re.match(rf" {{{column}}}#", lines[first - 1]):
        first -= 1
    above = [text.strip(" #") for text in lines[first:line]] if first else []
    behind = re.findall(r"#\s*(.*)$", lines[line][value.end_mark.column :]) if value.end_mark.line == line else []
    return " ".join([*behind, *above])


def make_table(settings: list[Setting], meanings: dict[str, str], schema: type) -> str:
    """Return a table of keys.

    Args:
        settings: The keys of a file.
        meanings: The meanings of keys that have no comment in this file.
        schema: The dataclass that declares which values are allowed.
    """
    if not settings:
        return ""
    rows = [
        f"| `{setting.key}` | `{setting.value}` | {describe_allowed(schema, setting.key)} "
        f"| {escape(setting.meaning or meanings.get(setting.key, ''))} |"
        for setting in settings
    ]
    return "\n".join(["| key | default | allowed | meaning |", "|---|---|---|---|", *rows, ""])


def read_heading(path: Path) -> str:
    """Return the comment that a file begins with, without Hydra's own line."""
    comment = re.match(r"((?:#.*\n)*)", path.read_text())
    lines = [line.lstrip("# ") for line in (comment[1] if comment else "").splitlines()]
    heading = " ".join(line for line in lines if not line.startswith("@package"))
    return heading.replace("python -m sweeps.", "rltune ")


def escape(text: str) -> str:
    """Return text in which Markdown finds neither tags nor columns."""
    return text.replace("<", "&lt;").replace("|", "&#124;").replace("*", "\\*")
