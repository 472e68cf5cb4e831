"""Find the arguments of an algorithm file by name, check their values, and insert sampled values."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from typing import Any

from rltune.config.bounds import Bounds
from rltune.config.capabilities import UNKNOWN, Capabilities, find_capabilities
from rltune.config.validation import check_normalise
from rltune.errors import ConfigError, choices, nearest
from rltune.formatting import format_value
from rltune.search.dimensions import KINDS, guess_kind
from rltune.search.space import Space, parse_space

Path = tuple[str, ...]  # The nested keys of an argument in an algo file, such as ("training", "lr").
NORMALISE = "normalise"
META = ("name", "class", NORMALISE)
_REPLAY = ("training", "replay_buffer_config")

_COUNT = Bounds(1)
_WEIGHT = Bounds(0)
_RATE = Bounds(0, exclusive_minimum=True, example=3e-4)
# Bounds of the arguments of `training` that have the same meaning in every algorithm. RLlib checks few of them.
TRAINING_BOUNDS = {
    "gamma": Bounds(0, 1, example=0.99),
    "lambda_": Bounds(0, 1, example=0.95),
    "tau": Bounds(0, 1, example=0.005),
    **dict.fromkeys(("lr", "actor_lr", "critic_lr", "value_lr"), _RATE),
    "alpha_lr": Bounds(0, example=3e-4),  # Zero is allowed: it keeps SAC's temperature at its initial value.
    "initial_alpha": Bounds(0, exclusive_minimum=True, example=1),
    "clip_param": Bounds(0, math.inf, exclusive_minimum=True, example=0.2),
    "vf_clip_param": Bounds(0, math.inf, exclusive_minimum=True, example=10),
    "grad_clip": Bounds(0, math.inf, exclusive_minimum=True, example=0.5),
    **dict.fromkeys(("entropy_coeff", "vf_loss_coeff", "kl_coeff", "beta"), _WEIGHT),
    **dict.fromkeys(("num_epochs", "minibatch_size", "train_batch_size", "train_batch_size_per_learner"), _COUNT),
}


def list_arguments(algo: Mapping[str, Any]) -> dict[str, list[Path]]:
    """List the arguments of an algo file by name, each with the key paths at which it occurs."""
    arguments: dict[str, list[Path]] = {}
    for path in _walk({key: value for key, value in algo.items() if key not in META}, ()):
        if len(path) > 1:
            arguments.setdefault(path[-1], []).append(path)
    return arguments | ({NORMALISE: [(NORMALISE,)]} if NORMALISE in algo else {})


def _walk(node: Mapping[str, Any], above: Path) -> Iterator[Path]:
    for key, value in node.items():
        yield (*above, str(key))
        if isinstance(value, Mapping):
            yield from _walk(value, (*above, str(key)))


def locate_argument(algo: Mapping[str, Any], name: str, key: str | None = None) -> Path:
    """Find the key path of an argument in an algo file.

    Args:
        name: The argument's name, or the last parts of its path joined by dots if the name is ambiguous.
        key: How the user wrote it, for the error; None is ``space.<name>``.

    Raises:
        ConfigError: The argument does not exist, or the name is ambiguous.
    """
    parts = tuple(name.split("."))
    paths = [path for path in list_arguments(algo).get(parts[-1], []) if path[-len(parts) :] == parts]
    if len(paths) == 1:
        return paths[0]
    key = key or f"space.{name}"
    if not paths:
        add = f"+algo.{NORMALISE}=[]" if name == NORMALISE else f"+algo.training.{name}=..."
        raise ConfigError(
            f"{key}: algo '{algo['name']}' has no argument '{name}'",
            choices(name, list_arguments(algo)),
            f"add it to the algo first, such as {add}, or drop it with ~{key}",
        )
    candidates = ", ".join(".".join(path) for path in paths)
    raise ConfigError(f"{key}: '{name}' is ambiguous", candidates, f"write it as space.{'.'.join(paths[0][-2:])}")


def build_search_space(algo: Mapping[str, Any], raw: Mapping[str, Any]) -> Space:
    """Build the search space from a ``space`` group, whose conditions may also name arguments of the algo file.

    Raises:
        ConfigError: As `rltune.search.space.parse_space`, or an argument is misspelt.
    """
    arguments = list_arguments(algo)
    for name, form in raw.items():
        if str(name).rpartition(".")[2] not in arguments and (close := nearest(str(name), arguments)):
            raise ConfigError(
                f"space.{name}={format_value(form)}: algo '{algo['name']}' has no argument '{name}'",
                choices(str(name), arguments),
                f"space.{close}={format_value(form)}",
            )
    unambiguous = tuple(name for name, paths in arguments.items() if len(paths) == 1)
    return parse_space(raw, values_of(algo, unambiguous))


def values_of(algo: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the values that the named arguments have in the algo file."""
    return {name: _read(algo, locate_argument(algo, name)) for name in names}


def _read(algo: Mapping[str, Any], path: Path) -> Any:
    node: Any = algo
    for part in path:
        node = node[part]
    return node


def check_values(algo: Mapping[str, Any], space: Space) -> None:
    """Refuse arguments of the algo file that RLlib ignores, and `training` values or search ranges out of bounds.

    Raises:
        ConfigError: Names the first of them, what is allowed and what to type.
    """
    check_unread(algo, space, find_capabilities(algo) or UNKNOWN)
    for name, value in (algo.get("training") or {}).items():
        check_argument(f"algo.training.{name}", value)
    for name, value in space.fixed.items():
        check_argument(f"space.{name}", value)
    for dimension in space.dimensions:
        for value in dimension.args if dimension.kind == "choice" else dimension.ends():
            check_argument(f"space.{dimension.name}", value, dimension)


def check_argument(key: str, value: Any, written: Any = None) -> None:
    """Refuse a value outside of the bounds that `TRAINING_BOUNDS` has for its argument.

    Args:
        key: The setting, whose last part is the argument's name. Arguments without bounds are not checked.
        value: A fixed value or an end of a range. The numbers in a schedule of RLlib's are not checked.
        written: The whole range, if ``value`` is an end of it.

    Raises:
        ConfigError: The value lies outside of the bounds, or is a list of numbers, which is neither a schedule nor a
            range.
    """
    if key == f"space.{NORMALISE}":
        check_normalise(key, value)
        return
    bounds = TRAINING_BOUNDS.get(key.rpartition(".")[2])
    if bounds is None or isinstance(value, dict):
        return
    if not isinstance(value, list | tuple):
        bounds.check(key, value, written)
    elif written is None and all(isinstance(part, int | float) for part in value):
        spelled = ",".join(f"{part:.10g}" for part in value)
        name = key.rpartition(".")[2]
        raise ConfigError(
            f"{key}=[{spelled}]: a list of numbers without a kind is no range",
            f"[kind, ...] with one of: {', '.join(KINDS)}; a number; or a schedule, [[0, first], [steps, last]]",
            f"space.{name}=[{guess_kind(value)},{spelled}]" if value else f"space.{name}={bounds.suggest(spelled)}",
        )


def check_unread(algo: Mapping[str, Any], space: Space, row: Capabilities) -> None:
    """Refuse arguments of the algo file, fixed or searched, that RLlib 2.60 accepts but ignores.

    Args:
        algo: The algo file. It contains the arguments that are searched, too.

    Raises:
        ConfigError: Names the first of them, and what to use instead.
    """
    instead = {unread.path: unread.instead for unread in row.unread}
    searched = {locate_argument(algo, name): name for name in space.names}
    for name, paths in list_arguments(algo).items():
        for path in paths:
            dotted = ".".join(path)
            what = f"algo.{dotted}={_read(algo, path)}: RLlib 2.60 accepts this, but it has no effect on a sweep"
            fix = f"remove it: ~algo.{dotted}" + (f" ~space.{searched[path]}" if path in searched else "")
            if dotted in instead:
                raise ConfigError(what, instead[dotted], fix)
            if path == (*_REPLAY, name) and row.replay_settings and name not in row.replay_settings:
                buffer = str(_read(algo, _REPLAY).get("type") or "")
                if "." not in buffer and ":" not in buffer:  # A user's own buffer class may have other arguments.
                    raise ConfigError(what, choices(name, row.replay_settings), fix)


def widest_layer(algo: Mapping[str, Any]) -> int:
    """Return the number of units of the widest hidden layer in the algo file; 0 if it has none."""
    model = (algo.get("rl_module") or {}).get("model_config") or {}
    layers = [model.get("fcnet_hiddens") or [], model.get("head_fcnet_hiddens") or []]
    return max((units for sizes in layers for units in sizes if isinstance(units, int)), default=0)


def count_env_runners(algo: Mapping[str, Any]) -> int:
    """Return the number of remote sampling processes in the algo file."""
    return int((algo.get("env_runners") or {}).get("num_env_runners") or 0)


def count_learners(algo: Mapping[str, Any]) -> int:
    """Return the number of remote learners in the algo file; 0 means that the trial's own process learns."""
    return int((algo.get("learners") or {}).get("num_learners") or 0)


def count_gpus(algo: Mapping[str, Any], per_trial: float, setting: str) -> float:
    """Return the number of GPUs for each trial, from ``resources`` or from the learners in the algo file.

    Args:
        per_trial: The number in ``resources``; 0 if it has none.
        setting: How that number was typed, for the error.

    Raises:
        ConfigError: Both are given, and differ.
    """
    per_learner = float((algo.get("learners") or {}).get("num_gpus_per_learner") or 0)
    of_learners = per_learner * max(1, count_learners(algo))
    if of_learners and per_trial and of_learners != per_trial:
        raise ConfigError(
            f"algo.learners.num_gpus_per_learner={per_learner:g} gives a trial {of_learners:g} GPUs, but "
            f"{setting} gives it another number",
            "one of the two settings; the learners of a trial share its GPUs evenly",
            "~algo.learners.num_gpus_per_learner",
        )
    return per_trial or of_learners


def apply_params(algo: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the algo file with the sampled values in it."""
    merged = copy.deepcopy(dict(algo))
    for name, value in params.items():
        *sections, last = locate_argument(algo, name)
        node = merged
        for part in sections:
            node = node[part]
        node[last] = value
    return merged
