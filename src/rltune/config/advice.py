"""Say what to type in place of a setting that does not exist: by other tools' words, by its place, by its spelling."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from rltune.config.bounds import list_bounds
from rltune.config.buckets import is_bucket
from rltune.config.names import conf_dir
from rltune.config.schema import RunConfig
from rltune.errors import choices, nearest, spell
from rltune.other_tools import Answer, find_answer

STOP = "stop"
"""Ray Tune's mapping of metrics to the values at which a trial ends."""

FREE = ("env.kwargs", "env.wrappers", "env.per_copy", "env.encode")  # Arguments of an environment may have any name.


def advise(key: str, value: Any, settings: Mapping[str, Any]) -> tuple[str, str]:
    """Say what is allowed in place of an unknown setting, and what to type.

    Args:
        key: The setting in full.
        value: The value that was typed.
        settings: All settings of the command, nested.

    Returns:
        What is allowed; and the setting to type with its value, empty if none is close.
    """
    if key.startswith(f"{STOP}."):  # Ray nests its metrics: `stop.env_runners/episode_return_mean`.
        key = f"{STOP}.{re.split('[./]', key)[-1]}"
    group, _, last = key.rpartition(".")
    answer = None if key.startswith(FREE) else find_answer("setting", key) or find_answer("setting", last)
    if answer is not None and answer.fix and _applies(answer, settings):
        return answer.note, answer.fix.format(key=key, name=last, value=value)
    meant = find_meant(key, settings)
    # Of a word with a group that there is not, such as `stop.score`, the groups are listed.
    is_known = group.split(".")[0] in settings
    siblings = [name for name in (find_group(settings, group) if is_known else settings) if name != last]
    allowed = choices(last, siblings, meant and meant.removeprefix(f"{group}."))
    if answer is not None and answer.names and answer.note:
        allowed = answer.note
    if group == "env.per_copy":
        return "arguments of the environment's constructor, which + adds", f"'+{key}={spell(value)}'"
    if not meant and key.startswith("env.") and "kwargs" in find_group(settings, "env"):
        return allowed, f"+env.kwargs.{last}={value}, if the environment takes it"
    return allowed, translate(meant, value) if meant else ""


def _applies(answer: Answer, settings: Mapping[str, Any]) -> bool:
    """Return whether the command has the settings that an answer advises; other commands than ``run`` lack most."""
    if answer.fix.startswith("rltune "):
        return True
    keys = re.findall(r"(?:^|[ '+~])(\w+)[\w.]*=", answer.fix)
    return all(key in settings for key in keys)


def translate(key: str, value: Any) -> str:
    """Write a setting with a value that may be another tool's word: ``searcher=tpe`` for ``optuna``."""
    word = value if isinstance(value, str) else spell(value)
    if key == "output_dir" and is_bucket(word):
        key = "storage"
    if key == "env.kwargs":  # Only `+` adds keys to a mapping.
        key = f"+{key}"
    if " " in word:
        return f"'{key}={word}'"
    folder, bounds = conf_dir() / key, list_bounds(RunConfig).get(key)
    if folder.is_dir():
        return advise_option(key, word, [path.stem for path in folder.glob("*.yaml")])[1] or f"{key}={word}"
    if bounds is not None and bounds.minimum is None and not bounds.allows(word):
        return f"{key}={bounds.suggest(word)}"
    return f"{key}={word}"


def advise_option(group: str, option: str, options: list[str]) -> tuple[str, str]:
    """Say which options of a config group are allowed in place of an unknown one, and what to type.

    Args:
        group: The group, such as ``scheduler``.
        option: What was typed.
        options: The options that there are.

    Returns:
        What is allowed; and the setting to type, empty if no option is close.
    """
    answer = find_answer(group, option)
    if option not in options and answer is not None and answer.fix:
        return answer.note, answer.fix
    names = answer.names if answer is not None else ()
    close = next((name for name in (option, *names) if name in options), None) or nearest(option, options)
    return choices(option, options, close), f"{group}={close}" if close else ""


def find_meant(key: str, settings: Mapping[str, Any]) -> str | None:
    """Find the existing key that the user of an unknown key probably meant; None if no key is close.

    Args:
        key: The unknown key. Its last part may stand for a key of any group, as ``lr`` does for ``space.lr``.
        settings: All settings, nested.
    """
    group, _, last = key.rpartition(".")
    siblings = [name for name in find_group(settings, group) if name != last]
    paths = [path for path in _list_paths(settings) if path != key and not path.startswith("hydra.")]
    # Keys of the space and the budget come first, because users type them most often, then those of the same group.
    paths.sort(key=lambda path: (not path.startswith(("space.", "budget.")), path.split(".")[0] != key.split(".")[0]))
    places: dict[str, str] = {}
    for path in paths:
        places.setdefault(path.rpartition(".")[2], path)
    if key.startswith(FREE):
        close = nearest(last, siblings)
        return f"{group}.{close}" if close else None
    # A spelling error of one letter is likelier than a setting of another group.
    if group and (close := nearest(last, siblings, 0.87)):
        return f"{group}.{close}"
    # `env_id` may mean `env.id`, because Python's keyword arguments have no dots.
    spelled = next((path for path in paths if "." in path and path.replace(".", "_") == key), None)
    if spelled:
        return spelled
    answer = find_answer("setting", key) or find_answer("setting", last) or Answer()
    for name in answer.names:
        if (near := name.rpartition(".")[2]) in siblings and group:
            return f"{group}.{near}"
        if name in paths or ("." in name and name.split(".")[0] in settings):
            return name
        if near in places:
            return places[near]
    if last in places:
        return places[last]
    # The groups have so many keys that some resemble any word. So an unknown key without a group needs a closer match.
    close = nearest(last, siblings if group else [*siblings, *places], 0.6 if group else 0.75)
    close = close or nearest(last, [name for name in siblings if not isinstance(settings.get(name), Mapping)])
    if close is None or close in siblings:
        return close and (f"{group}.{close}" if group else close)
    return places[close]


def find_group(settings: Any, group: str) -> Mapping[str, Any]:
    """Return the nested settings of a group by its dotted key; empty if there is no such group."""
    for part in group.split(".") if group else ():
        settings = settings.get(part) if isinstance(settings, Mapping) else None
    return settings if isinstance(settings, Mapping) else {}


def _list_paths(settings: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield the dotted keys of all settings, of groups too."""
    for name, value in settings.items():
        path = f"{above}.{name}" if above else str(name)
        yield path
        if isinstance(value, Mapping):
            yield from _list_paths(value, path)
