"""Name and set the arguments of an environment that a search may vary: its own, its wrappers' and its rewards'.

A name is the path of a setting, such as ``env.kwargs.frame_skip``. A wrapper has the name of its class there, as in
``env.wrappers.TimeLimit.kwargs.max_episode_steps``. What ``train_env`` begins is for learning only: policies are judged
in the environment of the settings.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rltune.envs.changes import ARGUMENTS
from rltune.envs.spec import UNSHAPED, EnvSpec, parse_wrapper, spec_of
from rltune.errors import ABSENT, ConfigError, choices, nearest, spell
from rltune.formatting import flatten_settings

ENV, TRAIN_ENV = "env", "train_env"
"""What the names of a space begin with that are an environment's: for all that is played, or for learning only."""

SEARCHED = "searched"
"""Where a policy's metadata has the values of its environment's arguments that its trial was given, by name."""

KWARGS, WRAPPERS, REWARDS = "kwargs", "wrappers", "rewards"


def is_of_env(name: str) -> bool:
    """Return whether a name of a search space is that of an environment's argument."""
    return name.partition(".")[0] in (ENV, TRAIN_ENV)


def is_changed(name: str, changes: Mapping[str, Any]) -> bool:
    """Return whether changes of an environment, such as ``score.env``, replace what a name in ``env`` sets.

    Args:
        name: The name in the space.
        changes: As for `rltune.envs.changes.change_env`; another id has other arguments.
    """
    root, section, *rest = name.split(".")
    if root != ENV or section not in (KWARGS, WRAPPERS):
        return False
    if section == WRAPPERS:
        return "id" in changes or WRAPPERS in changes
    return "id" in changes or any(rest[0] in (changes.get(key) or {}) for key in ARGUMENTS)


def list_env_arguments(spec: EnvSpec) -> dict[str, Any]:
    """Return the arguments that a search may vary, nested as their names are, with their values in the settings."""
    sections = _list_sections(copy.deepcopy(spec.to_dict()))
    return {ENV: sections, TRAIN_ENV: {name: part for name, part in sections.items() if name != REWARDS}}


def set_env_arguments(spec: EnvSpec, values: Mapping[str, Any]) -> EnvSpec:
    """Return the specification with other values of its arguments.

    Args:
        spec: The environment of the settings.
        values: The values by name, without the ``env`` or ``train_env`` that names begin with.
    """
    if not values:
        return spec
    plain = copy.deepcopy(spec.to_dict())
    sections = _list_sections(plain)
    for name, value in values.items():
        node, (*above, last) = sections, name.split(".")
        for part in above:
            node = node[part]
        node[last] = value
    return spec_of(plain)


def select_values(values: Mapping[str, Any], *roots: str) -> dict[str, Any]:
    """Select the values whose names begin with one of the roots, by their names without it; those of the last count."""
    split = [(*name.partition(".")[::2], value) for name, value in values.items()]
    return {name: value for root in roots for first, name, value in split if first == root}


def list_corner_envs(spec: EnvSpec, points: Iterable[Mapping[str, Any]]) -> list[tuple[dict[str, Any], EnvSpec]]:
    """List the environments at points of a search space, those to be judged in and those to learn in, each once.

    Args:
        spec: The environment of the settings.
        points: Values by name, such as `rltune.search.space.Space.corners` has them.

    Returns:
        What differs from the settings, by name, and the environment; those with few differences come first.
    """
    arguments, specs, corners = list_env_arguments(spec), [spec], list[tuple[dict[str, Any], EnvSpec]]()
    for point in points:
        for roots in ((ENV,), (ENV, TRAIN_ENV)):
            values = {name: value for name, value in point.items() if name.partition(".")[0] in roots}
            corner = set_env_arguments(spec, select_values(values, *roots))
            changed = {name: value for name, value in values.items() if _find(arguments, name.split(".")) != value}
            if changed and corner not in specs:
                specs.append(corner)
                corners.append((changed, corner))
    return sorted(corners, key=lambda corner: len(corner[0]))


def _find(arguments: Any, path: Sequence[str]) -> Any:
    """Return what lies at a path of nested mappings; ABSENT if nothing does."""
    for part in path:
        arguments = arguments.get(part, ABSENT) if isinstance(arguments, Mapping) else ABSENT
    return arguments


def _list_sections(plain: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a plain specification that arguments are in, by their names; changes there change it."""
    plain[REWARDS] = {name: value for name, value in UNSHAPED.items() if name != "normalise"} | plain[REWARDS]
    names = [parse_wrapper(wrapper, index).name for index, wrapper in enumerate(plain[WRAPPERS])]
    counts = Counter(names)
    wrappers = {
        name: {KWARGS: wrapper.get(KWARGS) or {}}
        for name, wrapper in zip(names, plain[WRAPPERS], strict=True)
        if counts[name] == 1  # A name must mean one wrapper.
    }
    return {KWARGS: plain[KWARGS], WRAPPERS: wrappers, REWARDS: plain[REWARDS]}


def require_env_argument(
    arguments: Mapping[str, Any], name: str, key: str, form: Any = ABSENT, value: Any = ABSENT
) -> None:
    """Refuse a name of which the settings have no value, so that the baseline would have none.

    Args:
        arguments: Those of `list_env_arguments`.
        name: The name in the space, which begins with ``env`` or ``train_env``.
        key: How the user wrote it.
        form: What the user wrote for it.
        value: One of the values that the user wants to try.

    Raises:
        ConfigError: The settings have no such argument.
    """
    *above, last = name.split(".")
    siblings = _find(arguments, above)
    if (KWARGS in above or above == [ENV, REWARDS]) and isinstance(siblings, Mapping) and last in siblings:
        return
    known = [path for path, _ in flatten_settings({root: arguments.get(root, {}) for root in (ENV, TRAIN_ENV)})]
    allowed, close = "an argument that has a value there, which is the baseline's", None
    if is_place := KWARGS in above and isinstance(siblings, Mapping):
        close = next((".".join([*above, near]) for near in [nearest(last, siblings, 0.75)] if near), None)
        place = f"{ENV}.{'.'.join(above[1:])}"
        fix = f"+{place}.{last}={spell(value)}"
        if above[1] == WRAPPERS:
            fix = f"{last}: {spell(value)} in the {KWARGS} of {above[2]} in {ENV}.{WRAPPERS}"
    else:
        close, fix = nearest(name, known), f"drop it: ~{key}"
    if close or not is_place:
        allowed = choices(name, known, close)
    if close:
        plus = "+" if key.startswith("space.") else ""  # No file of conf/space/ names an environment's arguments.
        fix = f"{plus}{key.removesuffix(name)}{close}={spell(form)}"
    raise ConfigError(key, form, ": the settings have no value for it", allowed, fix)
