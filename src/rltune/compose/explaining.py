"""Turn errors of Hydra and OmegaConf into rltune's errors: the key, what is allowed, what to type."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import GrammarParseError, InterpolationResolutionError, OmegaConfBaseException

from rltune.config.bounds import list_bounds, read_types
from rltune.config.schema import RunConfig
from rltune.config.uris import conceal_setting
from rltune.config.validation import find_meant
from rltune.errors import ABSENT, ConfigError, RltuneError, choices, nearest
from rltune.formatting import spell_command

TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


_SEVERAL = re.compile("Ambiguous value|Error resolving interpolation|Sweep parameters|In '.*Could not load")
NAMED_GROUPS = ("experiment", "tuned", "portfolio", "recipe")  # Config groups that have no class in the schema.
# Hydra's flags. Settings that are typed with dashes are refused.
FLAGS = {
    *("-h", "--help", "--hydra-help", "--version", "-c", "--cfg", "--resolve", "-p", "--package", "-r", "--run"),
    *("-m", "--multirun", "-sc", "--shell-completion", "-cp", "--config-path", "-cn", "--config-name"),
    *("-cd", "--config-dir", "--experimental-rerun", "-i", "--info"),
}


def find_type(schema: type, key: str) -> Any:
    """Find a setting's type in the schema, such as ``float | None`` for ``budget.wall_time_s``; None for any type."""
    kind: Any = schema
    for part in key.split("."):
        kind = read_types(kind).get(part) if isinstance(kind, type) and is_dataclass(kind) else None
    return kind


def split_word(word: str) -> tuple[str, object]:
    """Split one setting, as users type it, into key and value for an error; ABSENT stands for no value.

    A value that is no number, ``true``, ``false`` or ``null`` stays the text that was typed.
    """
    key, equals, text = word.partition("=")
    words = {"true": True, "false": False, "null": None}
    if not equals or text.lower() in words:
        return key, words[text.lower()] if equals else ABSENT
    for convert in (int, float):
        with contextlib.suppress(ValueError):
            return key, convert(text)
    return key, text


def explain(error: Exception, root: str, schema: type, words: Sequence[str]) -> RltuneError:
    """Turn an error of Hydra or OmegaConf into an `RltuneError` about the typed words that caused it.

    Args:
        root: The command.
        schema: The dataclass of its settings.
        words: The overrides, as they were typed.
    """
    from hydra.errors import (
        ConfigCompositionException,
        HydraException,
        MissingConfigException,
        OverrideParseException,
    )

    help_line = spell_command(f"{root} --help")
    # Hydra's parser of config groups raises ValueError, for example for tuned=null.
    if not isinstance(error, HydraException | OmegaConfBaseException):
        return RltuneError(str(error), "group=option; ~group leaves it out", help_line)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_several = lines and _SEVERAL.match(lines[0])
    if is_several and (several := _explain_several(words, root, schema)):
        return several
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, MissingConfigException) and error.options is not None:
        return explain_option(str(error.missing_cfg_file), error.options, help_line)
    if isinstance(error, OverrideParseException):
        if "=" not in error.override:
            return explain_bare_word(error.override, root, schema)
        # Hydra's message is not shown if it would contain pieces of the login.
        if (shown := conceal_setting("", error.override)) != error.override:
            key, value = split_word(shown)
            return ConfigError(key, value, ": not readable", "key=value, the value also quoted for Hydra", help_line)
        key, value = split_word(error.override)
        return ConfigError(key, value, f": {lines[0]}", "key=value, quoted where the shell needs it", help_line)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return explain_key(cause, root, schema, words)
    if lines and (group := re.match(r"Could not override '([\w/]+)'", lines[0])):  # This group is another command's.
        keys = sorted(field.name for field in fields(schema))
        typed = next((word for word in words if word.startswith(f"{group[1]}=")), group[1])
        return ConfigError(*split_word(typed), ": no such key", choices(group[1], keys), help_line)
    if isinstance(error, ConfigCompositionException) and len(lines) > 1:
        return RltuneError(f"{lines[0]} {lines[1]}", "the keys that its schema has", help_line)
    return RltuneError(lines[0] if lines else type(error).__name__, "see the message", help_line)


def explain_bare_word(word: str, root: str, schema: type) -> RltuneError:
    """Explain that a word has no key; for the name of a sweep, as in ``show my-sweep``, suggest ``sweep=my-sweep``."""
    subject = {"sweep", "sweeps", "policy"} & {field.name for field in fields(schema)}
    fix = spell_command(f"{root} {subject.pop()}={word.lstrip('+~')}" if subject else f"{root} --help")
    return ConfigError(word, ABSENT, ": not a setting", "key=value, quoted where the shell needs it", fix)


def refuse_flags(root: str, words: Sequence[str], flags: Collection[str] = FLAGS) -> None:
    """Refuse settings that are typed as flags, such as ``--algo ppo`` or ``--algo=ppo``.

    Args:
        root: The command.
        words: The command line, as it was typed.
        flags: The flags that the command has.

    Raises:
        ConfigError: Names the flags, and spells them as settings.
    """
    refused = [word for word in words if word.startswith("-") and word.partition("=")[0] not in flags]
    if not refused:
        return
    if refused[0].partition("=")[0] in FLAGS:
        raise ConfigError(
            *split_word(refused[0]),
            f": not a flag of {root}, which composes no groups",
            "key=value, json=true and --help",
            spell_command(f"{root} --help"),
        )
    settings: list[str] = []
    for word in words:
        key, equals, value = word.partition("=")
        if word in refused:
            settings.append(f"{key.lstrip('-').replace('-', '_')}={value}")
        elif settings and settings[-1].endswith("=") and not equals:
            settings[-1] += word
        else:
            settings.append(word)
    typed = " ".join(settings)
    raise ConfigError(
        *split_word(refused[0]),
        ": no such flag",
        "settings as key=value or group=option, without dashes",
        spell_command(f"{root} {typed}"),
    )


def _explain_several(words: Sequence[str], root: str, schema: type) -> RltuneError | None:
    """Explain an error from several values for one setting: suggest a choice in the space, or several runs by ``-m``.

    Returns:
        The error; None if no word has several values.
    """
    for word in words:
        key, _, value = word.partition("=")
        kind = find_type(schema, key.lstrip("+"))
        is_group = is_dataclass(kind) or get_origin(kind) is dict or key in NAMED_GROUPS
        listed = re.fullmatch(r"\[(.*)\]" if is_group else r"choice\((.*)\)", value)
        values = listed[1] if listed else value
        if "," not in values or (not listed and value[0] in "[{'\""):
            continue
        if key.lstrip("+").startswith("space."):
            return ConfigError(
                key, value, ": several values of a parameter", "a range or a choice", f"{key}=[choice,{values}]"
            )
        return ConfigError(
            key,
            value,
            f": {key} takes one value",
            "a single value; -m runs a sweep for each of several, one after the other",
            spell_command(f"{root} -m {key}={values}"),
        )
    return None


def explain_option(file: str, options: Sequence[str], help_line: str) -> RltuneError:
    """Explain that a config group has no such option; for an environment's id, suggest ``env=gym env.id=ID``."""
    group, _, option = file.partition("/") if file.startswith("env/") else file.rpartition("/")
    close, fix = nearest(option, options), help_line
    base = re.match(r"(?:[\w.]+:)?(?:[\w-]+/)*([\w.-]+)-v\d+$", option) if group == "env" else None
    if base and base[1].lower() not in options:
        fix = f"env=gym env.id={option}"
    elif base or close:
        fix = f"{group}={base[1].lower() if base else close}"
    return RltuneError(
        f": no such file conf/{group}/{option}.yaml", choices(option, options), fix, key=group, value=option
    )


def explain_key(cause: OmegaConfBaseException, root: str, schema: type, words: Sequence[str]) -> RltuneError:
    """Turn OmegaConf's error about a key, its type or its value into an `RltuneError`; see `explain`."""
    help_line = spell_command(f"{root} --help")
    if isinstance(cause, GrammarParseError | InterpolationResolutionError):
        word = next((word for word in words if "${" in word), str(cause.full_key))
        problem = f": {str(cause).splitlines()[0]}"
        allowed = "${oc.env:NAME} for the value of an environment variable that is set"
        return ConfigError(*split_word(word), problem, allowed, help_line)
    parent: Any = cause.parent_node
    siblings = sorted(str(key) for key in parent if key != "hydra") if isinstance(parent, DictConfig) else []
    # For an unknown config group, Hydra names only the group, although the user has typed a key in it.
    full_key = f"{cause.full_key}."
    typed = (word for word in words if f"{word.partition('=')[0].lstrip('+~')}.".startswith(full_key))
    override = next(typed, str(cause.full_key))
    if str(cause.key) in siblings:
        has_value = not (OmegaConf.is_missing(parent, cause.key) or OmegaConf.is_interpolation(parent, str(cause.key)))
        default = parent.get(cause.key) if has_value else None
        bounds = list_bounds(schema).get(str(cause.full_key))
        if default is None and bounds:
            default = bounds.suggest(override.partition("=")[2])
        fix = help_line if default is None or isinstance(default, Container) else f"{cause.full_key}={default}"
        allowed = describe_allowed(schema, str(cause.full_key)) or "a value of the key's type"
        return ConfigError(*split_word(override), f": {str(cause).splitlines()[0]}", allowed, fix)
    if root == "resume" and find_type(RunConfig, str(cause.full_key)):
        return _explain_fixed(override, siblings)
    above, _, last = str(cause.full_key).rpartition(".")
    settings = OmegaConf.to_container(parent) if isinstance(parent, DictConfig) else {}
    may_add = above.split(".")[0] in ("space", "algo", "searcher", "scheduler", "env")
    fix = f"+{override} adds a key" if may_add else help_line
    if meant := find_meant(str(cause.full_key), siblings, settings):
        fix = override.replace(str(cause.full_key), meant, 1)
    allowed = choices(last, siblings, meant and meant.removeprefix(f"{above}."))
    return ConfigError(*split_word(override), ": no such key", allowed, fix)


def _explain_fixed(override: str, changeable: Sequence[str]) -> ConfigError:
    return ConfigError(
        *split_word(override),
        ": this setting cannot change after a sweep's start",
        f"a change of {', '.join(changeable)}",
        f"{spell_command('run')} with the same settings, {override} and another name",
    )


def describe_allowed(schema: type, key: str) -> str:
    """Describe the allowed values of a setting in words, such as ``a whole number, at least 1, or null``.

    Returns:
        The description; empty for a key with values of any type, as those of ``algo`` and ``space`` have.
    """
    kind, bounds = find_type(schema, key), list_bounds(schema).get(key)
    types = (kind, *get_args(kind))
    if get_origin(kind) is dict:
        return "{name: value}"
    if any(get_origin(part) is list for part in types):
        return "a list, such as [first,second]" + (", or null" if type(None) in types else "")
    name = next((TYPES[part] for part in types if part in TYPES), "")
    if bounds is not None:
        name = str(bounds) if bounds.minimum is None else f"{name}, {bounds}"
    comma = "," if bounds is not None else ""
    return f"{name}{comma} or null" if name and type(None) in types else name
