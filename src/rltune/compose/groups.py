"""Find the files of the config groups: rltune's in ``conf/``, then the user's own."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from rltune.config.names import conf_dir

# Matches a group in Hydra's defaults list whose options users choose, but none that follows from two other choices.
_CHOSEN = re.compile(r'  - (?:optional )?(\w+): "?([^\s"_]+)"?(?: # (.+))?', re.MULTILINE)


class Group(NamedTuple):
    """A config group of a command: its name, its default option, and the comment beside it in ``conf/``, if any."""

    name: str
    default: str
    meaning: str


def list_groups(root: str) -> list[Group]:
    """List the config groups among whose options the users of a command choose, in the order of its defaults list."""
    lines = (conf_dir() / f"{root}.yaml").read_text().splitlines()
    return [Group(*match.groups("")) for match in map(_CHOSEN.fullmatch, lines) if match]


def find_own_dir() -> Path | None:
    """Find the user's ``conf/`` in the working directory; None if it contains none of rltune's config groups."""
    own, ours = Path.cwd() / "conf", conf_dir()
    if not own.is_dir() or own.resolve() == ours.resolve():
        return None
    groups = {folder.name for folder in ours.iterdir() if folder.is_dir()}
    return own if any(folder.is_dir() and folder.name in groups for folder in own.iterdir()) else None


def list_conf_dirs() -> list[Path]:
    """List the folders that Hydra searches for config groups, in its order: rltune's ``conf/``, then the user's."""
    own = find_own_dir()
    return [conf_dir(), own] if own else [conf_dir()]


def find_options(group: str) -> dict[str, list[Path]]:
    """Find the options of a config group, by name, with their files in search order; Hydra uses the first file."""
    options: dict[str, list[Path]] = {}
    for folder in list_conf_dirs():
        for path in (folder / group).glob("*.yaml"):
            options.setdefault(path.stem, []).append(path)
    return dict(sorted(options.items()))
