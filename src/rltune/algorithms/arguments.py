"""Find the arguments of an algorithm file by name, check their values, and insert sampled values."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rltune.algorithms.rllib_source import MODEL_CONFIG, REPLAY_MODULE, list_keywords, list_whole_numbers
from rltune.config.bounds import Bounds
from rltune.config.capabilities import (
    REPLAY_BUFFERS,
    RESOURCES,
    SCHEDULED,
    UNKNOWN,
    Capabilities,
    Switch,
)
from rltune.config.names import conf_dir
from rltune.config.settings_file import load_settings
from rltune.config.validation import check_normalise
from rltune.envs.searched import ENV, TRAIN_ENV, is_of_env, list_env_arguments, require_env_argument
from rltune.envs.spec import spec_of
from rltune.errors import ABSENT, ConfigError, choices, nearest, spell
from rltune.formatting import flatten_settings, format_value
from rltune.search.conditions import split_condition
from rltune.search.dimensions import (
    KINDS,
    guess_kind,
    holds_float,
    make_mapping_error,
    round_all,
    translate_mapping,
)
from rltune.search.space import Space, parse_space

Path = tuple[str, ...]  # The nested keys of an argument in an algo file, such as ("training", "lr").
NORMALISE = "normalise"
META = ("name", "class", NORMALISE)
ENCODER, ENCODER_KWARGS, MODULE_CLASS = "encoder", "encoder_kwargs", "module_class"
"""The arguments of ``rl_module`` for an extractor of the user's, what its constructor takes, and a whole RLModule."""
_REPLAY = ("training", "replay_buffer_config")

_COUNT = Bounds(1)
_WEIGHT = Bounds(0)
_RATE = Bounds(0, exclusive_minimum=True, example=3e-4)
# The sections whose arguments are checked, and the bounds of those that have the same meaning in every algorithm. RLlib
# checks few of them.
CHECKED = ("training", "env_runners", "learners", "framework")
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
    "num_envs_per_env_runner": _COUNT,
    **dict.fromkeys(("num_env_runners", "num_learners"), _WEIGHT),
    **dict.fromkeys(("num_epochs", "minibatch_size", "train_batch_size", "train_batch_size_per_learner"), _COUNT),
}

# The values of arguments that are words, and those without which RLlib 2.60 does not train.
TRAINING_CHOICES: Mapping[str, tuple[Any, ...]] = {
    "td_error_loss_fn": ("huber", "mse"),
    "grad_clip_by": ("value", "norm", "global_norm"),
    "use_gae": (True,),
    "vtrace": (True,),
    "batch_mode": ("truncate_episodes", "complete_episodes"),
    "framework": ("torch",),
}


def name_arguments(algo: Mapping[str, Any], env: Any) -> dict[str, Any]:
    """Return an algo file with the environment's arguments beside its sections: all that a space may name.

    Args:
        algo: The algo file.
        env: The environment, as `rltune.envs.spec.spec_of` takes it.
    """
    return {**algo, **list_env_arguments(spec_of(env))}


def list_arguments(algo: Mapping[str, Any]) -> dict[str, list[Path]]:
    """List the arguments of an algo file by name, each with the key paths at which it occurs."""
    arguments: dict[str, list[Path]] = {}
    for path in _walk({key: value for key, value in algo.items() if key not in (*META, ENV, TRAIN_ENV)}, ()):
        if len(path) > 1:
            arguments.setdefault(path[-1], []).append(path)
    return arguments | ({NORMALISE: [(NORMALISE,)]} if NORMALISE in algo else {})


def _walk(node: Mapping[str, Any], above: Path) -> Iterator[Path]:
    for key, value in node.items():
        yield (*above, str(key))
        # The overrides of single modules repeat arguments of the whole algorithm, and are not searched. Those of an
        # extractor have names of the user's choice, which are searched as encoder_kwargs.<name>.
        if isinstance(value, Mapping) and key not in ("algorithm_config_overrides_per_module", ENCODER_KWARGS):
            yield from _walk(value, (*above, str(key)))


def locate_argument(
    algo: Mapping[str, Any], name: str, key: str | None = None, arguments: Mapping[str, list[Path]] | None = None
) -> Path:
    """Find the key path of an argument in an algo file.

    Args:
        algo: The algo file; an environment's arguments are found in one of `name_arguments`.
        name: The argument's name, or the last parts of its path joined by dots if the name is ambiguous.
        key: How the user wrote it, for the error; None is ``space.<name>``.
        arguments: `list_arguments` of the file, for who locates several; None lists them anew.

    Raises:
        ConfigError: The argument does not exist, or the name is ambiguous.
    """
    parts = tuple(name.split("."))
    if is_of_env(name):
        require_env_argument(algo, name, key or f"space.{name}")
        return parts
    if parts[0] == ENCODER_KWARGS and len(parts) > 1 and ENCODER_KWARGS in (algo.get("rl_module") or {}):
        return ("rl_module", *parts)
    arguments = list_arguments(algo) if arguments is None else arguments
    paths = [path for path in arguments.get(parts[-1], []) if path[-len(parts) :] == parts]
    if len(paths) == 1:
        return paths[0]
    key = key or f"space.{name}"
    if not paths:
        is_known = name in (list_keywords(str(algo["class"]), "training") or [name])
        add = f"+algo.{NORMALISE}=[]" if name == NORMALISE else f"+algo.training.{name}=null"
        drop = f"drop it: ~{key}" if key.startswith("space.") else f"leave {name} out"
        if len(parts) == 1 and name.isidentifier():
            of_env = f"{ENV}.kwargs.{name}"
            is_in_file = name in (algo.get(ENV) or {}).get("kwargs", {})
            value = "" if is_in_file else f" with +{of_env}=VALUE"
            drop += f"; an argument of the environment is '+space.{of_env}=[...]'{value}"
        raise ConfigError(
            key,
            ABSENT,
            f": algo '{algo['name']}' has no argument '{name}'",
            choices(name, arguments),
            f"add it to the algo first: {add}, or {drop}" if is_known or name == NORMALISE else drop,
        )
    candidates = ", ".join(".".join(path) for path in paths)
    raise ConfigError(
        key, ABSENT, f": '{name}' is ambiguous", candidates, f"write it as space.{'.'.join(paths[0][-2:])}"
    )


def build_search_space(algo: Mapping[str, Any], raw: Mapping[str, Any]) -> Space:
    """Build the search space from a ``space`` group, whose conditions may also name arguments of the algo file.

    Raises:
        ConfigError: As `rltune.search.space.parse_space`, or an argument is misspelt, or its values would need
            different shares of the machine.
    """
    _refuse_mappings(raw)
    arguments, raw = list_arguments(algo), dict(flatten_settings(raw))
    for name, form in raw.items():
        if is_of_env(name):
            require_env_argument(algo, name, f"space.{name}", form, _find_first_value(name, form))
        if is_of_env(name) or name.startswith(f"{ENCODER_KWARGS}."):
            continue
        if str(name).rpartition(".")[2] not in arguments and (close := nearest(str(name), arguments)):
            raise ConfigError(
                f"space.{name}",
                form,
                f": algo '{algo['name']}' has no argument '{name}'",
                choices(str(name), arguments),
                f"space.{close}={format_value(form)}",
            )
        if (path := ".".join(next(iter(arguments.get(str(name), ())), ()))) in RESOURCES:
            in_file = read_argument(algo, tuple(path.split(".")))
            raise ConfigError(
                f"space.{name}",
                form,
                ": all trials have the same share of the machine",
                "one value for all trials; rltune probe measures which is best here",
                f"algo.{path}={format_value(in_file if isinstance(form, list) else form)}",
            )
    unambiguous = tuple(name for name, paths in arguments.items() if len(paths) == 1)
    of_env = {
        name: value for root in (ENV, TRAIN_ENV) for name, value in flatten_settings(algo.get(root, {}), key=root)
    }
    return parse_space(raw, values_of(algo, unambiguous) | of_env)


def _find_first_value(name: str, form: Any) -> Any:
    """Return a value that a parameter of the space may have, for advice."""
    _, form = split_condition(name, form)
    return form[1] if isinstance(form, list | tuple) and len(form) > 1 and form[0] in KINDS else form


def _refuse_mappings(raw: Mapping[str, Any], above: str = "") -> None:
    """Refuse ranges in the form of other tools, ``{min: 0.1, max: 0.4}``, with what to type in their place."""
    for name, form in raw.items():
        is_listed = isinstance(form, list | tuple) and len(form) == 1  # As other advice has it typed.
        if isinstance(value := form[0] if is_listed else form, Mapping):
            if str(name) not in (ENCODER_KWARGS, "kwargs") and translate_mapping(value) is not None:
                raise make_mapping_error(f"{above}{name}", value)
            _refuse_mappings(value, f"{above}{name}.")


def values_of(algo: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """Return the values that the named arguments have in the algo file."""
    return {name: read_argument(algo, locate_argument(algo, name)) for name in names}


def read_argument(algo: Mapping[str, Any], path: Path, default: Any = None) -> Any:
    """Return the value at a key path of an algo file; ``default`` where the file has none."""
    node: Any = algo
    for part in path:
        if not isinstance(node, Mapping) or part not in node:
            return default
        node = node[part]
    return node


def check_values(algo: Mapping[str, Any], space: Space, row: Capabilities) -> None:
    """Refuse what RLlib ignores in the algo file, and `training` values or search ranges that it cannot train with.

    Args:
        algo: The algo file. It contains the arguments that are searched, too.
        space: The search space.
        row: The algorithm's features.

    Raises:
        ConfigError: Names the first of them, what is allowed and what to type.
    """
    check_unread(algo, space, row)
    _check_whole_numbers(algo, space, row)
    for key, value, written in _list_values(algo, space):
        name = key.rpartition(".")[2]
        check_argument(key, value, written)
        if _is_schedule(value) and name in (TRAINING_BOUNDS if row is UNKNOWN else algo.get("training") or {}):
            _check_schedule(key, value, algo)
        if row.replay_settings and name == "type":
            _check_replay_buffer(key, str(value))


def _list_values(algo: Mapping[str, Any], space: Space) -> Iterator[tuple[str, Any, Any]]:
    """List arguments and parameters of the space with their values, and ends of ranges with the whole range."""
    for section in CHECKED:
        for name, value in (algo.get(section) or {}).items():
            yield f"algo.{section}.{name}", value, None
    for name, value in (read_argument(algo, _REPLAY) or {}).items():
        yield f"algo.{'.'.join(_REPLAY)}.{name}", value, None
    for name, value in space.fixed.items():
        if not is_of_env(name):
            yield f"space.{name}", value, None
    for dimension in (each for each in space.dimensions if not is_of_env(each.name)):
        for value in space.list_marks(dimension.name):
            yield f"space.{dimension.name}", value, dimension.form


def _check_whole_numbers(algo: Mapping[str, Any], space: Space, row: Capabilities) -> None:
    """Refuse floats for arguments that RLlib's source annotates as integers, which would fail in some trial."""
    shipped = read_shipped(algo, row)
    parameters = {locate_argument(algo, name): name for name in space.names}
    dimensions = {dimension.name: dimension for dimension in space.dimensions}
    for path in (path for paths in list_arguments(algo).values() for path in paths):
        parameter, in_file = parameters.get(path, ""), read_argument(algo, path)
        dimension, fixed = dimensions.get(parameter), space.fixed.get(parameter)
        # What rltune ships as a float is one. So the source is read for few arguments.
        if isinstance(read_argument(shipped, path), float) or not (
            holds_float(in_file) or holds_float(fixed) or (dimension and not dimension.is_whole)
        ):
            continue
        if not _is_whole_number(algo, path):
            continue
        key, value, advised = f"algo.{'.'.join(path)}", in_file, format_value(round_all(in_file))
        if not holds_float(in_file):
            key, value, advised = f"space.{parameter}", fixed, format_value(round_all(fixed))
            if dimension:
                value, advised = dimension.form, spell(dimension.to_whole())
        raise ConfigError(
            key, value, f": {path[-1]} is a whole number", "a whole number, without a point", f"{key}={advised}"
        )


def _is_whole_number(algo: Mapping[str, Any], path: Path) -> bool:
    """Return whether an argument is annotated as a whole number in the source of the class that takes it."""
    *sections, name = path
    target = str(algo["class"])
    section: str | None = sections[0]
    if tuple(sections) == _REPLAY:
        target, section = str(read_argument(algo, (*_REPLAY, "type"))), "__init__"
        target = target.replace("ray.rllib.utils.replay_buffers.", "") if target.startswith("ray.") else target
        target = target if _is_own_class(target) else f"{REPLAY_MODULE}:{target}"
    elif sections == ["rl_module", "model_config"]:
        target, section = MODEL_CONFIG, None
    elif len(sections) != 1 or section == "rl_module":
        return False
    return ":" in target and name in list_whole_numbers(target, section)


def _is_schedule(value: Any) -> bool:
    """Return whether a value has the form of RLlib's schedules: [[step, value], [step, value], ...]."""
    pairs = value if isinstance(value, list | tuple) else ()
    return bool(pairs) and all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs)


def _check_schedule(key: str, value: Any, algo: Mapping[str, Any]) -> None:
    """Refuse a schedule for an argument of `training` that is the same over a whole trial."""
    name = key.rpartition(".")[2]
    if name not in SCHEDULED:
        able = [scheduled for scheduled in SCHEDULED if scheduled in (algo.get("training") or {})]
        raise ConfigError(
            key,
            value,
            f": RLlib 2.60 takes no schedule for {name}",
            f"one value for the whole trial; schedules are for {', '.join(able)}",
            f"{key}={value[0][1]}",
        )


def _check_replay_buffer(key: str, name: str) -> None:
    """Refuse RLlib's replay buffers that cannot store the episodes of one agent; a class of the user's may."""
    if not _is_own_class(name) and name.rpartition(".")[2] not in REPLAY_BUFFERS:
        raise ConfigError(
            key,
            name,
            ": RLlib 2.60 cannot train from this replay buffer",
            f"{choices(name, REPLAY_BUFFERS)}, or a class of your own, my_package.my_module.MyBuffer",
            f"{key}={REPLAY_BUFFERS[0]}",
        )


def _is_own_class(name: str) -> bool:
    """Return whether a replay buffer's name is that of a class of the user's, which may have its own arguments."""
    return ("." in name or ":" in name) and not name.startswith("ray.")


def check_argument(key: str, value: Any, written: Any = None) -> None:
    """Refuse a value outside of what `TRAINING_BOUNDS` or `TRAINING_CHOICES` has for its argument.

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
    if f".{ENCODER_KWARGS}." in key:
        return
    words = TRAINING_CHOICES.get(key.rpartition(".")[2])
    if words and value is not None and value not in words:
        known = [spell(word) for word in words]
        raise ConfigError(key, value, "is unknown", choices(spell(value), known), f"{key}={known[0]}")
    bounds = TRAINING_BOUNDS.get(key.rpartition(".")[2])
    if bounds is None or isinstance(value, dict):
        return
    if not isinstance(value, list | tuple):
        bounds.check(key, value, written)
    elif written is None and all(isinstance(part, int | float) for part in value):
        spelled = ",".join(f"{part:.10g}" for part in value)
        name = key.rpartition(".")[2]
        raise ConfigError(
            key,
            value,
            ": a list of numbers without a kind is no range",
            f"[kind, ...] with one of: {', '.join(KINDS)}; a number"
            + ("; or a schedule, [[0, first], [steps, last]]" if name in SCHEDULED else ""),
            f"space.{name}=[{guess_kind(value)},{spelled}]" if value else f"space.{name}={bounds.suggest(spelled)}",
        )


def check_unread(
    algo: Mapping[str, Any], space: Space, row: Capabilities, spaces: Mapping[str, bool] | None = None
) -> None:
    """Refuse arguments, fixed or searched, that RLlib 2.60 accepts but reads in no trial of the sweep.

    Args:
        algo: The algo file. It contains the arguments that are searched, too.
        row: The algorithm's features, with the arguments that it does not read.
        spaces: Whether observations are images, ``is_image``, and whether actions are discrete, ``is_discrete``; None
            if that is not known.

    Raises:
        ConfigError: Names the first of them, and what to use instead.
    """
    unread, shipped = {entry.path: entry for entry in row.unread}, read_shipped(algo, row)
    facts = {**algo, "env": spaces or {}}
    searched = {".".join(locate_argument(algo, name)): name for name in space.names}
    corners = space.corners()
    for name, paths in list_arguments(algo).items():
        for path in paths:
            dotted, value = ".".join(path), read_argument(algo, path)
            parameter, entry = searched.get(dotted), unread.get(dotted)
            # A value of the shipped file may stay where only the search is wrong.
            is_typed = value not in (None, read_argument(shipped, path))
            removed = [f"~algo.{dotted}"] * is_typed + [f"~space.{parameter}"] * (parameter is not None)
            fix = f"remove it: {' '.join(removed)}"
            problem = ": RLlib 2.60 accepts this, but it has no effect on a sweep"
            problem += " with these settings" if entry and entry.switch else ""
            # A value of the shipped file may wait for another argument that would have it read.
            is_set = parameter is not None or is_typed
            if entry and is_set and not (entry.switch and _is_on(entry.switch, facts, searched, corners, parameter)):
                raise ConfigError(f"algo.{dotted}", value, problem, entry.instead, fix)
            is_known = not row.replay_settings or name in row.replay_settings
            buffer = str(read_argument(algo, (*_REPLAY, "type")))
            if path[:-1] == _REPLAY and not is_known and not _is_own_class(buffer):
                raise ConfigError(f"algo.{dotted}", value, problem, choices(name, row.replay_settings), fix)


def read_shipped(algo: Mapping[str, Any], row: Capabilities) -> Mapping[str, Any]:
    """Return the algo file that rltune ships for an algorithm; without one, an empty one."""
    files = [conf_dir() / "algo" / f"{name}.yaml" for name in (algo["name"], row.name)]
    return next((load_settings(file.read_text()) for file in files if file.is_file()), {})


def _is_on(
    switch: Switch,
    algo: Mapping[str, Any],
    searched: Mapping[str, str],
    corners: Sequence[Mapping[str, Any]],
    parameter: str | None,
) -> bool:
    """Return whether a switch is on in some trial.

    Args:
        searched: The names of the space's parameters by the dotted paths of their arguments.
        corners: The values by name at the corners of the space.
        parameter: Only trials that have this parameter count; None counts all.
    """
    value = read_argument(algo, tuple(switch.path.split(".")), switch.default)
    name = searched.get(switch.path, "")
    return any(switch.is_on(corner.get(name, value)) for corner in corners if parameter is None or parameter in corner)


def widest_layer(algo: Mapping[str, Any]) -> int:
    """Return the number of units of the widest hidden layer in the algo file; 0 if it has none."""
    model = (algo.get("rl_module") or {}).get("model_config") or {}
    layers = [model.get("fcnet_hiddens") or [], model.get("head_fcnet_hiddens") or []]
    return max((units for sizes in layers for units in sizes if isinstance(units, int)), default=0)


def count_env_runners(algo: Mapping[str, Any]) -> int:
    """Return the number of remote sampling processes in the algo file."""
    return int((algo.get("env_runners") or {}).get("num_env_runners") or 0)


def count_copies(algo: Mapping[str, Any]) -> int:
    """Return the number of copies of the environment that one seed of a trial steps, in all of its processes."""
    return int((algo.get("env_runners") or {}).get("num_envs_per_env_runner") or 1) * max(1, count_env_runners(algo))


def count_learners(algo: Mapping[str, Any]) -> int:
    """Return the number of remote learners in the algo file; 0 means that the trial's own process learns."""
    return int((algo.get("learners") or {}).get("num_learners") or 0)


def count_gpus(algo: Mapping[str, Any], per_trial: float, setting: str) -> float:
    """Return the number of GPUs for each trial, from ``resources`` or from the learners in the algo file.

    Args:
        per_trial: The number in ``resources``; 0 if it has none.
        setting: The setting of that number, for the error.

    Raises:
        ConfigError: Both are given, and differ.
    """
    per_learner = float((algo.get("learners") or {}).get("num_gpus_per_learner") or 0)
    of_learners = per_learner * max(1, count_learners(algo))
    if of_learners and per_trial and of_learners != per_trial:
        raise ConfigError(
            "algo.learners.num_gpus_per_learner",
            per_learner,
            f"gives a trial {of_learners:g} GPUs, but {setting} gives it another number",
            "one of the two settings; the learners of a trial share its GPUs evenly",
            "~algo.learners.num_gpus_per_learner",
        )
    return per_trial or of_learners


def read_encoder(algo: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """Return the encoder of the user's that an algo file names, and its arguments; None without one."""
    settings = algo.get("rl_module") or {}
    target = settings.get(ENCODER)
    return (str(target), dict(settings.get(ENCODER_KWARGS) or {})) if target else None


def apply_params(algo: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of the algo file with the sampled values in it.

    If the file names an encoder, then its arguments there are for this encoder, and not for another one.
    """
    merged = copy.deepcopy(dict(algo))
    settings = merged.get("rl_module") or {}
    if settings.get(ENCODER) and params.get(ENCODER, settings[ENCODER]) != settings[ENCODER]:
        settings[ENCODER_KWARGS] = None
    arguments = list_arguments(algo)
    for name, value in params.items():
        if is_of_env(name):  # These are set by `rltune.envs.searched.set_env_arguments`.
            continue
        *sections, last = locate_argument(algo, name, arguments=arguments)
        node = merged
        for part in sections:
            if node.get(part) is None:  # Such as the arguments of an encoder.
                node[part] = {}
            node = node[part]
        node[last] = value
    return merged
