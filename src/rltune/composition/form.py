"""List settings of a sweep as a form asks for them: each with its type, its default and what it means.

Keys and types are the schema's, defaults what the chosen files compose to, and meanings the comments in these files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_type_hints

import yaml
from omegaconf import OmegaConf

from rltune.composition.commented import read_keys
from rltune.composition.composing import compose_with_choices, conf_dir, find_own_dir
from rltune.composition.overrides import spell_value
from rltune.config.schema import RunConfig
from rltune.config.settings_file import flatten_settings
from rltune.config.uris import redact_notify

SCALARS = {int, float, str, bool, type(None)}


@dataclass(frozen=True)
class Field:
    """A setting as a form asks for it.

    Attributes:
        key: Its name, with dots.
        default: What it is where nothing is typed, as YAML spells it.
        meaning: Its comment; empty without one.
        is_number: Whether it takes numbers alone, or null.
    """

    key: str
    default: str
    meaning: str
    is_number: bool


def list_keys(parts: Sequence[str], schema: type = RunConfig, prefix: str = "") -> Iterator[tuple[str, bool]]:
    """List the keys that have one value each, and whether it is a number.

    Args:
        parts: What they stand below: ``seed`` is itself, ``budget`` all that is in it.
        schema: A dataclass.
        prefix: What its fields stand below.
    """
    hints = get_type_hints(schema)
    for name in parts:
        kinds = set(get_args(hints[name])) if isinstance(hints[name], UnionType) else {hints[name]}
        if is_dataclass(hints[name]):
            yield from list_keys([*get_type_hints(hints[name])], hints[name], f"{prefix}{name}.")
        elif kinds <= SCALARS:
            yield f"{prefix}{name}", not kinds & {str, bool}


def list_fields(parts: Sequence[str], words: Sequence[str] = ()) -> list[Field]:
    """List settings of a sweep, with the defaults that they have under a choice of files.

    Args:
        parts: As for `list_keys`.
        words: What chooses the files, as it is typed: ``experiment=smoke``.

    Raises:
        RltuneError: A word is wrong.
    """
    composed, chosen = compose_with_choices("run", RunConfig, words)
    # As it is written: what ${oc.env:NAME} stands for may be secret, or not there.
    settings = dict(flatten_settings(OmegaConf.to_container(composed, resolve=False)))
    meanings = _read_meanings([part for part in parts if part in chosen], chosen)
    return [
        Field(key, _spell_default(key, settings.get(key)), meanings.get(key, ""), is_number)
        for key, is_number in list_keys(parts)
    ]


def _spell_default(key: str, value: Any) -> str:
    shown = redact_notify(value) if key == "notify" and value else value
    return shown if isinstance(shown, str) else spell_value(key, shown)


def _read_meanings(groups: Sequence[str], chosen: Mapping[str, str]) -> dict[str, str]:
    """Read what the comments say of each key: those of the chosen file before those of a group's other files."""
    found = {one.key: one.meaning for one in read_keys(conf_dir() / "run.yaml") if one.meaning}
    for group in groups:
        for path in sorted(_find_files(group), key=lambda path: path.stem != chosen[group]):
            with contextlib.suppress(
                OSError, UnicodeDecodeError, yaml.YAMLError
            ):  # a broken one, which may not be chosen
                for one in read_keys(path, f"{group}."):
                    if one.meaning:
                        found.setdefault(one.key, one.meaning)
    return found


def _find_files(group: str) -> list[Path]:
    folders = [conf_dir(), *filter(None, [find_own_dir()])]
    return [path for folder in folders for path in sorted((folder / group).glob("*.yaml"))]
