"""Convert composed settings to a typed `RunConfig`, and refuse settings with which no sweep can run.

Imports nothing heavy, so that a typo on the command line is answered at once.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from rltune.config.advice import advise, translate
from rltune.config.bounds import check_bounds, read_types
from rltune.config.buckets import BUCKETS, is_bucket
from rltune.config.capabilities import MODEL_SETTINGS, SECTIONS
from rltune.config.criteria import parse_constraints
from rltune.config.schema import MAX_ON_GPU, MEASURED, EnvConfig, RunConfig
from rltune.config.settings_file import flatten_settings
from rltune.config.uris import SECRET_VARIABLES, conceal_setting, holds_plain_login
from rltune.errors import ABSENT, ConfigError, choices
from rltune.other_tools import Answer, find_answer

NORMALISABLE = ("observations", "rewards")
MAX_NAME = 100  # The longest name, in characters.
_NAME = re.compile(rf"[a-zA-Z0-9][\w.-]{{0,{MAX_NAME - 1}}}", re.ASCII)
# In these settings ${oc.env:NAME} is resolved only when the environment is built, so that no file contains the value.
WITH_VARIABLES = ("env.kwargs", "env.wrappers")
T = TypeVar("T")
_EXAMPLES = {
    "env.id": "env.id=CartPole-v1, or env.id=module:Name-v0 of a package or of a file in this folder",
    "policy": "policy=sweep:latest, or policy=models:/<name>@champion",
}


def parse_config(raw: DictConfig | Mapping[str, Any]) -> RunConfig:
    """Convert composed settings to a `RunConfig`, and check them.

    Args:
        raw: The settings that Hydra composed, or the content of a sweep's ``config.yaml``.

    Raises:
        ConfigError: A key is unknown, missing, or its value is out of range.
    """
    config = _widen_ranges(to_typed(RunConfig, raw))
    check_config(config)
    return config


def _widen_ranges(config: RunConfig) -> RunConfig:
    """Replace search ranges by the wider ones in a file of conf/tuned, unless the user has changed them.

    Raises:
        ConfigError: An entry is no pair of a range and a wider one.
    """
    space = dict(config.space)
    for name, pair in config.wider.items():
        if not isinstance(pair, list) or len(pair) != 2:
            raise ConfigError(
                f"wider.{name}",
                pair,
                "is no pair",
                "[the space's range, a wider one]",
                "see conf/tuned/ppo_acrobot.yaml",
            )
        if space.get(name) == pair[0]:
            space[name] = pair[1]
    return replace(config, space=space, wider={})


def check_whole(config: RunConfig) -> None:
    """Refuse a `RunConfig` with missing values, which are not filled in here: the defaults are in YAML files.

    Raises:
        ConfigError: It is not a `RunConfig`, or a value is missing, has another type or lies outside of its bounds.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError(
            "config",
            config,
            "is not a RunConfig",
            "the result of parse_config, which reads composed settings",
            'rltune.sweep("algo=ppo", "env=cartpole") composes the settings and runs the sweep',
        )
    to_typed(RunConfig, asdict(config))


def to_typed(schema: type[T], raw: DictConfig | Mapping[str, Any]) -> T:
    """Convert composed settings to an instance of their dataclass, with checked types and bounds.

    Args:
        schema: A dataclass such as `RunConfig`, which declares the keys, their types and their bounds.
        raw: The settings.

    Raises:
        ConfigError: A key is unknown or missing, or its value has another type or lies outside of its bounds.
    """
    # Converted to plain values, because merging a DictConfig that has another schema would fail.
    plain = OmegaConf.to_container(raw) if isinstance(raw, DictConfig) else raw
    try:
        typed: T = _build(schema, plain)
    except TypeError:
        typed = _convert(schema, plain)
    check_bounds(schema, typed)
    return typed


def _build(kind: Any, value: Any) -> Any:
    """Build an instance of a type without conversions, ten times as fast as OmegaConf.

    Args:
        kind: A type of the schema: a dataclass, ``dict[str, Any]``, ``list[str]``, ``int | None``.
        value: The settings; each dictionary and list is copied.

    Raises:
        TypeError: OmegaConf has to convert the value, resolve an interpolation or explain what is wrong.
    """
    parts = get_args(kind)
    if is_dataclass(kind):
        types = read_types(cast(type, kind))
        if isinstance(value, dict) and value.keys() == types.keys():
            return cast(type, kind)(**{name: _build(types[name], nested) for name, nested in value.items()})
    elif isinstance(kind, UnionType):
        return _build(type(value) if type(value) in parts else parts[0], value)
    elif isinstance(value, dict):
        if kind in (dict[str, Any], Any) and all(isinstance(name, str) for name in value):
            return {name: _build(Any, nested) for name, nested in value.items()}
    elif isinstance(value, list):
        if kind is Any or get_origin(kind) is list:
            return [_build(parts[0] if parts else Any, element) for element in value]
    elif isinstance(value, str):
        if kind in (str, Any) and "${" not in value and value != "???":
            return value
    elif type(value) is kind or (kind is Any and type(value) in (bool, int, float, NoneType)):
        return value
    elif kind is float and type(value) is int:
        return float(value)
    raise TypeError(f"{value!r} is no {kind}")


def _convert(schema: type[T], plain: Any) -> T:
    """Build an instance of the schema with OmegaConf, which converts types and resolves interpolations.

    Raises:
        ConfigError: See `to_typed`.
    """
    try:
        merged = OmegaConf.merge(_make_structure(schema), _escape_variables(plain))  # type: ignore[arg-type]  # a class can be hashed
        return cast(T, OmegaConf.to_object(merged))
    except (MissingMandatoryValue, InterpolationToMissingValueError) as error:
        missing = re.search(r"interpolation: .*value: ([\w.]+)$", str(error).splitlines()[0])
        key = missing[1] if missing else str(error.full_key)
        raise ConfigError(
            key, ABSENT, "has no value", "a value for every key", f"add {_EXAMPLES.get(key, f'{key}=...')}"
        ) from None
    except OmegaConfBaseException as error:
        key, allowed, fix = str(error.full_key), "a value of the key's type", "add --cfg job to see all keys"
        value = dict(flatten_settings(plain)).get(key, "...")
        if isinstance(value, list):
            value = "..."
        siblings = [str(name) for name in error.parent_node] if isinstance(error.parent_node, DictConfig) else []
        if str(error.key) not in siblings:
            allowed, advised = advise(key, value, plain)
            fix = advised or fix
        raise ConfigError(key, value, f": {str(error).splitlines()[0]}", allowed, fix) from None


def _escape_variables(plain: Any, key: str = "") -> Any:
    """Escape ``${oc.env:NAME}`` in the environment's arguments, so that OmegaConf does not resolve it.

    Their values may be secret. They are read when the environment is built, and are never written.
    """
    if isinstance(plain, Mapping) and (key in ("", "env") or key.startswith(WITH_VARIABLES)):
        return {name: _escape_variables(value, f"{key}.{name}" if key else str(name)) for name, value in plain.items()}
    if isinstance(plain, list | tuple) and key.startswith(WITH_VARIABLES):
        return [_escape_variables(value, key) for value in plain]
    is_variable = isinstance(plain, str) and "${oc.env:" in plain and key.startswith(WITH_VARIABLES)
    # An interpolation that is already escaped stays as it is, because a second backslash would undo the escape.
    return re.sub(r"(?<!\\)\$\{", r"\\${", plain) if is_variable else plain


@functools.cache
def _make_structure(schema: type) -> DictConfig:
    return cast(DictConfig, OmegaConf.structured(schema))  # OmegaConf.merge copies the cached structure.


def check_config(config: RunConfig) -> None:
    """Refuse combinations of settings with which no sweep can run; single values were checked before.

    Raises:
        ConfigError: Names the first key that is wrong, what is allowed and what to type.
    """
    if config.budget.reports > config.budget.env_steps:
        raise ConfigError(
            "budget.reports",
            config.budget.reports,
            f"exceeds budget.env_steps={config.budget.env_steps}",
            "at most one report per environment step",
            f"budget.reports={min(20, config.budget.env_steps)}",
        )
    if config.cluster.autoscale and config.cluster.address is None:
        raise ConfigError(
            "cluster.autoscale",
            True,
            "without a cluster",
            "the address of a running Ray cluster",
            "cluster=address cluster.autoscale=true",
        )
    for key in ("num_cpus", "num_gpus", "dashboard"):
        value = getattr(config.cluster, key)
        if config.cluster.address is not None and value is not None and value is not False:
            raise ConfigError(
                f"cluster.{key}",
                value,
                f"with cluster.address={config.cluster.address}, which has its own",
                "a value for a Ray on this machine; resources.max_concurrent limits the trials on a cluster",
                f"leave cluster.{key} out, or cluster=local",
            )
    second = config.objective.second
    if second.key is None and second.direction != "min":
        raise ConfigError(
            "objective.second.direction",
            second.direction,
            "without a second objective",
            "a direction of objective.second.key",
            f"objective.second.key=train_s objective.second.direction={second.direction}",
        )
    check_pair(config.algo, config.env)
    _check_trials_per_gpu(config)
    _check_name("name", config.name)
    if config.resume == "auto" and config.name is None:
        raise ConfigError(
            "name",
            None,
            "with resume=auto: the same command would not find its sweep again",
            "a name under which the sweep is started, resumed and finished",
            "name=my-sweep resume=auto",
        )
    parse_constraints(config.constraints)
    _check_storage(config.storage, config.output_dir)
    for key, text in _list_texts(asdict(config)):
        if key not in SECRET_VARIABLES and holds_plain_login(text):
            raise ConfigError(
                key,
                conceal_setting(key, text),
                "holds a login, which every checkpoint and policy would keep",
                f"logins only in {', '.join(SECRET_VARIABLES)}, which are written nowhere",
                f"leave the login out of {key}; the code that needs it can read an environment variable",
            )


def check_pair(algo: Mapping[str, Any], env: EnvConfig) -> None:
    """Refuse an algo file from which no algorithm, or an env file from which no environment, can be built.

    Raises:
        ConfigError: Names the first key that is wrong, what is allowed and what to type.
    """
    if env.wrappers and env.vectorize == "vector_entry_point":
        raise ConfigError(
            "env.vectorize",
            "vector_entry_point",
            ": env.wrappers wrap single environments",
            "auto, sync or async with wrappers",
            "env.vectorize=sync",
        )
    _check_algo(algo)
    _check_name("env.name", env.name)
    _check_name("algo.name", algo["name"])


def _check_storage(storage: str | None, output_dir: str) -> None:
    """Refuse a ``storage`` that is no bucket's address, and an ``output_dir`` that is one.

    Whether the bucket exists is checked later.
    """
    if is_bucket(output_dir):
        allowed, fix = "a folder; the bucket is storage", f"storage={output_dir}"
        raise ConfigError("output_dir", output_dir, "is a bucket's address", allowed, fix)
    if storage is not None and not is_bucket(storage):
        buckets = " or ".join(f"{kind.example} ({kind.name})" for kind in BUCKETS.values())
        is_database = re.match(r"(sqlite|postgresql)[+:]", storage)
        raise ConfigError(
            "storage",
            storage,
            "is not the address of a bucket",
            f"null, {buckets}; a folder that all nodes share is output_dir, a ledger's database study.storage",
            f"study.storage={storage}" if is_database else "storage=s3://bucket/sweeps",
        )


def _list_texts(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every string in nested settings and lists with its key."""
    if isinstance(settings, str):
        yield key, settings
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _list_texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(settings, list):
        for index, value in enumerate(settings):
            yield from _list_texts(value, f"{key}[{index}]")


def _check_trials_per_gpu(config: RunConfig) -> None:
    """Check ``resources.trials_per_gpu``: not with ``gpus_per_trial``; ``auto`` without cluster or remote learners."""
    resources, trials = config.resources, config.resources.trials_per_gpu
    if trials is None:
        return
    if resources.gpus_per_trial:
        raise ConfigError(
            "resources.trials_per_gpu",
            trials,
            f"with resources.gpus_per_trial={resources.gpus_per_trial:g}",
            "either the number of trials that share a GPU, or each trial's share of it",
            f"resources.trials_per_gpu={trials} resources.gpus_per_trial=0",
        )
    has_learners = bool((config.algo.get("learners") or {}).get("num_learners"))
    if trials == MEASURED and (config.cluster.address is not None or has_learners):
        reason = "remote learners" if config.cluster.address is None else "a cluster"
        raise ConfigError(
            "resources.trials_per_gpu",
            "auto",
            f"with {reason}: only a trial's own process on this machine is measured",
            f"a whole number from 1 to {MAX_ON_GPU}",
            "resources.trials_per_gpu=4",
        )


def _check_algo(algo: Mapping[str, Any]) -> None:
    """Refuse an algo file without a name or class, or with a section that RLlib's AlgorithmConfig does not have."""
    for key in ("name", "class"):
        if not isinstance(algo.get(key), str):
            raise ConfigError(
                f"algo.{key}",
                ABSENT,
                "is missing",
                "the name, and 'module:Class' of an AlgorithmConfig",
                "see conf/algo/ppo.yaml",
            )
    check_normalise("algo.normalise", algo.get("normalise", []))
    for key, value in algo.items():
        if key in ("name", "class", "normalise"):
            continue
        if not isinstance(value, Mapping):
            check_argument_name(f"algo.{key}", value)
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"algo.{key}", value, "is not a section", "a mapping of arguments", "see conf/algo/ppo.yaml"
            )
        for name, argument in value.items():
            check_argument_name(f"algo.{key}.{name}", argument)
            for setting, text in argument.items() if name == "model_config" and isinstance(argument, Mapping) else ():
                check_argument_name(f"algo.{key}.{name}.{setting}", text)


def check_argument_name(key: str, value: Any) -> None:
    """Refuse a setting of an algo file that nothing in a sweep reads, whatever its value.

    Args:
        key: A section, an argument of one or a setting of the network: ``algo.environment.env_config``.
        value: Its value, for the error.

    Raises:
        ConfigError: Nothing reads it, or there is no such thing.
    """
    _, section, *names = key.split(".")
    known: tuple[str, ...] | None = tuple(SECTIONS)
    name = section
    if names and section in SECTIONS:
        is_setting = names[0] == "model_config" and len(names) > 1
        name, known = (names[1], MODEL_SETTINGS) if is_setting else (names[0], SECTIONS[section])
    if known is None or name in known:
        return
    removed = key if section in SECTIONS else f"algo.{section}"
    answer = find_answer("setting", key.rpartition(".")[2]) or find_answer("setting", name) or Answer()
    elsewhere = next((translate(other, value) for other in answer.names if "." in other), "")
    raise ConfigError(
        key,
        value,
        ": nothing in a sweep reads this",
        answer.note or choices(name, known),
        answer.fix.format(key=key, name=name, value=value) or elsewhere or f"remove it: ~{removed}",
    )


def check_normalise(key: str, wanted: Any) -> None:
    """Refuse what is no list of things that can be normalised, in their order."""
    if not isinstance(wanted, list | tuple) or list(wanted) != [each for each in NORMALISABLE if each in wanted]:
        allowed = f"a list of {' and '.join(NORMALISABLE)}, in this order, or []"
        raise ConfigError(key, wanted, "", allowed, f"{key}=[observations,rewards]")


def _check_name(key: str, name: str | None) -> None:
    """Refuse a name that cannot be used in a path, a database URL and a registered model's name.

    A sweep's name may consist of those of its environment and algorithm and the time. Each of them must be far shorter
    than a file name may be (255 bytes).
    """
    if name is not None and (not _NAME.fullmatch(name) or name == "latest"):
        raise ConfigError(
            key,
            name,
            "cannot name a folder",
            f"a letter or a digit, then letters, digits, - _ . ({MAX_NAME} characters at most), and not 'latest'",
            f"{key}=my-{key.split('.')[0]}",
        )
