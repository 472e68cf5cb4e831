"""List a sweep's settings with defaults and comments from ``conf/``, for the service's form and the docs.

Everything comes from the composed settings, the schema and the files in ``conf/``; no setting is named here.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from omegaconf import OmegaConf

from rltune.compose.composing import compose_with_choices, conf_dir, find_options, list_conf_dirs
from rltune.compose.explaining import describe_allowed
from rltune.compose.overrides import spell_value
from rltune.config.bounds import list_bounds
from rltune.config.schema import RunConfig
from rltune.config.settings_file import flatten_settings
from rltune.config.uris import conceal_setting


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


@dataclass(frozen=True)
class Field:
    """A field of the service's submission form, for one setting.

    Attributes:
        key: The setting's dotted name.
        default: Its value if nothing is typed, as YAML spells it.
        meaning: Its comment in ``conf/``; empty without one.
        allowed: The values that it may have, as errors describe them; empty if any value may be right.
        choices: Words to choose from; empty for numbers and free text.
    """

    key: str
    default: str
    meaning: str
    allowed: str = ""
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Form:
    """The content of the service's submission form: the config groups and settings of a sweep.

    Attributes:
        groups: The names of each group's options, including those in the user's own ``conf/``.
        chosen: The option of each group that is taken if nobody chooses another.
        sections: The settings that have a single value, by the first part of their names.
    """

    groups: Mapping[str, Sequence[str]]
    chosen: Mapping[str, str]
    sections: Mapping[str, Sequence[Field]]

    @property
    def keys(self) -> set[str]:
        """Return the names of all config groups and settings in the form."""
        return {*self.groups, *(field.key for fields in self.sections.values() for field in fields)}


def make_form(words: Sequence[str] = ()) -> Form:
    """Make the form, with the defaults that follow from the chosen options of the config groups.

    Args:
        words: The choices, as they are typed: ``experiment=smoke``.

    Raises:
        RltuneError: An override is wrong.
    """
    composed, options = compose_with_choices("run", RunConfig, words)
    chosen = {group: option for group, option in options.items() if "/" not in group}
    meanings = _read_meanings(chosen)
    sections: dict[str, list[Field]] = {}
    # Interpolations stay unresolved, because ${oc.env:NAME} may be secret or missing.
    for key, value in flatten_settings(OmegaConf.to_container(composed, resolve=False)):
        if not isinstance(value, (list, dict)):
            section = key.partition(".")[0] if "." in key else "sweep"
            allowed, bounds = describe_allowed(RunConfig, key), list_bounds(RunConfig).get(key)
            choices = bounds.choices if bounds else ()
            default = _spell_default(key, value)
            sections.setdefault(section, []).append(Field(key, default, meanings.get(key, ""), allowed, choices))
    return Form({group: list(find_options(group)) for group in sorted(chosen)}, chosen, sections)


def list_groups() -> set[str]:
    """List the names of all config groups, including the user's own."""
    return {path.name for folder in list_conf_dirs() for path in folder.iterdir() if path.is_dir()}


def _spell_default(key: str, value: Any) -> str:
    if not isinstance(value, str):
        return spell_value(key, value)
    return conceal_setting(key, value)


def _read_meanings(chosen: Mapping[str, str]) -> dict[str, str]:
    """Read the comment of each key, preferably from the chosen option of its group, else from the other options."""
    paths = [(conf_dir() / "run.yaml", "")]
    for group, choice in chosen.items():
        options = find_options(group)
        for name in sorted(options, key=lambda name: name != choice):
            paths += [(path, f"{group}.") for path in options[name]]
    meanings: dict[str, str] = {}
    for path, prefix in paths:
        # A user's broken config file is reported only when somebody chooses it.
        with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
            is_global = "@package _global_" in path.read_text()
            for setting in read_keys(path, "" if is_global else prefix):
                if setting.meaning:
                    meanings.setdefault(setting.key, setting.meaning)
    return meanings
