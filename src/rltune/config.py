"""What a sweep is asked to do, as typed values; the schema under the YAML files in ``conf/``.

Holds no defaults (they live in the YAML, once) and imports nothing heavy, so that a typing error on the command
line is answered at once. Runs in the driver.
"""

from __future__ import annotations

import hashlib
import math
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

import yaml
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, MissingMandatoryValue, OmegaConfBaseException

from rltune.address import redact_settings
from rltune.errors import ConfigError, StudyError, choices

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
ENGINES = ("fast", "rllib")
VECTORIZE = ("auto", "sync", "async", "vector_entry_point")
DIGEST_MARK = "# sha256: "
T = TypeVar("T")


def env_name(env_id: str) -> str:
    """A name for an environment that has no file of its own: ``highway_env:highway-v0`` becomes ``highway``."""
    name = re.sub(r"-v\d+$", "", env_id.rpartition(":")[2].rpartition("/")[2])
    return re.sub(r"[^\w.-]", "-", name).lower()


OmegaConf.register_new_resolver("rltune.env_name", env_name, replace=True)


@dataclass
class BudgetConfig:
    """How much work a sweep may do; steps are environment steps."""

    trials: int = MISSING
    env_steps: int = MISSING
    total_env_steps: int | None = None
    wall_time_s: float | None = None
    reports: int = MISSING


@dataclass
class RewardsConfig:
    """What a policy learns from; its returns are reported as the environment gives them."""

    normalise: bool = False
    scale: float = 1.0
    clip: float | None = None


@dataclass
class EnvConfig:
    """One environment, by its Gymnasium id; by PettingZoo's module where ``policies`` asks for several agents."""

    name: str = MISSING
    id: str = MISSING
    kwargs: dict[str, Any] = field(default_factory=dict)
    wrappers: list[Any] = field(default_factory=list)
    vectorize: str = "auto"
    normalise_observations: bool = False
    rewards: RewardsConfig = field(default_factory=RewardsConfig)
    policies: Any = None


@dataclass
class SearcherConfig:
    """Which sampler proposes trials, and its arguments."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class SchedulerConfig:
    """Which rule stops weak trials, and its arguments."""

    kind: str = MISSING
    args: dict[str, Any] = field(default_factory=dict)


@dataclass
class ResourcesConfig:
    """One trial's share of the machine; None lets the sweep decide."""

    cpus_per_trial: float | None = None
    gpus_per_trial: float = 0.0
    max_concurrent: int | None = None


@dataclass
class TrackingConfig:
    """Where MLflow is; ``uri`` None means its own default store in the working directory."""

    kind: str = MISSING
    uri: str | None = None
    experiment: str | None = None
    register: bool = True


@dataclass
class ClusterConfig:
    """Which Ray runs the trials; ``address`` None starts one on this machine."""

    address: str | None = None
    num_cpus: int | None = None
    num_gpus: int | None = None
    dashboard: bool = False


@dataclass
class CheckpointConfig:
    """How often a trial's latest state is written."""

    every_s: float = MISSING


@dataclass
class FailuresConfig:
    """What is done about trials that go wrong."""

    max_retries: int = MISSING
    stall_s: float = MISSING
    stop_after: int = MISSING


@dataclass
class CertifyConfig:
    """The winner is chosen among the ``top`` best trials: retrained on fresh seeds, or with ``seeds`` 0 as they are."""

    top: int = MISSING
    seeds: int = MISSING
    episodes: int = MISSING
    champion_episodes: int = MISSING


@dataclass
class StudyConfig:
    """Where the ledger is kept."""

    storage: str | None = None


@dataclass
class RunConfig:
    """One sweep."""

    name: str | None = None
    output_dir: str = MISSING
    seed: int = MISSING
    replicates: int = MISSING
    engine: str = MISSING
    report: bool = MISSING
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    algo: dict[str, Any] = field(default_factory=dict)
    env: EnvConfig = field(default_factory=EnvConfig)
    space: dict[str, Any] = field(default_factory=dict)
    wider: dict[str, Any] = field(default_factory=dict)
    warm_start: list[Any] = field(default_factory=list)
    searcher: SearcherConfig = field(default_factory=SearcherConfig)
    scheduler: SchedulerConfig = field(default_factory=SchedulerConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    tracking: TrackingConfig = field(default_factory=TrackingConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    failures: FailuresConfig = field(default_factory=FailuresConfig)
    certify: CertifyConfig = field(default_factory=CertifyConfig)
    study: StudyConfig = field(default_factory=StudyConfig)


def from_mapping(raw: DictConfig | Mapping[str, Any]) -> RunConfig:
    """Turn composed settings into a checked `RunConfig`.

    Args:
        raw: What Hydra composed, or the content of a sweep's ``config.yaml``.

    Raises:
        ConfigError: A key is unknown, missing, or its value is out of range.
    """
    config = typed(RunConfig, raw)
    check(config)
    return config


def typed(schema: type[T], raw: DictConfig | Mapping[str, Any]) -> T:
    """Turn composed settings into an instance of their schema, whose keys and types they must have.

    Raises:
        ConfigError: A key is unknown, missing or of another type.
    """
    try:
        merged = OmegaConf.merge(OmegaConf.structured(schema), raw)
        return cast(T, OmegaConf.to_object(merged))
    except (MissingMandatoryValue, InterpolationToMissingValueError) as error:
        missing = re.search(r"interpolation: .*value: ([\w.]+)$", str(error).splitlines()[0])
        raise ConfigError(
            f"{missing[1] if missing else error.full_key} has no value",
            "a value for every key",
            "set it on the command line",
        ) from None
    except OmegaConfBaseException as error:
        known = [str(key) for key in error.parent_node] if isinstance(error.parent_node, DictConfig) else []
        allowed = choices(str(error.key), known) if str(error.key) not in known else "a value of the key's type"
        raise ConfigError(
            f"{error.full_key}: {str(error).splitlines()[0]}", allowed, "add --cfg job to see all keys"
        ) from None


def read_settings(folder: Path, *, whole: bool = False) -> DictConfig:
    """What a sweep was asked to do, from its folder.

    Args:
        folder: The sweep's.
        whole: Refuse what may lack a part, although what is there makes sense.

    Raises:
        StudyError: The file is missing or damaged.
    """
    path = folder / "config.yaml"
    try:
        text = path.read_text()
        loaded = OmegaConf.create(text)
    except (OSError, ValueError, OmegaConfBaseException, yaml.YAMLError) as error:
        why = str(error).splitlines()[0]
        raise StudyError(f"{path} cannot be read: {why}", "the sweep's settings as YAML", _recovery(path)) from None
    if not isinstance(loaded, DictConfig) or not loaded:
        raise StudyError(f"{path} holds no settings", "the sweep's settings as YAML", _recovery(path))
    body, mark, digest = text.rpartition(DIGEST_MARK)
    if whole and (not mark or digest.strip() not in (_digest(body), "any")):
        raise StudyError(
            f"{path} is not as the sweep wrote it: cut short, damaged or changed",
            f"the whole file; one that you changed ends with the line '{DIGEST_MARK}any'",
            _recovery(path),
        )
    return loaded


def _recovery(path: Path) -> str:
    return f"put the copy back: {path.name} among the artifacts of the sweep's run in MLflow, or the study's 'config'"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def to_yaml(config: RunConfig) -> str:
    """The settings as YAML, the form in which a sweep's folder and MLflow keep them.

    Logins in URLs are left out; the last line holds a digest, by which a damaged file is known.
    """
    # value by value: YAML breaks lines at blanks and escapes quotes, so that a login is no longer in one piece there
    settings = redact_settings(OmegaConf.to_container(OmegaConf.structured(config), enum_to_str=True))
    body = OmegaConf.to_yaml(OmegaConf.create(settings))
    return f"{body}{DIGEST_MARK}{_digest(body)}\n"


def write_settings(folder: Path, config: RunConfig) -> None:
    """Put the settings into a sweep's folder, whole or not at all."""
    draft = folder / ".config.yaml"
    draft.write_text(to_yaml(config))
    draft.rename(folder / "config.yaml")


def check(config: RunConfig) -> None:
    """Refuse values that no sweep can run with. Cheap: nothing heavy is imported.

    Raises:
        ConfigError: Names the first key that is wrong, what is allowed and what to type.
    """
    for key, value, low, usual in _lower_bounds(config):
        if value is not None and not (math.isfinite(value) and value >= low):
            raise ConfigError(f"{key}={value} is out of range", f"{key} of at least {low}", f"{key}={usual}")
    if config.seed >= 2**32:
        raise ConfigError(f"seed={config.seed} is out of range", "0 to 4294967295", "seed=0")
    if config.budget.reports > config.budget.env_steps:
        raise ConfigError(
            f"budget.reports={config.budget.reports} exceeds budget.env_steps={config.budget.env_steps}",
            "at most one report per environment step",
            f"budget.reports={min(20, config.budget.env_steps)}",
        )
    _one_of("tracking.kind", config.tracking.kind, ("local", "server", "off"))
    check_pair(config.algo, config.env, config.engine)
    _check_name("name", config.name)


def check_pair(algo: Mapping[str, Any], env: EnvConfig, engine: str) -> None:
    """Refuse an algorithm, an environment or an engine that cannot be what is meant.

    Raises:
        ConfigError: Names the first key that is wrong, what is allowed and what to type.
    """
    _one_of("engine", engine, ENGINES)
    _one_of("env.vectorize", env.vectorize, VECTORIZE)
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
    """Every bounded number: its key, its value, the least it may be, a usual value."""
    budget, resources, cluster = config.budget, config.resources, config.cluster
    yield "budget.trials", budget.trials, 1, 24
    yield "budget.env_steps", budget.env_steps, 1, 100_000
    yield "budget.total_env_steps", budget.total_env_steps, 1, 1_000_000
    yield "budget.wall_time_s", budget.wall_time_s, 1, 3600
    yield "budget.reports", budget.reports, 1, 20
    yield "replicates", config.replicates, 1, 1
    yield "seed", config.seed, 0, 0
    yield "resources.cpus_per_trial", resources.cpus_per_trial, 0.01, 1
    yield "resources.gpus_per_trial", resources.gpus_per_trial, 0, 0
    yield "resources.max_concurrent", resources.max_concurrent, 1, 1
    yield "cluster.num_cpus", cluster.num_cpus, 1, 2
    yield "cluster.num_gpus", cluster.num_gpus, 0, 0
    yield "checkpoint.every_s", config.checkpoint.every_s, 0, 30
    yield "failures.max_retries", config.failures.max_retries, 0, 1
    yield "failures.stall_s", config.failures.stall_s, 1, 300
    yield "failures.stop_after", config.failures.stop_after, 1, 5
    yield "certify.top", config.certify.top, 0, 3
    yield "certify.seeds", config.certify.seeds, 0, 5
    yield "certify.episodes", config.certify.episodes, 1, 50
    yield "certify.champion_episodes", config.certify.champion_episodes, 1, 100


def _one_of(key: str, value: str, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{key}={value} is unknown", choices(value, allowed), f"{key}={allowed[0]}")


def _check_algo(algo: Mapping[str, Any]) -> None:
    """An algo file has a name, a class, and sections that RLlib's AlgorithmConfig has."""
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
    """Names become parts of folders, of database URLs and of registered models."""
    if name is not None and (not re.fullmatch(r"[\w.-]+", name, re.ASCII) or name in (".", "..", "latest")):
        raise ConfigError(
            f"{key}={name!r} cannot name a folder", "letters, digits, - _ .", f"{key}=my-{key.split('.')[0]}"
        )


def new_name(config: RunConfig, now: datetime | None = None) -> str:
    """A sweep's name: as given, or ``<env>-<algo>-<UTC time>-<4 hex>``."""
    if config.name:
        return config.name
    time = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    return f"{config.env.name}-{config.algo['name']}-{time}-{secrets.token_hex(2)}"


def sweep_folder(config: RunConfig, name: str) -> Path:
    """The absolute folder of a sweep. Absolute, because Tune changes a trial's working directory."""
    return Path(config.output_dir).expanduser().absolute() / name
