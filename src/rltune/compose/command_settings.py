"""Read the settings of a command without config groups: the defaults from its file in ``conf/``, then the typed words.

Hydra is needed only where groups are composed. Its import and its composing take longer than ``rltune show`` itself.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import is_dataclass
from types import NoneType
from typing import Any, TypeVar, cast, get_args

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltune.compose.explaining import explain_bare_word, explain_key, refuse_flags, split_word
from rltune.compose.overrides import write_whole_numbers
from rltune.config.bounds import find_type, read_types
from rltune.config.names import conf_dir
from rltune.config.settings_file import load_settings, parse_yaml
from rltune.config.validation import to_typed
from rltune.errors import ConfigError
from rltune.formatting import flatten_settings, spell_command

T = TypeVar("T")


def read_command_settings(root: str, schema: type[T], words: Sequence[str]) -> T:
    """Read a command's settings from its file in ``conf/`` and the words of its command line.

    Args:
        root: The command.
        schema: The dataclass of its settings.
        words: The settings as they are typed, such as ``sweep=latest``.

    Raises:
        RltuneError: A word is no setting, or its value is not allowed.
    """
    refuse_flags(root, words, flags=())
    settings: Any = OmegaConf.merge(OmegaConf.structured(schema), _load_defaults(root))
    for word in words:
        nested = _read_word(word, root, schema)
        try:
            settings = OmegaConf.merge(settings, nested)
            OmegaConf.resolve(settings)
        except OmegaConfBaseException as error:
            raise explain_key(error, root, schema, [word]) from None
    return to_typed(schema, settings)


def list_command_keys(root: str) -> list[str]:
    """List the dotted keys of a command's settings, in the order of its file in ``conf/``."""
    return [key for key, _ in flatten_settings(_load_defaults(root))]


def _load_defaults(root: str) -> dict[str, Any]:
    return load_settings((conf_dir() / f"{root}.yaml").read_text())


def _read_word(word: str, root: str, schema: type) -> dict[str, Any]:
    """Read a word such as ``study.storage=null`` as nested settings; a ``+`` before the key makes no difference.

    Raises:
        RltuneError: The word has no key, or its key is a group of settings.
    """
    key, equals, text = write_whole_numbers(word.lstrip("+"), schema).partition("=")
    if not equals:
        raise explain_bare_word(word, root, schema)
    kind = find_type(schema, key)
    if is_dataclass(kind):
        settings = ", ".join(f"{key}.{name}" for name in read_types(cast(type, kind)))
        typed = split_word(word)
        raise ConfigError(*typed, ": a group of settings", settings, spell_command(f"{root} --help"))
    value = _parse_value(text, kind)
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


def _parse_value(text: str, kind: Any) -> Any:
    """Parse a typed value as YAML, unless the setting is a text: the sweeps ``1.10`` and ``1.1`` differ.

    A text may be in quotes, as commands that compose groups need them for Hydra.
    """
    types = (kind, *get_args(kind))
    if kind is str or (str in types and NoneType in types):
        quoted = re.fullmatch(r"(['\"])(.*)\1", text, re.DOTALL)
        return None if text == "null" and NoneType in types else quoted[2] if quoted else text
    with contextlib.suppress(yaml.YAMLError, ValueError):
        # An empty value is no YAML null, as it may come from an empty variable of the shell.
        return parse_yaml(text) if text else text
    return text
