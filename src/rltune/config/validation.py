"""Convert composed settings to a typed `RunConfig`, and refuse settings with which no sweep can run.

Imports nothing heavy, so that a typo on the command line is answered at once.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, is_dataclass, replace
from types import NoneType, UnionType
from typing import Any, TypeVar, cast, get_args, get_origin

from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rltune.config.advice import STOP, advise, translate
from rltune.config.bounds import Checked, check_settings, describe_allowed, list_bounds, make_missing_error, read_types
from rltune.config.buckets import BUCKETS, is_bucket
from rltune.config.capabilities import MODEL_SETTINGS, SECTIONS
from rltune.config.criteria import parse_constraints
from rltune.config.schema import MAX_ON_GPU, MEASURED, EnvConfig, RunConfig
from rltune.config.uris import SECRET_VARIABLES, conceal_setting, holds_plain_login
from rltune.errors import ABSENT, ConfigError, choices
from rltune.formatting import flatten_settings
from rltune.other_tools import Answer, find_answer

NORMALISABLE = ("observations", "rewards")
MAX_NAME = 100  # The longest name, in characters.
NAME = rf"[a-zA-Z0-9][a-zA-Z0-9_.-]{{0,{MAX_NAME - 1}}}"  # A regular expression for names of folders.
ENV_GROUPS = ("env", "score.env", "certify.env", "space.env", "space.train_env")
# In these settings ${oc.env:NAME} is resolved only when the environment is built, so that no file contains the value.
WITH_VARIABLES = tuple(f"{group}.{key}" for group in ENV_GROUPS for key in ("kwargs", "wrappers"))
T = TypeVar("T")
SEE_KEYS = "add --cfg job to see all keys"


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

    A range that ends at another parameter stays, and so does one at which another range ends that would then be empty.

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
        is_bound = any(isinstance(end, str) for ends in _list_ends(pair[0]) for end in ends)
        if (
            space.get(name) == pair[0]
            and not is_bound
            and all(_is_open(form, name, pair[1]) for form in space.values())
        ):
            space[name] = pair[1]
    return replace(config, space=space, wider={})


def _list_ends(form: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the two ends in a form of a range, numbers or names of other parameters; none of a choice."""
    if isinstance(form, list) and len(form) > 2 and form[0] != "choice" and not isinstance(form[1], list | Mapping):
        yield form[1], form[2]
    for part in form if isinstance(form, list) else ():
        yield from _list_ends(part)


def _list_numbers(form: Any) -> list[float]:
    """List the numbers in a form of a range, those of a range beside values among them."""
    if isinstance(form, list):
        return [number for part in form for number in _list_numbers(part)]
    return [form] if isinstance(form, int | float) else []


def _is_open(form: Any, name: str, wider: Any) -> bool:
    """Return whether a form keeps values in every trial if the parameter at one of its ends has a wider range."""
    numbers = _list_numbers(wider)
    return all(
        not (high == name and isinstance(low, int | float) and low > min(numbers, default=low))
        and not (low == name and isinstance(high, int | float) and high < max(numbers, default=high))
        for low, high in _list_ends(form)
    )


def to_typed(schema: type[T], raw: DictConfig | Mapping[str, Any]) -> T:
    """Convert composed settings to an instance of their dataclass: the only conversion of settings.

    Args:
        schema: A dataclass such as `RunConfig`, which declares the keys, their types and their bounds.
        raw: The settings; each dictionary and list is copied.

    Raises:
        ConfigError: A key is unknown or missing, or its value has another type or lies outside of its bounds.
    """
    plain = cast(dict[str, Any], OmegaConf.to_container(raw)) if isinstance(raw, DictConfig) else raw
    if missing := next((key for key, value in flatten_settings(plain) if value == MISSING), None):
        raise make_missing_error(missing)
    typed: T = _Conversion(schema, plain).build(schema, _resolve(plain), "")
    if not isinstance(typed, Checked):  # These have checked themselves.
        check_settings(typed)
    return typed


def refuse_added(schema: type, raw: DictConfig) -> None:
    """Refuse the first group or setting that Hydra's ``+`` has added and the schema does not have.

    Raises:
        ConfigError: Names it, and what to type in its place.
    """
    if added := next((str(key) for key in raw if key not in read_types(schema)), None):
        plain = cast(dict[str, Any], OmegaConf.to_container(raw))
        raise _Conversion(schema, plain).make_unknown_error(added, plain[added])


class _Conversion:
    """Converts plain values to the types that a schema declares, as strictly as OmegaConf does.

    Args:
        schema: The dataclass of the settings.
        settings: All settings, for errors.
    """

    def __init__(self, schema: type, settings: Mapping[str, Any]) -> None:
        self._schema, self._settings = schema, settings

    def build(self, kind: type, values: Any, above: str) -> Any:
        """Build an instance of a dataclass; ``above`` is the dotted key of its settings, with a dot at its end."""
        types, arguments = read_types(kind), dict[str, Any]()
        for name, value in values.items():
            if name not in types:
                raise self.make_unknown_error(f"{above}{name}", value)
            try:
                arguments[name] = self._convert(types[name], value, f"{above}{name}")
            except (TypeError, ValueError):
                raise self._make_type_error(f"{above}{name}", value) from None
        return kind(**arguments)

    def _convert(self, kind: Any, value: Any, key: str) -> Any:
        """Convert one value; raise TypeError or ValueError if it has another type."""
        parts = get_args(kind)
        if isinstance(kind, UnionType):
            if value is None and NoneType in parts:
                return None
            kind = next((part for part in parts if type(value) is part), parts[0])
            return self._convert(kind, value, key)
        if is_dataclass(kind) and isinstance(value, Mapping):
            return self.build(cast(type, kind), value, f"{key}.")
        if kind is Any or (get_origin(kind) is dict and isinstance(value, Mapping)):
            return copy.deepcopy(value)
        if get_origin(kind) is list and isinstance(value, list | tuple):
            return [self._convert(parts[0], element, key) for element in value]
        if type(value) is kind:
            return value
        if (kind in (int, float) and isinstance(value, str)) or (kind is float and type(value) is int):
            return kind(value)
        if kind is str and type(value) in (int, float):
            return str(value)
        raise TypeError(f"{key}={value!r} is no {kind}")

    def make_unknown_error(self, key: str, value: Any) -> ConfigError:
        """Make the error for a key that the schema does not have, with what to type in its place."""
        below = ""
        # Such as `+env.env_config.size=4`, and of Ray Tune's `stop` the first of several conditions.
        while isinstance(value, Mapping) and (len(value) == 1 or (key == STOP and value)):
            name, value = next(iter(value.items()))
            below += f".{name}"
        shown = _show(value)
        allowed, fix = advise(f"{key}{below}" if key == STOP else key, shown, self._settings)
        answer = find_answer("setting", key.rpartition(".")[2])
        if answer is None or not answer.fix:  # What was typed below the unknown key belongs below the right one, too.
            fix = fix.replace("=", f"{below}=", 1)
        return ConfigError(f"{key}{below}", shown, ": no such key", allowed, fix or SEE_KEYS)

    def _make_type_error(self, key: str, value: Any) -> ConfigError:
        bounds, allowed = list_bounds(self._schema).get(key), describe_allowed(self._schema, key)
        fix = f"{key}={bounds.suggest(value)}" if bounds else SEE_KEYS
        return ConfigError(key, _show(value), "has another type", allowed or "a mapping", fix)


def _show(value: Any) -> Any:
    """Return a value as an error may show it."""
    return "..." if isinstance(value, list | dict) else value


def _resolve(plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """Resolve the interpolations of composed settings, except for variables in the environment's arguments.

    Raises:
        ConfigError: One of them cannot be resolved.
    """
    if not any("${" in text for _, text in _list_texts(plain)):
        return plain
    try:
        composed = OmegaConf.create(_escape_variables(plain))
        return cast(dict[str, Any], OmegaConf.to_container(composed, resolve=True))
    except OmegaConfBaseException as error:
        key, problem = str(error.full_key), f": {str(error).splitlines()[0]}"
        value = _show(dict(flatten_settings(plain)).get(key, "..."))
        raise ConfigError(key, value, problem, "a value of the key's type", SEE_KEYS) from None


def _escape_variables(plain: Any, key: str = "") -> Any:
    """Escape ``${oc.env:NAME}`` in the environment's arguments, so that OmegaConf does not resolve it.

    Their values may be secret. They are read when the environment is built, and are never written.
    """
    if isinstance(plain, Mapping) and (_holds_env(key) or key.startswith(WITH_VARIABLES)):
        return {name: _escape_variables(value, f"{key}.{name}" if key else str(name)) for name, value in plain.items()}
    if isinstance(plain, list | tuple) and key.startswith(WITH_VARIABLES):
        return [_escape_variables(value, key) for value in plain]
    is_variable = isinstance(plain, str) and "${oc.env:" in plain and key.startswith(WITH_VARIABLES)
    # An interpolation that is already escaped stays as it is, because a second backslash would undo the escape.
    return re.sub(r"(?<!\\)\$\{", r"\\${", plain) if is_variable else plain


def _holds_env(key: str) -> bool:
    """Return whether a group of settings is, or holds, one that describes an environment."""
    return not key or any(f"{group}.".startswith(f"{key}.") for group in ENV_GROUPS)


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
    total, steps_per_trial = config.budget.total_env_steps, config.budget.env_steps * config.replicates
    if total is not None and total < steps_per_trial:
        raise ConfigError(
            "budget.total_env_steps",
            total,
            f"is less than one trial takes: budget.env_steps={config.budget.env_steps}"
            + (f" with replicates={config.replicates}" if config.replicates > 1 else ""),
            f"at least {steps_per_trial}, for all trials together, or null",
            f"budget.total_env_steps={steps_per_trial * config.budget.trials}",
        )
    if config.engine == "rllib" and config.precision != "float32":
        raise ConfigError(
            "precision",
            config.precision,
            "with engine=rllib, which trains in float32",
            "PPO, A2C and DQN of the fast engine",
            "precision=float32",
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
    if config.score.env and config.score.episodes == 0:
        raise ConfigError(
            "score.episodes",
            0,
            "with score.env, in which these episodes are played",
            "at least 1, or null for 10",
            "score.episodes=10",
        )
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
    key = "env.per_copy" if env.per_copy else "env.max_copies"
    if (env.per_copy or env.max_copies) and env.vectorize == "vector_entry_point":
        raise ConfigError(
            "env.vectorize",
            "vector_entry_point",
            f"with {key}: it makes all copies at once, by itself",
            f"auto, sync or async with {key}",
            "env.vectorize=sync",
        )
    if env.restarts and env.policies:
        raise ConfigError(
            "env.restarts",
            env.restarts,
            "with env.policies: copies of one agent's environment are made again",
            "0 with several agents",
            "env.restarts=0",
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
            # An RLModule of the user's has settings of its own.
            is_known = name == "model_config" and not value.get("module_class")
            for setting, text in argument.items() if is_known and isinstance(argument, Mapping) else ():
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
    words = key.removeprefix("algo."), key.rpartition(".")[2], name
    answer = next(filter(None, (find_answer("setting", word) for word in words)), Answer())
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
    if name is not None and (not re.fullmatch(NAME, name) or name == "latest"):
        raise ConfigError(
            key,
            name,
            "cannot name a folder",
            f"a letter or a digit, then letters, digits, - _ . ({MAX_NAME} characters at most), and not 'latest'",
            f"{key}=my-{key.split('.')[0]}",
        )
