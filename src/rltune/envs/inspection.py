"""Look into an environment that was built, without stepping it: its wrappers, its time limit, its source."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium import wrappers
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec
from gymnasium.wrappers import vector

from rltune.envs.spec import EnvSpec
from rltune.errors import ABSENT, ConfigError

NORMALISING: dict[str, tuple[Any, ...]] = {
    "observations": (wrappers.NormalizeObservation, vector.NormalizeObservation),
    "rewards": (wrappers.NormalizeReward, vector.NormalizeReward),
}
"""Gymnasium's wrappers with running statistics, by what `algo.normalise` calls it."""

MAX_PARTS = 100  # How much of a list is looked at: a list of data may have millions of elements.

VERSIONED = ("rltune.", "gymnasium.core.", "gymnasium.utils.", "gymnasium.wrappers.")
"""Modules that a sweep's record has by their package's version."""


def list_layers(env: Any) -> Iterator[Any]:
    """Yield an environment and all that it is made of, from outside: wrappers, and what it keeps in attributes."""
    waiting, seen = [env], set[int]()
    while waiting:
        layer = waiting.pop(0)
        if id(layer) in seen:
            continue
        seen.add(id(layer))
        yield layer
        for value in list(vars(layer).values()) if hasattr(layer, "__dict__") else ():
            parts = value if isinstance(value, list | tuple) else value.values() if isinstance(value, dict) else [value]
            first = itertools.islice(parts, MAX_PARTS)
            waiting += [part for part in first if isinstance(part, gymnasium.Env | gymnasium.vector.VectorEnv)]


def check_normalising(env: Any, spec: EnvSpec) -> None:
    """Refuse Gymnasium's normalising wrappers, whose running statistics nobody keeps.

    Each copy would have its own statistics, checkpoints and policies have none, and returns would be of normalised
    rewards. Wrappers whose statistics are fixed are no such ones.

    Raises:
        ConfigError: Names the wrapper, and the setting that normalises instead.
    """
    for layer in list_layers(env):
        for part, kinds in NORMALISING.items():
            if not isinstance(layer, kinds) or not getattr(layer, "update_running_mean", True):
                continue
            named = [str(wrapper.get("entry_point", "")) for wrapper in spec.wrappers]
            is_typed = any(name.rpartition(":")[2] == type(layer).__name__ for name in named)
            key, value, place = ("env.wrappers", ABSENT, ":") if is_typed else ("env.id", spec.id, "has the wrapper")
            raise ConfigError(
                key,
                value,
                f"{place} {type(layer).__name__} normalises {part} by statistics that nobody keeps",
                "wrappers without running statistics; rltune keeps those of its own normalising, and returns stay true",
                f"leave it out, and algo.normalise=[{part}], or space.normalise=[{part}] if that is searched",
            )


def find_time_limit(env: Any) -> int | None:
    """Return after how many steps Gymnasium truncates an episode, with all wrappers; None without a limit."""
    limits = []
    for layer in list_layers(env):
        if isinstance(layer, wrappers.TimeLimit):
            if not isinstance(layer.unwrapped.spec, GymnasiumSpec):  # The layer says its limit in this specification.
                layer.unwrapped.spec = GymnasiumSpec("Inner-v0")
            limits.append(layer.spec.max_episode_steps if layer.spec else None)
    return min((int(limit) for limit in limits if limit), default=None)


def digest_sources(env: Any) -> dict[str, str]:
    """Return a digest of each source file that the environment comes from, by the name of its module.

    These are the modules of its class, its wrappers and their bases, and all that were loaded from files of the user's,
    that is from outside of Python's own folders. An extension module, or a module in an archive, has no source.
    """
    folders = ("stdlib", "platstdlib"), ("purelib", "platlib")
    python, packages = (tuple(f"{sysconfig.get_paths()[name]}/" for name in names) for names in folders)
    classes = {base.__module__ for layer in list_layers(env) for base in type(layer).__mro__}
    digests = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None) or ""
        is_package = file.startswith(packages) or "/dist-packages/" in file or "/site-packages/" in file
        if not file.endswith(".py") or name in ("__main__", "__mp_main__") or f"{name}.".startswith(VERSIONED):
            continue
        if (file.startswith(python) or is_package) and not (is_package and name in classes):
            continue
        with contextlib.suppress(OSError):
            digests[name] = hashlib.sha256(Path(file).read_bytes()).hexdigest()[:12]
    return digests
