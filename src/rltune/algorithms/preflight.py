"""Build the corners of a space once, so that a combination that cannot work is refused before the first trial."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from rltune.algorithms.arguments import check_unread, count_env_runners, count_learners
from rltune.algorithms.build import DEFAULT_MODULE, Build, build_config, import_config_class
from rltune.config.capabilities import capabilities_of, find_capabilities, list_algos
from rltune.envs.pettingzoo import policy_spaces
from rltune.errors import ConfigError
from rltune.search.space import Space

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig


# Settings of processes that `rltune.cluster.resources.Share` has no place for, and values that ask for none.
ONE_CPU_EACH: tuple[tuple[str, str, tuple[Any, ...]], ...] = (
    ("env_runners", "num_cpus_per_env_runner", (1,)),
    ("env_runners", "num_gpus_per_env_runner", ()),
    ("env_runners", "custom_resources_per_env_runner", ()),
    ("learners", "num_cpus_per_learner", (1, "auto")),
    ("learners", "custom_resources_per_learner", ()),
    ("learners", "num_aggregator_actors_per_learner", ()),
    ("evaluation", "evaluation_num_env_runners", ()),
)


def check_corners(build: Build, space: Space) -> list[AlgorithmConfig]:
    """Build and validate the config at the ends of the space, and its network once, before the first trial.

    Returns:
        The configs at these ends.

    Raises:
        ConfigError: With the corner's values and RLlib's own message.
    """
    check_unread(build.algo, space, capabilities_of(import_config_class(build.algo)))
    networks: dict[str, AlgorithmConfig] = {}
    configs = []
    for corner in space.corners():
        config = build_config(build, corner, seed=0)
        configs.append(config)
        networks.setdefault(str(config.model_config), config)
        _check_processes(config, build.algo)
        _check_lstm(config)
        try:
            config.validate()
        except (ValueError, AssertionError, NotImplementedError) as error:
            raise ConfigError(
                f"algo '{build.algo['name']}' cannot be configured with {_format_corner(corner)}: {_first_line(error)}",
                "values that RLlib accepts at every corner of the space",
                f"narrow the space: {_suggest_fixed_value(space)}",
            ) from None
    for config in networks.values():
        _build_module(config, build)
    return configs


def _check_processes(config: AlgorithmConfig, algo: Mapping[str, Any]) -> None:
    """Refuse processes that the trial's share does not count: Ray would wait for their CPUs for ever.

    Some of RLlib's configs ask for remote processes by default (APPO for one learner and two env runners, Ray 2.60).
    """
    for key, found, counted in (
        ("algo.env_runners.num_env_runners", config.num_env_runners, count_env_runners(algo)),
        ("algo.learners.num_learners", config.num_learners, count_learners(algo)),
    ):
        if found != counted:
            raise ConfigError(
                f"{key}={found} by RLlib's default for {type(config).__name__}, which the trial's share does not hold",
                "the number of env runners and of learners in the algo file",
                f"+{key}={counted}",
            )
    for section, name, allowed in ONE_CPU_EACH:
        found = (algo.get(section) or {}).get(name)
        if found and found not in allowed:
            raise ConfigError(
                f"algo.{section}.{name}={found}: a trial's share does not hold it",
                "one CPU for the trial's process (resources.cpus_per_trial) and for each env runner and learner; "
                "GPUs (resources.gpus_per_trial) for the learners alone",
                f"~algo.{section}.{name}",
            )


def _check_lstm(config: AlgorithmConfig) -> None:
    """Refuse networks with an LSTM where RLlib would fail in the first update (Ray 2.60)."""
    able = capabilities_of(type(config)).lstm
    if config.model_config.get("use_lstm") and (not able or config.is_multi_agent):
        who = "policies of several agents act with" if able else f"RLlib 2.60's {type(config).__name__} trains"
        raise ConfigError(
            f"algo.rl_module.model_config.use_lstm=true: {who} no LSTM",
            f"use_lstm with {list_algos(lambda row: row.lstm)} and one agent",
            "algo.rl_module.model_config.use_lstm=false, or algo=ppo",
        )


def _suggest_fixed_value(space: Space) -> str:
    """Return what to type to fix one parameter of this space."""
    dimension = next(iter(space.dimensions), None)
    return f"space.{dimension.name}={dimension.ends()[0]}" if dimension else "change the algo's values"


def _build_module(config: AlgorithmConfig, build: Build) -> None:
    """Build the network alone, where an action space that the algorithm cannot handle shows."""
    from rltune.envs.build import make_env

    env = make_env(build.env)
    if build.env.policies is not None:
        spaces = policy_spaces(build.env, env)
    else:
        spaces = {DEFAULT_MODULE: (env.observation_space, env.action_space)}
        check_actions(build.algo, build.env.id, env.action_space)
    env.close()
    try:
        config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()
    except Exception as error:  # RLlib raises whatever its catalogs happen to meet
        raise ConfigError(
            f"algo '{build.algo['name']}' cannot act in env.id={build.env.id}: {_first_line(error)}",
            "an environment whose observations and actions the algorithm handles",
            "choose another env= or algo=",
        ) from None


def check_actions(algo: Mapping[str, Any], env_id: str, action_space: Any) -> None:
    """Refuse the two mismatches whose errors inside RLlib say nothing to a reader.

    An algorithm of the table is known by its name; any other is imported only where RLlib is there already.

    Args:
        algo: The algo file.
        env_id: The environment's.
        action_space: Its actions; None where each of several agents has its own.
    """
    import gymnasium

    if action_space is None:
        return
    kind = "discrete" if isinstance(action_space, gymnasium.spaces.Discrete) else "continuous"
    known = find_capabilities(algo)
    if known is None and "ray.rllib" in sys.modules:
        known = capabilities_of(import_config_class(algo))
    if known is not None and known.actions not in ("both", kind):
        raise ConfigError(
            f"algo={algo['name']} cannot act in env.id={env_id}, whose actions are {action_space}",
            f"{kind} actions are for {list_algos(lambda row: row.actions in ('both', kind))}",
            "algo=ppo, or another env=",
        )


def _format_corner(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in params.items())


def _first_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]
