"""Say why an environment cannot be made: which argument is missing or unknown, or what its constructor has raised."""

from __future__ import annotations

import inspect
import shlex
import traceback
from collections.abc import Callable, Mapping
from os.path import exists
from pathlib import Path
from typing import Any, NamedTuple

from rltune.envs.guest import find_place, make_fault
from rltune.envs.ids import find_class
from rltune.envs.rllib_agents import is_rllib_class
from rltune.envs.spec import EnvSpec, suggest_array
from rltune.errors import ConfigError, choices, describe_exception, nearest, spell
from rltune.formatting import flatten_settings

MAPPINGS = ("env_config", "config", "cfg", "conf", "settings", "options", "params")
"""Names of arguments that are usually mappings, where nothing else says so."""


class Parameters(NamedTuple):
    """The arguments of an environment's constructor.

    Attributes:
        names: All of them, also those that it hands on to its base classes.
        required: Those without a default, and for each whether it is a mapping.
        is_open: Whether it takes any further ones.
    """

    names: tuple[str, ...]
    required: Mapping[str, bool]
    is_open: bool


def explain_failed_make(spec: EnvSpec, error: Exception, before: BaseException | None) -> ConfigError:
    """Make the error for an environment that its constructor, or Gymnasium for it, has refused to make.

    Args:
        spec: The environment.
        error: The exception.
        before: The exception that was handled when it was raised.
    """
    from gymnasium.envs.registration import registry

    of_class = find_class(spec.id)
    entry = of_class or registry.get(spec.id.rpartition(":")[2])
    point = load_entry_point(entry) if entry else None
    if (kind := find_refused(error)) is not None:
        return make_foreign_error(spec, kind, point)
    # Gymnasium raises a new TypeError from a constructor's own, whose traceback has the constructor's lines.
    if isinstance(error, TypeError) and isinstance(before, TypeError) and not find_place(error):
        error = before
    words, parameters = describe_exception(error), read_parameters(point) if point else None
    registered = entry.kwargs if entry else {}
    if parameters and isinstance(error, TypeError):
        given = {**spec.kwargs, **spec.per_copy}
        passed = [name for name in given if name not in list_makes_own()]
        unknown = next((name for name in passed if name not in parameters.names and not parameters.is_open), None)
        if unknown is not None:
            return _make_unknown_error(spec, unknown, parameters, words)
        missing = {name: of for name, of in parameters.required.items() if name not in {**registered, **given}}
        if missing:
            return _make_missing_error(spec, missing)
    fault = make_fault(error, "make")
    if (refusal := make_file_error(spec.kwargs, error, fault.problem)) is not None:
        return refusal
    more = f", **{dict(spec.kwargs)}" if spec.kwargs else ""
    code = f'import gymnasium; gymnasium.make("{spec.id}"{more})'
    if of_class:
        module, _, name = spec.id.rpartition(":")
        code = f"from {module} import {name}; {name}({more.removeprefix(', ')})"
    return ConfigError(
        "env.id",
        spec.id,
        f"{f'with env.kwargs={spell(spec.kwargs)}' if spec.kwargs else ''}: {fault.problem}",
        fault.allowed,
        suggest_array(error, spec.kwargs)
        or f"correct it, or start what it needs; python -c {shlex.quote(code)} shows where it fails",
    )


def make_file_error(arguments: Mapping[str, Any], error: BaseException | None, problem: str) -> ConfigError | None:
    """Make the error for an argument that is a relative path, of which the working directory has no file; else None.

    Args:
        arguments: Those of the environment.
        error: What its constructor has raised.
        problem: The same as the door says it.
    """
    if not isinstance(error, FileNotFoundError):
        return None
    texts = [(name, value) for name, value in flatten_settings(arguments) if isinstance(value, str)]
    if error.filename is None:  # NumPy's own, for example, has the file in its words alone.
        words = str(error)
        named = [(name, text) for name, text in texts if Path(text).suffix and text in words and not exists(text)]
    else:
        named = [(name, text) for name, text in texts if text == error.filename]
    if not named or Path(named[0][1]).is_absolute():
        return None
    key, path = f"env.kwargs.{named[0][0]}", Path(named[0][1])
    return ConfigError(
        key,
        str(path),
        f": {problem}; it was looked for in {Path.cwd()}",
        "a path that exists wherever the environment is made",
        f"+{key}={shlex.quote(f'/absolute/path/of/{path.name}')}, or the same command in the folder that has it",
    )


def load_entry_point(entry: Any) -> Any:
    """Return what makes single copies of a registered id; None if there is nothing, or if it cannot be imported."""
    from gymnasium.envs.registration import load_env_creator

    point = entry.entry_point
    try:
        return load_env_creator(point) if isinstance(point, str) else point
    except Exception:  # Whatever its module raises, which is why the environment could not be made.
        return None


def read_parameters(point: Callable[..., Any]) -> Parameters | None:
    """Return the arguments of a class or function that makes an environment; None if nothing says them."""
    makers: list[Any] = [point]
    if is_class := isinstance(point, type):
        makers = [vars(cls)["__init__"] for cls in point.__mro__[:-1] if "__init__" in vars(cls)]
    names: list[str] = []
    required: dict[str, bool] = {}
    is_open = bool(makers)
    for maker in makers:
        try:
            parameters = list(inspect.signature(maker).parameters.values())[is_class:]
        except (TypeError, ValueError):  # It is written in C, for example.
            return None
        named = [each for each in parameters if each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)]
        if maker is makers[0]:
            required = {each.name: _is_mapping(each) for each in named if each.default is each.empty}
        names += [each.name for each in named]
        is_open = any(each.kind is each.VAR_KEYWORD for each in parameters)
        if not is_open:
            break
    return Parameters(tuple(dict.fromkeys(names)), required, is_open)


def list_makes_own() -> tuple[str, ...]:
    """List the arguments that ``gymnasium.make`` takes for itself."""
    import gymnasium

    return tuple(inspect.signature(gymnasium.make).parameters)


def _is_mapping(parameter: inspect.Parameter) -> bool:
    """Return whether an argument is a mapping, by its annotation or else by its name."""
    annotation = parameter.annotation
    if annotation is parameter.empty:
        return parameter.name in MAPPINGS
    return any(word in str(annotation).lower() for word in ("dict", "mapping", "envcontext"))


def _make_unknown_error(spec: EnvSpec, name: str, parameters: Parameters, words: str) -> ConfigError:
    group = "env.per_copy" if name in spec.per_copy else "env.kwargs"
    value, close = {**spec.kwargs, **spec.per_copy}[name], nearest(name, parameters.names)
    fix = f"~{group}.{name}"
    if close and close not in spec.kwargs:
        fix = f"+{group}.{close}={spell(value)} in its place; {fix} leaves it out"
    allowed = choices(name, parameters.names) if parameters.names else "no argument, as its constructor has none"
    return ConfigError(f"{group}.{name}", value, f"of {spec.id}: {words}", allowed, fix)


def _make_missing_error(spec: EnvSpec, missing: Mapping[str, bool]) -> ConfigError:
    values = {name: "{}" if is_mapping else "..." for name, is_mapping in missing.items()}
    if len(values) == 1:
        ((name, value),) = values.items()
        fix = f"+env.kwargs.{name}={value}"
        fix = f"'{fix}'" if value == "{}" else fix
    else:
        typed = {name: spell(value) for name, value in spec.kwargs.items()} | values
        fix = f"'env.kwargs={{{', '.join(f'{name}: {value}' for name, value in typed.items())}}}'"
    return ConfigError(
        "env.id",
        spec.id,
        f": its constructor needs {', '.join(values)}",
        "numbers, text, lists and mappings; an object, such as a table, is made by a function of yours that makes the "
        "environment with it: gymnasium.register('Name-v0', entry_point=make_env)",
        fix,
    )


def find_refused(error: BaseException) -> type | None:
    """Return the class of what an entry point has made, if ``gymnasium.make`` refused it as no environment; else None.

    Only the function's own variable has it (Gymnasium 1.2).
    """
    import gymnasium

    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    if frame.f_code is not gymnasium.make.__code__ or "env" not in frame.f_locals:
        return None
    made = frame.f_locals["env"]
    if isinstance(made, gymnasium.Env):  # It was refused for another reason, such as what its property `spec` gives.
        return None
    is_pettingzoo = type(made).__module__.partition(".")[0] == "pettingzoo"
    return type(made.unwrapped if is_pettingzoo else made)


def make_foreign_error(spec: EnvSpec, kind: type, maker: Any = None) -> ConfigError:
    """Make the error for what is made where an environment of one agent is wanted, and is another thing.

    Args:
        spec: What was typed.
        kind: The class of what is made.
        maker: The function that makes it; None or the class itself where no function does.
    """
    function = "" if maker is None or isinstance(maker, type) else getattr(maker, "__name__", spec.id)
    name, by = kind.__name__, f", which {function} returns," if function else ""
    if is_rllib_class(kind) or any(cls.__module__.partition(".")[0] == "pettingzoo" for cls in kind.__mro__):
        allowed = "an environment of one agent here; with env=pettingzoo, several agents that act at the same time"
        fix = f"env=pettingzoo env.id={kind.__module__}:{name}"
        if kind.__qualname__ != name:
            fix = f"{fix}, with class {name} at the top of that module"
        return ConfigError("env.id", spec.id, f": {name}{by} is an environment of several agents", allowed, fix)
    fix = f"class {name}(gymnasium.Env): in {kind.__module__}"
    if function:
        fix = f"a class MyEnv(gymnasium.Env), of which {function} returns an instance"
    if any(cls.__module__.partition(".")[0] == "gym" for cls in kind.__mro__):
        fix += ", with import gymnasium for the old gym; its reset returns observation and info, its step five values"
    allowed = "an environment that derives from gymnasium.Env; with env=pettingzoo, a pettingzoo.ParallelEnv"
    return ConfigError("env.id", spec.id, f": {name}{by} does not derive from gymnasium.Env", allowed, fix)
