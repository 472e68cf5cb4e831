"""Turn errors of Hydra and OmegaConf into errors in three parts: the key, what is allowed, what to type."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, get_args, get_origin

from omegaconf import Container, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltune.config.bounds import list_bounds, read_types
from rltune.config.schema import REMOVED
from rltune.config.uris import redact_address
from rltune.config.validation import find_meant
from rltune.errors import RltuneError, choices, nearest
from rltune.formatting import spell_command

TYPES = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}


def find_type(schema: type, key: str) -> Any:
    """Find the type of a setting, such as ``int | None`` for ``budget.wall_time_s``; None if it may have any type."""
    kind: Any = schema
    for part in key.split("."):
        kind = read_types(kind).get(part) if isinstance(kind, type) and is_dataclass(kind) else None
    return kind


def explain(error: Exception, root: str, schema: type, words: Sequence[str]) -> RltuneError:
    """Explain an error of Hydra or OmegaConf.

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
    if not isinstance(error, HydraException | OmegaConfBaseException):  # Hydra's parser of groups, as for tuned=null.
        return RltuneError(str(error), "group=option; ~group leaves it out", help_line)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    cause: Any = error if isinstance(error, OmegaConfBaseException) else error.__cause__
    if isinstance(error, MissingConfigException) and error.options is not None:
        return _explain_option(str(error.missing_cfg_file), error.options, help_line)
    if isinstance(error, OverrideParseException):
        subject = {"sweep", "sweeps", "policy"} & {field.name for field in fields(schema)}  # Its key was left out.
        is_bare = subject and "=" not in error.override
        fix = spell_command(f"{root} {subject.pop()}={error.override}") if is_bare else help_line
        redacted = redact_address(error.override)
        if redacted != error.override:  # Hydra's message would quote the login.
            return RltuneError(f"{redacted}: not readable", "key=value, its value quoted for Hydra too", help_line)
        return RltuneError(f"{error.override}: {lines[0]}", "key=value, quoted where the shell needs it", fix)
    if isinstance(cause, OmegaConfBaseException) and cause.full_key:
        return _explain_key(cause, schema, words, help_line)
    if isinstance(error, ConfigCompositionException) and len(lines) > 1:
        return RltuneError(f"{lines[0]} {lines[1]}", "the keys that its schema has", help_line)
    return RltuneError(lines[0] if lines else type(error).__name__, "see the message", help_line)


def _explain_option(file: str, options: Sequence[str], help_line: str) -> RltuneError:
    """Explain that a group has no such option; ``env`` may have got an environment's id, which ``env=gym`` takes."""
    group, _, option = file.partition("/") if file.startswith("env/") else file.rpartition("/")
    close, fix = nearest(option, options), help_line
    base = re.match(r"(?:[\w.]+:)?(?:[\w-]+/)*([\w.-]+)-v\d+$", option) if group == "env" else None
    if base and base[1].lower() not in options:
        fix = f"env=gym env.id={option}"
    elif base or close:
        fix = f"{group}={base[1].lower() if base else close}"
    return RltuneError(f"{group}={option}: no such file conf/{group}/{option}.yaml", choices(option, options), fix)


def _explain_key(cause: OmegaConfBaseException, schema: type, words: Sequence[str], help_line: str) -> RltuneError:
    parent: Any = cause.parent_node
    siblings = sorted(str(key) for key in parent if key != "hydra") if isinstance(parent, DictConfig) else []
    typed = (arg for arg in words if arg.lstrip("+~").startswith(str(cause.full_key)))
    override = redact_address(next(typed, str(cause.full_key)))
    if str(cause.key) in siblings:
        has_value = not (OmegaConf.is_missing(parent, cause.key) or OmegaConf.is_interpolation(parent, str(cause.key)))
        default = parent.get(cause.key) if has_value else None
        bounds = list_bounds(schema).get(str(cause.full_key))
        if default is None and bounds:
            default = bounds.suggest(override.partition("=")[2])
        fix = help_line if default is None or isinstance(default, Container) else f"{cause.full_key}={default}"
        allowed = describe_allowed(schema, str(cause.full_key)) or "a value of the key's type"
        return RltuneError(f"{override}: {str(cause).splitlines()[0]}", allowed, fix)
    if instead := REMOVED.get(str(cause.full_key)):
        return RltuneError(f"{override}: not a setting any more", "the setting that replaces it", instead)
    above, _, last = str(cause.full_key).rpartition(".")
    settings = OmegaConf.to_container(parent) if isinstance(parent, DictConfig) else {}
    may_add = above.split(".")[0] in ("space", "algo", "searcher", "scheduler", "env")
    fix = f"+{override} adds a key" if may_add else help_line
    if meant := find_meant(str(cause.full_key), siblings, settings):
        fix = override.replace(str(cause.full_key), meant, 1)
    allowed = choices(last, siblings, meant and meant.removeprefix(f"{above}."))
    return RltuneError(f"{override}: no such key", allowed, fix)


def describe_allowed(schema: type, key: str) -> str:
    """Describe the values that a setting may have, such as ``a whole number, at least 1, or null``.

    Returns:
        The description; empty for a key with values of any type, as those of ``algo`` and ``space`` have.
    """
    kind, bounds = find_type(schema, key), list_bounds(schema).get(key)
    if get_origin(kind) is list:
        return "a list, such as [first,second]"
    types = (kind, *get_args(kind))
    name = next((TYPES[part] for part in types if part in TYPES), "")
    if bounds is not None:
        name = str(bounds) if bounds.minimum is None else f"{name}, {bounds}"
    comma = "," if bounds is not None else ""
    return f"{name}{comma} or null" if name and type(None) in types else name
