"""Turn the settings that Hydra composed into a typed request, and refuse those with which no sweep can run.

Nothing heavy is imported, so that a typing error on the command line is answered at once.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from rltune.config.criteria import read_criteria
from rltune.config.schema import MLFLOW, EnvConfig, RunConfig
from rltune.config.settings_file import flatten_settings
from rltune.config.uris import SECRET_VARIABLES, holds_plain_login, is_bucket, is_web, redact_address
from rltune.errors import ConfigError, choices, nearest

# The fluent methods of RLlib's AlgorithmConfig that an algo file may fill, one section each.
SECTIONS = (
    "api_stack",
    "checkpointing",
    "debugging",
    "env_runners",
    "environment",
    "evaluation",
    "experimental",
    "fault_tolerance",
    "framework",
    "learners",
    "multi_agent",
    "offline_data",
    "reporting",
    "rl_module",
    "training",
)
MEASURED = "auto"  # of `resources.trials_per_gpu`: as many as one that is measured leaves room for
MAX_ON_GPU = 100  # trials
MAX_COUNT = 100_000  # of trials and seeds
MAX_NAME = 100  # characters
_NAME = re.compile(rf"[a-zA-Z0-9][\w.-]{{0,{MAX_NAME - 1}}}", re.ASCII)
ENGINES = ("fast", "rllib")
PRECISIONS = ("float32", "bfloat16")
RESUME = ("never", "auto")
WITH_VARIABLES = ("env.kwargs", "env.wrappers")  # the settings in which ${oc.env:NAME} is kept as it is
VIEWS = ("auto", "pruned", "complete")  # rltune.search.views has what they mean
VECTORIZE = ("auto", "sync", "async", "vector_entry_point")
T = TypeVar("T")
_EXAMPLES = {"env.id": "env.id=CartPole-v1, or env.id=module:Name-v0 of a package or of a file in this folder"}


def parse_config(raw: DictConfig | Mapping[str, Any]) -> RunConfig:
    """Turn composed settings into a checked `RunConfig`.

    Args:
        raw: The settings that Hydra composed, or the content of a sweep's ``config.yaml``.

    Raises:
        ConfigError: A key is unknown, missing, or its value is out of range.
    """
    config = to_typed(RunConfig, raw)
    check_config(config)
    return config


def check_whole(config: RunConfig) -> None:
    """Refuse what a program made by itself and is no whole request: defaults live in the YAML files alone.

    Raises:
        ConfigError: It is no `RunConfig`, has a value of another type, or none where one is needed.
    """
    if not isinstance(config, RunConfig):
        raise ConfigError(
            f"config={config!r} is no RunConfig",
            "what parse_config makes of composed settings",
            'rltune.sweep("algo=ppo", "env=cartpole") composes them and runs the sweep',
        )
    to_typed(RunConfig, vars(config))


def to_typed(schema: type[T], raw: DictConfig | Mapping[str, Any]) -> T:
    """Turn composed settings into an instance of their schema.

    Args:
        schema: A dataclass, such as `RunConfig`; it says which keys there may be, and of which type.
        raw: The settings.

    Raises:
        ConfigError: A key is unknown, missing or of another type.
    """
    try:
        plain = OmegaConf.to_container(raw) if isinstance(raw, DictConfig) else raw  # typed, it may have any keys
        merged = OmegaConf.merge(_make_structure(schema), _escape_variables(plain))  # type: ignore[arg-type]  # a class can be hashed
        return cast(T, OmegaConf.to_object(merged))
    except (MissingMandatoryValue, InterpolationToMissingValueError) as error:
        missing = re.search(r"interpolation: .*value: ([\w.]+)$", str(error).splitlines()[0])
        key = missing[1] if missing else str(error.full_key)
        raise ConfigError(
            f"{key} has no value",
            "a value for every key",
            f"add {_EXAMPLES.get(key, f'{key}=...')}",
        ) from None
    except OmegaConfBaseException as error:
        key, allowed, fix = str(error.full_key), "a value of the key's type", "add --cfg job to see all keys"
        known = [str(key) for key in error.parent_node] if isinstance(error.parent_node, DictConfig) else []
        if str(error.key) not in known:
            meant = find_meant(key, known, plain)
            allowed = choices(str(error.key), known, meant and meant.removeprefix(f"{key.rpartition('.')[0]}."))
            if meant:
                value = dict(flatten_settings(plain)).get(key, "...")
                fix = f"{meant}={'...' if isinstance(value, list) else redact_address(str(value))}"
        raise ConfigError(f"{key}: {str(error).splitlines()[0]}", allowed, fix) from None


def _escape_variables(plain: Any, key: str = "") -> Any:
    """Escape interpolations of environment variables in the environment's arguments.

    Their values may be secret, so that they are read where the environment is built, and written nowhere.
    """
    if isinstance(plain, Mapping) and (key in ("", "env") or key.startswith(WITH_VARIABLES)):
        return {name: _escape_variables(value, f"{key}.{name}" if key else str(name)) for name, value in plain.items()}
    if isinstance(plain, list | tuple) and key.startswith(WITH_VARIABLES):
        return [_escape_variables(value, key) for value in plain]
    is_variable = isinstance(plain, str) and "${oc.env:" in plain and key.startswith(WITH_VARIABLES)
    return re.sub(r"(?<!\\)\$\{", r"\\${", plain) if is_variable else plain  # Escaped twice, it would be resolved.


def find_meant(key: str, known: Sequence[str], settings: Any) -> str | None:
    """Find the key that was meant by one that there is not; None if none is close.

    Args:
        key: What was typed. Without a group it may be meant for one of a group's keys, as ``lr`` is for ``space.lr``.
        known: The keys that there are in its place.
        settings: All settings that there are, where the key stands in no group.
    """
    above, _, last = key.rpartition(".")
    deeper: dict[str, str] = {}
    if not above:
        paths = [path for path, _ in flatten_settings(settings) if "." in path and not path.startswith("hydra.")]
        paths.sort(key=lambda path: not path.startswith(("space.", "budget.")))  # what is searched and the budget first
        deeper = {path.rpartition(".")[2]: path for path in reversed(paths)}
    close = nearest(last, [*known, *deeper])
    if close is None or close in known:
        return close and (f"{above}.{close}" if above else close)
    return deeper[close] if nearest(last, [close], 0.75) else None  # among so many some are a little alike


@functools.cache
def _make_structure(schema: type) -> DictConfig:
    return cast(DictConfig, OmegaConf.structured(schema))  # merge copies it


def check_config(config: RunConfig) -> None:
    """Refuse values with which no sweep can run.

    Raises:
        ConfigError: Names the first key that is wrong, what is allowed and what to type.
    """
    for key, value, low, usual in _lower_bounds(config):
        if value is not None and not (math.isfinite(value) and value >= low):
            raise ConfigError(f"{key}={value} is out of range", f"{key} of at least {low}", f"{key}={usual}")
    for key, count in (("budget.trials", config.budget.trials), ("certify.seeds", config.certify.seeds)):
        if count > MAX_COUNT:  # each has its seeds, which are drawn before the first trial
            raise ConfigError(f"{key}={count} is out of range", f"{key} of at most {MAX_COUNT}", f"{key}=100")
    if config.seed >= 2**32:
        raise ConfigError(f"seed={config.seed} is out of range", "0 to 4294967295", "seed=0")
    if config.budget.reports > config.budget.env_steps:
        raise ConfigError(
            f"budget.reports={config.budget.reports} exceeds budget.env_steps={config.budget.env_steps}",
            "at most one report per environment step",
            f"budget.reports={min(20, config.budget.env_steps)}",
        )
    if config.cluster.autoscale and config.cluster.address is None:
        raise ConfigError(
            "cluster.autoscale=true without a cluster",
            "a Ray that runs already",
            "cluster=address cluster.autoscale=true",
        )
    _check_one_of("precision", config.precision, PRECISIONS)
    _check_one_of("searcher.view", config.searcher.view, VIEWS)
    if ":" not in config.tracking.kind:  # Else it names a class, which is imported later.
        _check_one_of("tracking.kind", config.tracking.kind, (*MLFLOW, "wandb", "off", "package.module:Class"))
    check_pair(config.algo, config.env, config.engine)
    _check_trials_per_gpu(config)
    _check_one_of("resume", config.resume, RESUME)
    _check_name("name", config.name)
    if config.resume == "auto" and config.name is None:
        raise ConfigError(
            "resume=auto without a name: typed again, the command would not find its sweep",
            "a name, by which one sweep is begun, gone on with and finished",
            "name=my-sweep resume=auto",
        )
    settings = asdict(config)
    read_criteria(settings)
    check_bucket(config.storage)
    check_notify(config.notify)
    for key, text in _texts(settings):
        if key not in SECRET_VARIABLES and holds_plain_login(text):
            raise ConfigError(
                f"{key}={redact_address(text)} holds a login, which every checkpoint and policy would keep",
                f"logins in {', '.join(SECRET_VARIABLES)} alone, which are written nowhere",
                f"leave the login out of {key}; what uses it can read an environment variable of its own",
            )


def check_bucket(storage: str | None) -> None:
    """Refuse what is no address of a bucket; whether it answers is asked later.

    Raises:
        ConfigError: ``storage`` is neither null nor an address.
    """
    if storage is not None and not is_bucket(storage):
        raise ConfigError(
            f"storage={redact_address(storage)} names no bucket",
            "null, s3://bucket/prefix (S3, MinIO) or gs://bucket/prefix; a folder that all nodes share is output_dir",
            "storage=s3://bucket/sweeps",
        )


def check_notify(notify: str | None) -> None:
    """Refuse an address that no POST can go to; whether somebody answers is seen at the sweep's end.

    Raises:
        ConfigError: ``notify`` is such an address.
    """
    if notify is not None and re.match(r"[\w+.-]+://", notify) and not (is_web(notify) and _has_host(notify)):
        raise ConfigError(
            f"notify={redact_address(notify)} is no address to post to",
            "null, http://... or https://..., or a command for the shell, which reads the summary",
            "notify='mail -s \"$RLTUNE_SWEEP $RLTUNE_STATUS\" me@example.org'",
        )


def _has_host(address: str) -> bool:
    try:
        return bool(urlsplit(address).hostname)
    except ValueError:  # Such as a bracket of an IPv6 address that is not closed.
        return False


def _texts(settings: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text in nested settings, by its key."""
    if isinstance(settings, str):
        yield key, settings
    elif isinstance(settings, Mapping):
        for name, value in settings.items():
            yield from _texts(value, f"{key}.{name}" if key else str(name))
    elif isinstance(settings, list):
        for place, value in enumerate(settings):
            yield from _texts(value, f"{key}[{place}]")


def check_pair(algo: Mapping[str, Any], env: EnvConfig, engine: str) -> None:
    """Refuse an algorithm, an environment or an engine that is misspelt, or that does not go with the others.

    Raises:
        ConfigError: Names the first key that is wrong, what is allowed and what to type.
    """
    _check_one_of("engine", engine, ENGINES)
    _check_one_of("env.vectorize", env.vectorize, VECTORIZE)
    if env.wrappers and env.vectorize == "vector_entry_point":
        raise ConfigError(
            "env.vectorize=vector_entry_point: env.wrappers wrap single environments",
            "auto, sync or async with wrappers",
            "env.vectorize=sync",
        )
    _check_algo(algo)
    for key, name in (("env.name", env.name), ("algo.name", algo["name"])):
        _check_name(key, name)


def _lower_bounds(config: RunConfig) -> Iterator[tuple[str, float | None, float, float]]:
    """Yield every number that has a lower bound: its key, its value, the bound, a usual value."""
    budget, resources, cluster = config.budget, config.resources, config.cluster
    yield "budget.trials", budget.trials, 1, 24
    yield "budget.env_steps", budget.env_steps, 1, 100_000
    yield "budget.total_env_steps", budget.total_env_steps, 1, 1_000_000
    yield "budget.wall_time_s", budget.wall_time_s, 1, 3600
    yield "budget.reports", budget.reports, 1, 20
    yield "published.env_steps", config.published.env_steps, 1, 1_000_000
    yield "replicates", config.replicates, 1, 1
    yield "seed", config.seed, 0, 0
    yield "resources.cpus_per_trial", resources.cpus_per_trial, 0.01, 1
    yield "resources.gpus_per_trial", resources.gpus_per_trial, 0, 0
    yield "resources.max_concurrent", resources.max_concurrent, 1, 1
    yield "cluster.num_cpus", cluster.num_cpus, 1, 2
    yield "cluster.num_gpus", cluster.num_gpus, 0, 0
    yield "checkpoint.every_s", config.checkpoint.every_s, 0, 30
    yield "checkpoint.replay_gb", config.checkpoint.replay_gb, 0, 0.2
    yield "failures.max_retries", config.failures.max_retries, 0, 1
    yield "failures.stall_s", config.failures.stall_s, 1, 300
    yield "failures.stop_after", config.failures.stop_after, 1, 10
    yield "certify.top", config.certify.top, 0, 3
    yield "certify.seeds", config.certify.seeds, 0, 5
    yield "certify.episodes", config.certify.episodes, 1, 50
    yield "certify.champion_episodes", config.certify.champion_episodes, 1, 100


def _check_trials_per_gpu(config: RunConfig) -> None:
    """Refuse what is no number of trials, a fraction of a GPU beside it, and to measure what cannot be."""
    resources, trials = config.resources, config.resources.trials_per_gpu
    if trials is None:
        return
    if not (trials == MEASURED or (isinstance(trials, int) and 1 <= trials <= MAX_ON_GPU)):
        raise ConfigError(
            f"resources.trials_per_gpu={trials} is out of range",
            f"a whole number from 1 to {MAX_ON_GPU}, auto, which measures one, or null",
            "resources.trials_per_gpu=4",
        )
    if resources.gpus_per_trial:
        raise ConfigError(
            f"resources.trials_per_gpu={trials} with resources.gpus_per_trial={resources.gpus_per_trial:g}",
            "one of the two: how many trials share a GPU, or which part of it each of them gets",
            f"resources.trials_per_gpu={trials} resources.gpus_per_trial=0",
        )
    learners = (config.algo.get("learners") or {}).get("num_learners")
    for why, is_so in (("a cluster", config.cluster.address is not None), ("learners beside the trial", learners)):
        if trials == MEASURED and is_so:
            raise ConfigError(
                f"resources.trials_per_gpu=auto with {why}: what is measured is a trial's own process, on this machine",
                f"a whole number from 1 to {MAX_ON_GPU}",
                "resources.trials_per_gpu=4",
            )


def _check_one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value} is unknown", choices(value, allowed), f"{key}={allowed[0]}")


def _check_algo(algo: Mapping[str, Any]) -> None:
    """Refuse an algo file without a name or a class, or with a section that RLlib's AlgorithmConfig lacks."""
    for key in ("name", "class"):
        if not isinstance(algo.get(key), str):
            raise ConfigError(
                f"algo.{key} is missing",
                "the name, and 'module:Class' of an AlgorithmConfig",
                "see conf/algo/ppo.yaml",
            )
    for key, value in algo.items():
        if key in ("name", "class"):
            continue
        if key not in SECTIONS:
            raise ConfigError(f"algo.{key} is no section", choices(key, SECTIONS), "see conf/algo/ppo.yaml")
        if not isinstance(value, Mapping):
            raise ConfigError(f"algo.{key}={value} is no section", "a mapping of arguments", "see conf/algo/ppo.yaml")


def _check_name(key: str, name: str | None) -> None:
    """Refuse a name that cannot be part of a folder, a database URL and a registered model.

    A sweep's own name joins those of its environment and algorithm and its time, so that each of them is far shorter
    than a file name may be (255 bytes).
    """
    if name is not None and (not _NAME.fullmatch(name) or name == "latest"):
        written = f"{name!r}" if len(name) <= MAX_NAME else f"{name[:20]!r}... ({len(name)} characters)"
        raise ConfigError(
            f"{key}={written} cannot name a folder",
            f"a letter or a digit, then letters, digits, - _ . ({MAX_NAME} characters at most), and not 'latest'",
            f"{key}=my-{key.split('.')[0]}",
        )
