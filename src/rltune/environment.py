"""One environment, from its config to Gymnasium: single, vectorised, and under a name that RLlib knows.

The same specification builds it in the trial, in an evaluation and in a downstream script. Runs anywhere;
gymnasium is imported inside the functions, so that a typing error on the command line need not wait for it.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import TYPE_CHECKING, Any

from rltune.errors import ConfigError, nearest

if TYPE_CHECKING:
    import gymnasium


@dataclass(frozen=True)
class EnvSpec:
    """An environment that can be built again elsewhere; plain values only.

    Attributes:
        id: Gymnasium id; ``module:Name-v0`` imports the module first, as Gymnasium does.
        kwargs: Arguments of the environment.
        wrappers: Applied in order, each ``{"entry_point": "module:Class", "kwargs": {...}}``.
    """

    id: str
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    wrappers: tuple[Mapping[str, Any], ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"id": self.id, "kwargs": dict(self.kwargs), "wrappers": [dict(w) for w in self.wrappers]}


def spec_of(config: Any) -> EnvSpec:
    """The specification inside a config (mapping or dataclass with id, kwargs, wrappers)."""
    if isinstance(config, EnvSpec):
        return config
    raw = asdict(config) if is_dataclass(config) and not isinstance(config, type) else dict(config)
    return EnvSpec(raw["id"], raw.get("kwargs") or {}, tuple(raw.get("wrappers") or ()))


def make(spec: EnvSpec | Mapping[str, Any], **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """Build one environment with its wrappers.

    Args:
        spec: What to build.
        kwargs: Further arguments of the environment, such as ``render_mode``.
    """
    spec = spec_of(spec)
    return _wrapped(_bare(spec, **kwargs), spec)


def _bare(spec: EnvSpec, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    import gymnasium

    return gymnasium.make(spec.id, **{**spec.kwargs, **kwargs})


def _wrapped(env: Any, spec: EnvSpec) -> Any:
    for wrap in wrappers_of(spec):
        env = wrap(env)
    return env


def make_vec(
    spec: EnvSpec | Mapping[str, Any], num_envs: int, **kwargs: Any
) -> gymnasium.vector.VectorEnv[Any, Any, Any]:
    """Build ``num_envs`` copies that step together in this process, wrappers included."""
    import gymnasium

    spec = spec_of(spec)
    return gymnasium.vector.SyncVectorEnv([functools.partial(make, spec, **kwargs) for _ in range(num_envs)])


def wrappers_of(spec: EnvSpec) -> list[Callable[[Any], Any]]:
    """The wrappers as functions of an environment.

    Raises:
        ConfigError: An entry has no entry point, or it names no wrapper.
    """
    return [_wrapper(entry, number) for number, entry in enumerate(spec.wrappers)]


def _wrapper(entry: Any, number: int) -> Callable[[Any], Any]:
    import gymnasium

    key = f"env.wrappers[{number}]"
    usage = "{entry_point: 'module:Class', kwargs: {...}}"
    if not isinstance(entry, Mapping) or set(entry) - {"entry_point", "kwargs"} or "entry_point" not in entry:
        raise ConfigError(f"{key}={entry} is no wrapper", usage, "see gymnasium.wrappers for names")
    module, _, name = str(entry["entry_point"]).rpartition(":")
    try:
        cls = getattr(importlib.import_module(module or "gymnasium.wrappers"), name)
    except (ImportError, AttributeError):
        known = [n for n in dir(gymnasium.wrappers) if n[0].isupper()]
        close = nearest(name, known)
        raise ConfigError(
            f"{key}: cannot import {entry['entry_point']}",
            f"an importable class, given as {usage}",
            f"did you mean gymnasium.wrappers:{close}?" if close else "install its package",
        ) from None
    if not (isinstance(cls, type) and issubclass(cls, gymnasium.Wrapper)):
        # YAML must not be able to name any callable of any module.
        raise ConfigError(
            f"{key}: {entry['entry_point']} is no gymnasium.Wrapper",
            usage,
            "see gymnasium.wrappers for names",
        )
    return functools.partial(cls, **dict(entry.get("kwargs") or {}))


def check(spec: EnvSpec) -> None:
    """Build it once, so that a wrong id, argument or wrapper is known before the first trial.

    Raises:
        ConfigError: With the nearest id, or the extra to install.
    """
    module, colon, _ = spec.id.rpartition(":")
    if colon and not module:
        raise ConfigError(
            f"env.id={spec.id} names no module before its colon", "Name-v0 or module:Name-v0", "env.id=CartPole-v1"
        )
    if module:
        _import_module(module, spec.id)
    env = _checked_bare(spec)
    try:
        env = _wrapped(env, spec)
    except ConfigError:
        raise
    except Exception as error:  # a wrapper raises whatever it likes
        raise ConfigError(
            f"env.wrappers of {spec.id}: {_named(error)}", "arguments that the wrappers take", "env.wrappers=[]"
        ) from None
    env.close()


def _import_module(module: str, env_id: str) -> None:
    try:
        importlib.import_module(module)
    except Exception as error:
        package = module.split(".")[0].replace("_", "-")
        raise ConfigError(
            f"env.id={env_id}: module '{module}' cannot be imported ({error})",
            "an installed package",
            f"pip install {package}",
        ) from None


def _checked_bare(spec: EnvSpec) -> Any:
    import gymnasium

    try:
        return _bare(spec)
    except gymnasium.error.DependencyNotInstalled as error:
        raise ConfigError(
            f"env.id={spec.id} needs a package: {error}", "its extra installed", _extra(spec.id)
        ) from None
    except gymnasium.error.NamespaceNotFound as error:
        fix = "pip install 'rltune[atari]'" if spec.id.startswith("ALE/") else "install the package that registers it"
        raise ConfigError(
            f"env.id={spec.id}: {_named(error)}", "an installed package, or module:Name-v0", fix
        ) from None
    except gymnasium.error.Error as error:  # unknown, or no id at all
        close = nearest(spec.id.rpartition(":")[2], gymnasium.envs.registration.registry)
        raise ConfigError(
            f"env.id={spec.id}: {_named(error)}",
            f"did you mean '{close}'?" if close else "a registered Gymnasium id, or module:Name-v0",
            f"env.id={close or 'CartPole-v1'}",
        ) from None
    except Exception as error:  # an environment raises whatever it likes
        raise ConfigError(
            f"env.id={spec.id} with env.kwargs={dict(spec.kwargs)}: {_named(error)}",
            "arguments that the environment takes",
            "env.kwargs={}",
        ) from None


def _named(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__


def _extra(env_id: str) -> str:
    """What to install for an environment whose package is missing."""
    import gymnasium

    entry = gymnasium.envs.registration.registry.get(env_id)
    point = str(entry.entry_point) if entry else ""
    extra = next((name for name in ("box2d", "mujoco", "atari") if name in point), None)
    return f"pip install 'rltune[{extra}]'" if extra else "install the package that the message names"


def rllib_name(spec: EnvSpec) -> str:
    """The name under which RLlib builds this environment.

    A plain Gymnasium id keeps its name, so that its native vector version can be used; anything else is registered
    with Ray under a name that holds the whole specification.
    """
    if not spec.wrappers:
        module, _, _ = spec.id.rpartition(":")
        if module:
            importlib.import_module(module)
        return spec.id
    from ray.tune.registry import register_env

    name = "rltune:" + json.dumps(spec.to_dict(), sort_keys=True)
    register_env(name, lambda context: make(spec, **dict(context)))
    return name
