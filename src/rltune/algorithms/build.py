"""Build an RLlib AlgorithmConfig from an algo file and one sampled configuration.

Each section of the file is passed to the fluent method of AlgorithmConfig with its name. RLlib is imported inside the
functions, because that takes seconds. The driver builds configs to check them before the first trial, workers to train.
"""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from rltune.algorithms.arguments import (
    ENCODER,
    ENCODER_KWARGS,
    META,
    MODULE_CLASS,
    NORMALISE,
    apply_params,
    name_arguments,
    read_encoder,
)
from rltune.algorithms.checks import make_unknown_error
from rltune.algorithms.rllib_env import DISCOUNT, register_for_rllib
from rltune.config.capabilities import capabilities_of, find_capabilities
from rltune.config.entry_points import import_entry_point, is_subclass
from rltune.envs.build import is_plain
from rltune.envs.facts import EnvFacts
from rltune.envs.observations import find_layout, find_network_spaces
from rltune.envs.searched import ENV, TRAIN_ENV, select_values, set_env_arguments
from rltune.envs.spec import NATIVE, EnvSpec
from rltune.errors import ABSENT, ConfigError

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


DEFAULT_MODULE = "default_policy"
CONNECTORS = ("env_to_module_connector", "module_to_env_connector", "learner_connector")


@dataclass(frozen=True)
class Build:
    """Everything that determines an RLlib algorithm, except its sampled hyperparameters and its seed.

    Attributes:
        algo: The algo file: name, class and sections.
        env: The environment in which policies are judged.
        train_env: The environment that the algorithm learns in; None if that is ``env``.
        vectorize: How copies of the environment step together: auto, sync, async or vector_entry_point.
        gpus: The number of GPUs of the trial, or a fraction of one.
        replicates: The number of algorithms in a trial, one for each seed; they take turns.
        precision: The precision of matrix products, see `rltune.engine.networks.mixed_precision`.
        facts: What a check has learned about the environment (`rltune.envs.validation.check_env`), so that nobody makes
            a copy of it to look at.
    """

    algo: Mapping[str, Any]
    env: EnvSpec
    vectorize: str = "auto"
    gpus: float = 0.0
    replicates: int = 1
    precision: str = "float32"
    facts: EnvFacts = field(kw_only=True)
    train_env: EnvSpec | None = field(default=None, kw_only=True)

    @property
    def arguments(self) -> dict[str, Any]:
        """The algo file with the environment's arguments: all that a space may name."""
        return name_arguments(self.algo, self.env)

    @property
    def training_env(self) -> EnvSpec:
        """The environment that the algorithm learns in."""
        return self.train_env or self.env

    @property
    def copies(self) -> int:
        """How many copies of the environment a process has at once; those of ``async`` have one process each."""
        sampling = self.algo.get("env_runners") or {}
        return 1 if self.vectorize == "async" else int(sampling.get("num_envs_per_env_runner") or 1)

    def with_params(self, params: Mapping[str, Any]) -> Build:
        """Return this with a sample's values in the algo file and the environment, and what follows from them for it.

        That is what it normalises, whether the choices of an action are joined, and where its mask is.
        """
        algo = apply_params(self.algo, params)
        env = set_env_arguments(self.env, select_values(params, ENV))
        train_env = set_env_arguments(self.training_env, select_values(params, ENV, TRAIN_ENV))
        is_same = train_env == env
        env, train_env = self._adapt(env, algo), self._adapt(train_env, algo)
        return replace(self, algo=algo, env=env, train_env=None if is_same else train_env)

    def _adapt(self, env: EnvSpec, algo: Mapping[str, Any]) -> EnvSpec:
        """Return an environment as an algo file's settings and the facts have it."""
        from rltune.envs.spaces import has_other_choices  # Imported here, because Gymnasium loads slowly.

        wanted = algo.get(NORMALISE, ())
        if "observations" in wanted:
            env = replace(env, normalise_observations=True)
        if "rewards" in wanted:
            env = replace(env, rewards={"normalise": True})
        row = find_capabilities(algo) or capabilities_of(import_config_class(algo))
        if (mask := self.facts.mask) is not None:
            env = replace(env, action_mask=mask.to_dict())
        joins = row.joins_choices or (mask is not None and mask.joint)
        if joins and env.policies is None and has_other_choices(self.facts.action_space):
            env = replace(env, joint_actions=True)
        return env


def import_config_class(algo: Mapping[str, Any]) -> type[AlgorithmConfig]:
    """Import the AlgorithmConfig class that ``algo.class`` names.

    Raises:
        ConfigError: It cannot be imported, or is not an AlgorithmConfig.
    """
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    # Hide RLlib's announcements of its new API stack and its own deprecation notes, but keep warnings about settings.
    logging.getLogger("ray.rllib").setLevel(logging.ERROR)
    logger = logging.getLogger(AlgorithmConfig.__module__)
    logger.setLevel(logging.WARNING)
    logger.addFilter(_is_no_announcement)
    usage = "'module:Class' of an AlgorithmConfig in an installed package"
    is_config = is_subclass(AlgorithmConfig)
    target = str(algo["class"])
    cls: type[AlgorithmConfig] = import_entry_point(
        "algo.class", target, "AlgorithmConfig", is_config, usage, "see conf/algo/ppo.yaml"
    )
    return cls


def _is_no_announcement(record: logging.LogRecord) -> bool:
    """Return False for RLlib's log line about its new API stack, which drops the line; a ``logging`` filter."""
    return not str(record.msg).startswith("You are running ")


def build_config(build: Build, params: Mapping[str, Any], seed: int) -> AlgorithmConfig:
    """Build RLlib's config for one configuration and one of its seeds.

    Args:
        build: The parts that stay the same over the sweep.
        params: The sample's values by name.
        seed: The seed of the environments, the network and the sampling of actions.

    Raises:
        ConfigError: A section has an argument that RLlib lacks, or a value that it refuses.
    """
    from rltune.algorithms.connectors import NormaliseObservations

    build = build.with_params(params)
    algo, env = build.algo, build.training_env
    config = import_config_class(algo)()
    has_processes = build.vectorize == "async"
    if is_plain(env, build.facts) and not has_processes:
        # The id is RLlib's own name for it, so that its native vector version can be used.
        config.environment(env=env.id, env_config=dict(env.kwargs))
    else:
        config.environment(env=register_for_rllib(env, build.facts if has_processes else None))
    if env.rewards.get("normalise"):
        discount = (algo.get("training") or {}).get("gamma")
        config.environment(env_config={DISCOUNT: float(config.gamma if discount is None else discount)})
    # By default RLlib (2.60) restarts a failing env runner forever and trains on without its samples. Here the
    # environment's error fails the trial instead, whose retry continues from the trial's last checkpoint.
    config.fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=False)
    for section, arguments in algo.items():
        if section not in META:
            _apply(config, section, dict(arguments), str(algo["name"]))
    if not config.normalize_actions:  # RLlib would send actions that lie outside of their space.
        config.environment(clip_actions=True)
    if env.policies is not None:
        from rltune.algorithms.multi_agent import configure_agents

        configure_agents(config, env, build.facts)
    else:
        from rltune.compat.row_catalog import see_rows

        layout = find_layout(build.facts.observation_space, env)
        if encoder := read_encoder(algo):
            from rltune.algorithms.encoders import use_extractor
            from rltune.policies.extractors import ExtractorSpec

            use_extractor(config, ExtractorSpec(*encoder), build.facts.observation_space, layout)
        see_rows(config, layout)
    if config.is_offline:
        _read_recorded(config, build)
    if env.normalise_observations:
        columns = find_layout(build.facts.observation_space, env).vector_columns
        config.env_runners(env_to_module_connector=NormaliseObservations(columns.start, columns.stop))
    # What only single copies do, shaping rewards and recording episodes, goes before a native vector environment.
    if has_processes or (build.vectorize == NATIVE and not env.needs_single_copies):
        config.env_runners(gym_env_vectorize_mode=build.vectorize)
    _share_resources(config, build)
    config.debugging(seed=seed, log_level="ERROR")
    return config


def _share_resources(config: AlgorithmConfig, build: Build) -> None:
    """Divide a trial's CPUs and GPUs, see `rltune.cluster.resources.Share`, among its env runners and learners.

    Each env runner and learner has a bundle with one CPU. The algorithms of several seeds take turns, so that each of
    their processes requests only a part of the CPU: if one requested all of it, those of the other seeds would wait
    forever.
    """
    # Rounded down to four digits, because Ray counts resources in units of 1/10,000.
    part = math.floor(10_000 / build.replicates) / 10_000
    config.env_runners(num_cpus_per_env_runner=part)
    # RLlib's new API stack ignores resources(num_gpus=...), so the GPUs are set for the learners (Ray 2.60).
    if config.num_learners:
        gpus = build.gpus / config.num_learners
        config.learners(num_cpus_per_learner=part, num_gpus_per_learner=gpus * part)
    elif build.gpus:
        config.learners(num_gpus_per_learner=build.gpus)


def _read_recorded(config: AlgorithmConfig, build: Build) -> None:
    """Let an offline algorithm read datasets in our format; its spaces are those of the evaluation environment."""
    from rltune.algorithms.offline_data import RecordedEpisodes

    if build.env.normalise_observations:
        raise ConfigError(
            f"algo.{NORMALISE}",
            ["observations"],
            ": offline algorithms do not normalise a dataset",
            "[] for offline algorithms",
            f"algo.{NORMALISE}=[]",
        )
    if (pair := build.facts.find_policy_spaces()) is not None:
        observation_space, action_space = find_network_spaces(*pair, build.env)
        config.environment(observation_space=observation_space, action_space=action_space)
    if not config.offline_data_class:
        config.offline_data(offline_data_class=RecordedEpisodes)


def make_inputs_absolute(algo: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the algo file with an absolute path to its dataset, because each trial runs in its own folder.

    Raises:
        ConfigError: The file does not exist, or is not a dataset.
    """
    offline = algo.get("offline_data") or {}
    if not isinstance(offline.get("input_"), str):
        return algo
    from rltune.algorithms.datasets import check_dataset

    path = str(FilePath(offline["input_"]).expanduser().absolute())
    check_dataset(path)
    return {**algo, "offline_data": {**offline, "input_": path}}


def _apply(config: AlgorithmConfig, section: str, arguments: dict[str, Any], name: str) -> None:
    """Pass a section of the algo file to the AlgorithmConfig method of the same name; explain unknown arguments."""
    if section == "rl_module":
        for each in (ENCODER, ENCODER_KWARGS):  # `build_config` sets the encoder, when it knows the spaces.
            arguments.pop(each, None)
        if target := arguments.pop(MODULE_CLASS, None):
            _set_module_class(config, target, arguments.pop("small_policy_init", False))
        else:
            _set_policy_init(config, arguments)
        if not target and isinstance(arguments.get("model_config"), Mapping):
            from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

            arguments["model_config"] = DefaultModelConfig(**arguments["model_config"])
    _import_own_parts(section, arguments)
    try:
        getattr(config, section)(**arguments)
    except TypeError as error:
        method = getattr(type(config), section)
        allowed = _list_keywords(type(config), section)
        unknown = [key for key in arguments if key not in allowed]
        if not unknown:
            raise ConfigError(
                f"algo.{section}",
                ABSENT,
                f"of '{name}': {error}",
                str(inspect.signature(method)),
                "see RLlib's documentation",
            ) from None
        raise make_unknown_error(type(config).__name__, section, unknown[0], arguments[unknown[0]], allowed) from None
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"algo.{section}", ABSENT, f"of '{name}': {error}", "what RLlib accepts", "see RLlib's documentation"
        ) from None


def _set_policy_init(config: AlgorithmConfig, arguments: dict[str, Any]) -> None:
    """Apply and remove ``small_policy_init`` for PPO and A2C; for other algorithms RLlib refuses it as unknown."""
    from ray.rllib.algorithms.ppo import PPOConfig

    if isinstance(config, PPOConfig) and arguments.pop("small_policy_init", False):
        from rltune.algorithms.ppo import begin_with_small_policy

        begin_with_small_policy(config)


def _set_module_class(config: AlgorithmConfig, target: str, begins_small: bool) -> None:
    """Let a config build the user's own RLModule, which stock RLlib trains.

    Raises:
        ConfigError: There is no such class, or it is no RLModule.
    """
    from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

    from rltune.algorithms.ppo import SmallPolicyCatalog

    key, usage = f"algo.rl_module.{MODULE_CLASS}", "package.module:Class of a ray.rllib.core.rl_module.RLModule"
    cls = import_entry_point(key, target, "RLModule", is_subclass(RLModule), usage, f"~{key}")
    # A subclass of RLlib's default module builds its layers by a catalog; others leave it alone.
    catalog = SmallPolicyCatalog if begins_small else None
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=cls, catalog_class=catalog))


def _import_own_parts(section: str, arguments: dict[str, Any]) -> None:
    """Import the user's own env runner, learner and connectors, which the algo file names as ``package.module:Name``.

    Raises:
        ConfigError: One of them cannot be imported, or is something else.
    """
    from ray.rllib.core.learner import Learner
    from ray.rllib.env.env_runner import EnvRunner

    connector = ("function that returns connectors", lambda part: callable(part) and not isinstance(part, type))
    parts: dict[str, tuple[str, Callable[[Any], bool]]] = {
        "env_runner_cls": ("ray.rllib.env.env_runner.EnvRunner", is_subclass(EnvRunner)),
        "learner_class": ("ray.rllib.core.learner.Learner", is_subclass(Learner)),
        **dict.fromkeys(CONNECTORS, connector),
    }
    for name, (what, accept) in parts.items():
        if isinstance(arguments.get(name), str):
            usage, fix = f"package.module:Name of a {what}", "see examples/own_sampler_and_learner.py"
            key = f"algo.{section}.{name}"
            arguments[name] = import_entry_point(key, arguments[name], what, accept, usage, fix)


def _list_keywords(cls: type, section: str) -> list[str]:
    """List the arguments of an AlgorithmConfig method, including those that it passes to parent classes."""
    methods = [vars(base)[section] for base in cls.__mro__ if section in vars(base)]
    parameters = [p for m in methods for p in list(inspect.signature(m).parameters.values())[1:]]
    names = {p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return sorted(names)
