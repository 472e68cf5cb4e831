"""Find what an environment's id names: a class without an id, or the id that was meant by one in another form."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rltune.envs.guest import import_guest
from rltune.envs.rllib_agents import is_rllib_class
from rltune.errors import ConfigError, GuestError, nearest

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

_VERSION = re.compile(r"-v\d+$")


def find_meant(env_id: str) -> str:
    """Return the id, with its module, that was probably meant; empty if there is none.

    A file or a module's class may be typed, ``walk.py:Walk-v0``, ``/project/walk.py``, ``walk.Walk``, ``walk:Walk``; or
    an id without its namespace or its version, with another version, or in other capitals.
    """
    for module, name in _split(env_id):
        with contextlib.suppress(GuestError, ImportError, ValueError):
            if importlib.util.find_spec(module):
                import_guest(module)
                if meant := _choose(name, list_ids(module) | list_classes(module)):
                    return f"{module}:{meant}"
    return ""


def list_ids(module: str) -> dict[str, Any]:
    """Return the ids that a module's package has registered, and the entry point of each."""
    from gymnasium.envs.registration import registry

    points = {env_id: entry.entry_point for env_id, entry in registry.items()}
    package = module.partition(".")[0]
    return {env_id: point for env_id, point in points.items() if _find_module(point).partition(".")[0] == package}


def find_class(env_id: str) -> GymnasiumSpec | None:
    """Return how Gymnasium makes the class that an id such as ``walk:Walk`` names; None if the id is a registered one.

    Nothing is registered, so that classes of one name in two modules are no conflict. The module is imported already.
    """
    from gymnasium.envs.registration import EnvSpec, registry

    module, _, name = env_id.rpartition(":")
    kind = None if name in registry else list_classes(module).get(name)
    if kind is None:
        return None
    # Gymnasium reads the metadata of what it calls, which only instances of a class may have, in a slot or a property.
    return EnvSpec(env_id, entry_point=env_id if isinstance(kind.metadata, dict) else functools.partial(kind))


def list_classes(module: str) -> dict[str, Any]:
    """Return the environments' classes of an imported module, its own first, except for those that have an id.

    Only the id names such a class, because it may have a time limit and arguments.
    """
    import gymnasium

    points = [entry.entry_point for entry in gymnasium.registry.values()]
    registered = {(_find_module(point).partition(".")[0], _find_name(point)) for point in points}
    classes = {
        name: kind
        for name, kind in vars(sys.modules.get(module, object)).items()
        if isinstance(kind, type)
        and issubclass(kind, gymnasium.Env)
        and kind is not gymnasium.Env
        and not (issubclass(kind, gymnasium.Wrapper) or is_rllib_class(kind))
        and (kind.__module__.partition(".")[0], kind.__name__) not in registered
    }
    return dict(sorted(classes.items(), key=lambda item: item[1].__module__ != module))


def make_path_error(env_id: str) -> ConfigError | None:
    """Make the error for an id whose module is written as a file's path; None if it is not."""
    head, _, name = env_id.rpartition(":")
    if not head and env_id.endswith(".py"):
        head, name = env_id, "Name-v0"
    if spell_module(head) == head:
        return None
    path = Path(head).expanduser().absolute()
    fix = f"env.id={find_meant(env_id) or f'{spell_module(head)}:{name}'}"
    if not path.is_relative_to(Path.cwd()):
        fix = f"cd {path.parent}, or export PYTHONPATH={path.parent}, then {fix}"
    allowed = "a module as Python imports it, with dots and without .py"
    return ConfigError("env.id", env_id, ": a path of a file is no module", allowed, fix)


def spell_module(text: str) -> str:
    """Spell a file's path as the module that Python imports from the working directory, or from its own folder."""
    if "/" not in text and "\\" not in text and not text.endswith(".py"):
        return text
    path = Path(text.replace("\\", "/").removesuffix(".py")).expanduser()
    with contextlib.suppress(ValueError):
        return ".".join(part for part in path.absolute().relative_to(Path.cwd()).parts if part != "..")
    return path.name


def _split(env_id: str) -> Iterator[tuple[str, str]]:
    """Yield the modules and names that an id may mean."""
    head, colon, name = env_id.rpartition(":")
    if colon:
        yield spell_module(head), name
    elif env_id.endswith(".py"):
        yield spell_module(env_id), ""
    else:
        for separator in (".", "/"):
            head, between, name = env_id.rpartition(separator)
            if between and head:
                yield spell_module(head).replace("/", "."), name


def _choose(name: str, ids: dict[str, Any]) -> str:
    """Choose the id of a module that a name means: without its namespace, its version or its capitals, or its class."""
    if not name:
        return next(iter(ids), "")
    base = _VERSION.sub("", name.rpartition("/")[2]).casefold()
    shorts = {env_id: env_id.rpartition("/")[2] for env_id in ids}
    classes = {env_id: _find_name(point).casefold() for env_id, point in ids.items()}
    for same in (
        [env_id for env_id in ids if env_id == name],
        [env_id for env_id, short in shorts.items() if short == name],
        [env_id for env_id, short in shorts.items() if _VERSION.sub("", short).casefold() == base],
        [env_id for env_id, cls in classes.items() if cls == base],
    ):
        if same:
            return same[-1]
    return nearest(name, ids, 0.75) or ""


def _find_module(point: Any) -> str:
    """Return the module of an entry point, which may be a text, a class, a function, or arguments bound to one."""
    return (
        point.partition(":")[0] if isinstance(point, str) else getattr(getattr(point, "func", point), "__module__", "")
    )


def _find_name(point: Any) -> str:
    return point.rpartition(":")[2] if isinstance(point, str) else getattr(point, "__name__", "")
