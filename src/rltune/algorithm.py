"""An algo file and one sample of the space become a validated RLlib AlgorithmConfig.

One loop over the file's sections, each the name of a fluent method of AlgorithmConfig. RLlib is imported inside the
functions, since it takes seconds. Runs in the driver (checks before the first trial) and in workers.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any

from rltune import agents
from rltune.capabilities import capabilities_of, list_algos
from rltune.environment import EnvSpec, is_plain, rllib_name
from rltune.errors import ConfigError, choices
from rltune.space import Space, parse

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

Path = tuple[str, ...]
META = ("name", "class")
DEFAULT_MODULE = "default_policy"


@dataclass(frozen=True)
class Build:
    """Everything one RLlib algorithm is built from, apart from its sampled values.

    Attributes:
        algo: The algo file: name, class and sections.
        env: The environment.
        vectorize: How copies of it step together: auto, sync, async or vector_entry_point.
        gpus: GPUs of the trial, or the fraction of one.
    """

    algo: Mapping[str, Any]
    env: EnvSpec
    vectorize: str = "auto"
    gpus: float = 0.0


def leaves(algo: Mapping[str, Any]) -> dict[str, list[Path]]:
    """Every argument of an algo file by its name, with the places where it stands."""
    found: dict[str, list[Path]] = {}
    for path in _walk({key: value for key, value in algo.items() if key not in META}, ()):
        if len(path) > 1:
            found.setdefault(path[-1], []).append(path)
    return found


def _walk(node: Mapping[str, Any], above: Path) -> Iterator[Path]:
    for key, value in node.items():
        yield (*above, str(key))
        if isinstance(value, Mapping):
            yield from _walk(value, (*above, str(key)))


def locate(algo: Mapping[str, Any], name: str, key: str | None = None) -> Path:
    """Where the argument ``name`` stands in an algo file.

    Args:
        algo: The algo file.
        name: An argument, or its last parts joined by dots where the name alone stands in two places.
        key: How the user wrote it, for the error; ``space.<name>`` when None.

    Raises:
        ConfigError: No section has it, or more than one.
    """
    parts = tuple(name.split("."))
    places = [path for path in leaves(algo).get(parts[-1], []) if path[-len(parts) :] == parts]
    if len(places) == 1:
        return places[0]
    key = key or f"space.{name}"
    if not places:
        raise ConfigError(
            f"{key}: algo '{algo['name']}' has no argument '{name}'",
            choices(name, leaves(algo)),
            f"add it to the algo first, such as +algo.training.{name}=..., or drop it with ~{key}",
        )
    where = ", ".join(".".join(path) for path in places)
    raise ConfigError(
        f"{key}: '{name}' stands in several places", where, f"write it as space.{'.'.join(places[0][-2:])}"
    )


def search_space(algo: Mapping[str, Any], raw: Mapping[str, Any]) -> Space:
    """Read a ``space`` group whose conditions may name arguments of an algo file too.

    Raises:
        ConfigError: As `rltune.space.parse`.
    """
    alone = tuple(name for name, places in leaves(algo).items() if len(places) == 1)
    return parse(raw, values_of(algo, alone))


def values_of(algo: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The algo file's own values of the named arguments."""
    found = {}
    for name in names:
        node: Any = algo
        for part in locate(algo, name):
            node = node[part]
        found[name] = node
    return found


def widest_layer(algo: Mapping[str, Any]) -> int:
    """Units of the widest hidden layer that the algo file names; 0 when it names none."""
    model = (algo.get("rl_module") or {}).get("model_config") or {}
    layers = [model.get("fcnet_hiddens") or [], model.get("head_fcnet_hiddens") or []]
    return max((units for sizes in layers for units in sizes if isinstance(units, int)), default=0)


def with_params(algo: Mapping[str, Any], params: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of the algo file with a sample's values in their places."""
    merged = copy.deepcopy(dict(algo))
    for name, value in params.items():
        *sections, last = locate(algo, name)
        node = merged
        for part in sections:
            node = node[part]
        node[last] = value
    return merged


def config_class(algo: Mapping[str, Any]) -> type[AlgorithmConfig]:
    """Import the AlgorithmConfig that ``algo.class`` names.

    Raises:
        ConfigError: It cannot be imported, or is no AlgorithmConfig.
    """
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    logging.getLogger("ray.rllib").setLevel(logging.ERROR)  # it announces its new API stack with every first config

    target = str(algo["class"])
    module, _, name = target.partition(":")
    usage = "'module:Class' of an AlgorithmConfig in an installed package"
    try:
        found = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"algo.class={target} cannot be imported: {error}", usage, "see conf/algo/ppo.yaml") from None
    if not (isinstance(found, type) and issubclass(found, AlgorithmConfig)):
        raise ConfigError(f"algo.class={target} is no AlgorithmConfig", usage, "see conf/algo/ppo.yaml")
    return found


def configure(build: Build, params: Mapping[str, Any], seed: int) -> AlgorithmConfig:
    """Build RLlib's config for one seed of one configuration.

    Args:
        build: What stays the same over the sweep.
        params: The sample's values by name.
        seed: Seeds the environments, the network and the sampling of actions.

    Raises:
        ConfigError: A section has an argument that RLlib does not know, or a value that it refuses.
    """
    from rltune.connectors import mean_std_connector

    algo = with_params(build.algo, params)
    config = config_class(algo)()
    config.environment(env=rllib_name(build.env), env_config=dict(build.env.kwargs) if is_plain(build.env) else {})
    # RLlib would start a failing env runner again for ever and train on without it (2.60): a trial is to fail of it,
    # with the environment's own words, and goes on from its checkpoint.
    config.fault_tolerance(restart_failed_env_runners=False, ignore_env_runner_failures=False)
    for section, arguments in algo.items():
        if section not in META:
            _apply(config, section, dict(arguments), str(algo["name"]))
    if build.env.policies is not None:
        from rltune import multi_agent

        multi_agent.configure(config, build.env, str(algo["name"]))
    if config.is_offline:
        _read_recorded(config, build.env)
    if build.env.normalise_observations:
        config.env_runners(env_to_module_connector=mean_std_connector)
    if build.vectorize not in ("auto", "sync"):
        config.env_runners(gym_env_vectorize_mode=build.vectorize)
    if build.gpus:
        # resources(num_gpus=...) is ignored by the new API stack; the local learner's share is what counts (Ray 2.60).
        config.learners(num_gpus_per_learner=build.gpus)
    config.debugging(seed=seed, log_level="ERROR")
    return config


def _read_recorded(config: AlgorithmConfig, spec: EnvSpec) -> None:
    """Let an offline algorithm read our datasets; the environment tells it the spaces and evaluates it."""
    from rltune.environment import make
    from rltune.offline import RecordedEpisodes

    if spec.normalise_observations:
        raise ConfigError(
            "env.normalise_observations=true: a dataset is learned from as it is",
            "false for offline algorithms",
            "env.normalise_observations=false",
        )
    env = make(spec)
    config.environment(observation_space=env.observation_space, action_space=env.action_space)
    env.close()
    if not config.offline_data_class:
        config.offline_data(offline_data_class=RecordedEpisodes)


def with_absolute_inputs(algo: Mapping[str, Any]) -> Mapping[str, Any]:
    """The algo file with its dataset's absolute path: a trial runs in a folder of its own.

    Raises:
        ConfigError: There is no such dataset, or it is none.
    """
    offline = algo.get("offline_data") or {}
    if not isinstance(offline.get("input_"), str):
        return algo
    from rltune.dataset import check

    path = str(FilePath(offline["input_"]).expanduser().absolute())
    check(path)
    return {**algo, "offline_data": {**offline, "input_": path}}


def _apply(config: AlgorithmConfig, section: str, arguments: dict[str, Any], name: str) -> None:
    if section == "rl_module" and isinstance(arguments.get("model_config"), Mapping):
        arguments["model_config"] = _model_config(arguments["model_config"])
    try:
        getattr(config, section)(**arguments)
    except TypeError as error:
        method = getattr(type(config), section)
        known = _keywords(type(config), section)
        unknown = [key for key in arguments if key not in known]
        if not unknown:
            raise ConfigError(
                f"algo.{section} of '{name}': {error}",
                str(inspect.signature(method)),
                "see RLlib's documentation",
            ) from None
        raise ConfigError(
            f"algo.{section}.{unknown[0]}={arguments[unknown[0]]}: {type(config).__name__} has no such argument",
            choices(unknown[0], known),
            f"correct or remove it: ~algo.{section}.{unknown[0]}",
        ) from None
    except (ValueError, KeyError) as error:
        raise ConfigError(
            f"algo.{section} of '{name}': {error}", "what RLlib accepts", "see RLlib's documentation"
        ) from None


def _keywords(cls: type, section: str) -> list[str]:
    """The keyword arguments of a fluent method, its parents' included (RLlib passes them on by ``**kwargs``)."""
    methods = [vars(base)[section] for base in cls.__mro__ if section in vars(base)]
    names = {p.name for m in methods for p in inspect.signature(m).parameters.values() if p.kind is p.KEYWORD_ONLY}
    return sorted(names)


def _model_config(raw: Mapping[str, Any]) -> Any:
    """RLlib's typed model settings, which refuse unknown names (a plain mapping would keep them without a word)."""
    from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

    try:
        return DefaultModelConfig(**raw)
    except TypeError:
        known = list(DefaultModelConfig.__dataclass_fields__)
        unknown = next(key for key in raw if key not in known)
        raise ConfigError(
            f"algo.rl_module.model_config.{unknown}={raw[unknown]}: RLlib has no such model setting",
            choices(unknown, known),
            f"correct or remove it: ~algo.rl_module.model_config.{unknown}",
        ) from None


def preflight(build: Build, space: Space) -> list[AlgorithmConfig]:
    """Build and validate the config at the ends of the space, and its network once, before the first trial.

    Returns:
        The configs at these ends.

    Raises:
        ConfigError: With the corner's values and RLlib's own message.
    """
    networks: dict[str, AlgorithmConfig] = {}
    configs = []
    for corner in space.corners():
        config = configure(build, corner, seed=0)
        configs.append(config)
        networks.setdefault(str(config.model_config), config)
        _check_processes(config, build.algo)
        _check_memory(config)
        _check_unread(config)
        try:
            config.validate()
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise ConfigError(
                f"algo '{build.algo['name']}' cannot be configured with {_short(corner)}: {_first_line(error)}",
                "values that RLlib accepts at every corner of the space",
                f"narrow the space: {_example(space)}",
            ) from None
    for config in networks.values():
        _build_module(config, build)
    return configs


def _check_processes(config: AlgorithmConfig, algo: Mapping[str, Any]) -> None:
    """Refuse processes that the trial's share does not count: Ray would wait for their CPUs for ever.

    Some of RLlib's configs ask for remote processes by default (APPO for one learner and two env runners, Ray 2.60).
    """
    counted = int((algo.get("env_runners") or {}).get("num_env_runners") or 0)
    for key, found, allowed in (
        ("algo.env_runners.num_env_runners", config.num_env_runners, counted),
        ("algo.learners.num_learners", config.num_learners, 0),
    ):
        if found != allowed:
            raise ConfigError(
                f"{key}={found} by RLlib's default for {type(config).__name__}, which the trial's share does not hold",
                "the number of env runners in the algo file, and the learner in the trial's own process",
                f"+{key}={allowed}",
            )


def _check_memory(config: AlgorithmConfig) -> None:
    """Refuse networks with an LSTM where RLlib would fail of them in the first update (Ray 2.60)."""
    able = capabilities_of(type(config)).lstm
    if config.model_config.get("use_lstm") and (not able or config.is_multi_agent):
        who = "policies of several agents act with" if able else f"RLlib 2.60's {type(config).__name__} trains"
        raise ConfigError(
            f"algo.rl_module.model_config.use_lstm=true: {who} no LSTM",
            f"use_lstm with {list_algos(lambda row: row.lstm)} and one agent",
            "algo.rl_module.model_config.use_lstm=false, or algo=ppo",
        )


def _check_unread(config: AlgorithmConfig) -> None:
    """Refuse what RLlib would take and pass over without a word (Ray 2.60)."""
    for name, why, instead in capabilities_of(type(config)).unread:
        if getattr(config, name):
            raise ConfigError(
                f"algo.training.{name}=true: RLlib 2.60's new API stack {why}, so it would change nothing",
                f"{name}=false, with {instead}",
                f"algo.training.{name}=false",
            )
    for key in ("lstm_use_prev_action", "lstm_use_prev_reward"):
        if config.model_config.get(key):
            raise ConfigError(
                f"algo.rl_module.model_config.{key}=true: RLlib 2.60's new API stack reads it nowhere",
                f"{key}=false",
                f"~algo.rl_module.model_config.{key}",
            )


def _example(space: Space) -> str:
    """How one parameter of this space is fixed, as a thing to type."""
    dimension = next(iter(space.dimensions), None)
    return f"space.{dimension.name}={dimension.ends()[0]}" if dimension else "change the algo's values"


def _build_module(config: AlgorithmConfig, build: Build) -> None:
    """Build the network alone: an action space that the algorithm cannot handle shows here."""
    from rltune.environment import make

    env = make(build.env)
    if build.env.policies is not None:
        spaces = agents.policy_spaces(build.env, env)
    else:
        spaces = {DEFAULT_MODULE: (env.observation_space, env.action_space)}
        _check_actions(build, env.action_space)
    env.close()
    try:
        config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()
    except Exception as error:  # RLlib raises whatever its catalogs happen to meet
        raise ConfigError(
            f"algo '{build.algo['name']}' cannot act in env.id={build.env.id}: {_first_line(error)}",
            "an environment whose observations and actions the algorithm handles",
            "choose another env= or algo=",
        ) from None


def _check_actions(build: Build, action_space: Any) -> None:
    """Refuse the two mismatches whose errors inside RLlib say nothing to a reader."""
    import gymnasium

    kind = "discrete" if isinstance(action_space, gymnasium.spaces.Discrete) else "continuous"
    able = capabilities_of(config_class(build.algo)).actions
    if able not in ("both", kind):
        raise ConfigError(
            f"algo={build.algo['name']} cannot act in env.id={build.env.id}, whose actions are {action_space}",
            f"{'Discrete' if able == 'discrete' else 'Box'} actions",
            "algo=ppo, or an environment with such actions",
        )


def _short(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in params.items())


def _first_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]
