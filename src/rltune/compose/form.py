"""List the settings of a sweep for a form: the groups with their options, and single settings with their defaults.

Everything comes from the composed settings, the schema and the files in ``conf/``; no setting is named here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from omegaconf import OmegaConf

from rltune.compose.commented import read_keys
from rltune.compose.composing import compose_with_choices, conf_dir, find_options, list_conf_dirs
from rltune.compose.explaining import describe_allowed
from rltune.compose.overrides import spell_value
from rltune.config.bounds import list_bounds
from rltune.config.schema import RunConfig
from rltune.config.settings_file import flatten_settings
from rltune.config.uris import redact_address, redact_notify


@dataclass(frozen=True)
class Field:
    """A field of the form, for one setting.

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
    """The groups and settings of a sweep.

    Attributes:
        groups: The names of each group's options, including those in the user's own ``conf/``.
        sections: The settings that have a single value, by the first part of their names.
    """

    groups: Mapping[str, Sequence[str]]
    sections: Mapping[str, Sequence[Field]]

    @property
    def keys(self) -> set[str]:
        """Return the names of all groups and fields."""
        return {*self.groups, *(field.key for fields in self.sections.values() for field in fields)}


def make_form(words: Sequence[str] = ()) -> Form:
    """Make the form with the defaults of the chosen options.

    Args:
        words: The choices, as they are typed: ``experiment=smoke``.

    Raises:
        RltuneError: An override is wrong.
    """
    composed, options = compose_with_choices("run", RunConfig, words)
    chosen = {group: option for group, option in options.items() if "/" not in group}
    meanings = _read_meanings(chosen)
    sections: dict[str, list[Field]] = {}
    # Interpolations are not resolved, because the value of ${oc.env:NAME} may be secret or missing.
    for key, value in flatten_settings(OmegaConf.to_container(composed, resolve=False)):
        if not isinstance(value, (list, dict)):
            section = key.partition(".")[0] if "." in key else "sweep"
            allowed, bounds = describe_allowed(RunConfig, key), list_bounds(RunConfig).get(key)
            choices = bounds.choices if bounds else ()
            default = _spell_default(key, value)
            sections.setdefault(section, []).append(Field(key, default, meanings.get(key, ""), allowed, choices))
    return Form({group: list(find_options(group)) for group in sorted(chosen)}, sections)


def list_groups() -> set[str]:
    """List the names of all groups."""
    return {path.name for folder in list_conf_dirs() for path in folder.iterdir() if path.is_dir()}


def _spell_default(key: str, value: Any) -> str:
    if not isinstance(value, str):
        return spell_value(key, value)
    return redact_notify(value) if key == "notify" else redact_address(value)


def _read_meanings(chosen: Mapping[str, str]) -> dict[str, str]:
    """Read the comment of each key; that of a chosen option wins over those of the group's other options."""
    paths = [(conf_dir() / "run.yaml", "")]
    for group, choice in chosen.items():
        options = find_options(group)
        for name in sorted(options, key=lambda name: name != choice):
            paths += [(path, f"{group}.") for path in options[name]]
    meanings: dict[str, str] = {}
    for path, prefix in paths:
        # A broken file is not an error unless it is chosen.
        with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError):
            is_global = "@package _global_" in path.read_text()
            for setting in read_keys(path, "" if is_global else prefix):
                if setting.meaning:
                    meanings.setdefault(setting.key, setting.meaning)
    return meanings
