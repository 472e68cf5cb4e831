"""Build the configs at the corners of a search space before the first trial, to refuse those that RLlib rejects."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from rltune.algorithms.arguments import check_unread, count_env_runners, count_learners
from rltune.algorithms.build import DEFAULT_MODULE, Build, build_config, import_config_class
from rltune.algorithms.checks import check_algorithm
from rltune.config.capabilities import Capabilities, capabilities_of, find_capabilities, list_algos
from rltune.envs.build import is_plain
from rltune.envs.pettingzoo import describe_agent, policy_spaces
from rltune.envs.spec import EnvSpec
from rltune.errors import ConfigError
from rltune.search.space import Space

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from rltune.envs.masks import MaskSource


MAX_NAMED = 3  # Other values are tried for at most this many parameters that RLlib's error names.


def check_corners(build: Build, space: Space) -> list[AlgorithmConfig]:
    """Build and validate the config at each corner of the space, and build each distinct network once.

    Returns:
        The configs at the corners.

    Raises:
        ConfigError: A corner cannot be configured; the error has its values and RLlib's message.
    """
    if find_capabilities(build.algo) is None:  # The others were checked before RLlib was imported.
        row = capabilities_of(import_config_class(build.algo))
        check_algorithm(build.arguments, space, row, several_agents=build.env.policies is not None)
    from rltune.algorithms.encoders import without_extractor
    from rltune.compat.row_catalog import ENCODER

    networks: dict[str, AlgorithmConfig] = {}
    configs = []
    for corner in space.corners():
        config = build_config(build, corner, seed=0)
        configs.append(config)
        networks.setdefault(str(config.model_config), config)
        _check_processes(config, build.algo)
        if error := _find_fault(config):
            raise ConfigError(
                "algo",
                build.algo["name"],
                f"cannot be configured with {_format_corner(corner)}: {_first_line(error)}",
                "values that RLlib accepts at every corner of the space",
                f"narrow the space: {_suggest_value(build, space, corner, str(error))}",
            )
    for config in networks.values():
        # An extractor of the user's was checked in a process of its own. What follows it is checked here.
        _build_module(without_extractor(config) if ENCODER in config.model_config else config, build)
    return configs


def _check_processes(config: AlgorithmConfig, algo: Mapping[str, Any]) -> None:
    """Refuse more env runners or learners than the trial has CPUs for, because Ray would wait for them forever.

    Some configs of RLlib have remote processes by default: APPO has one learner and two env runners (Ray 2.60).
    """
    for key, num_processes, counted in (
        ("algo.env_runners.num_env_runners", config.num_env_runners, count_env_runners(algo)),
        ("algo.learners.num_learners", config.num_learners, count_learners(algo)),
    ):
        if num_processes != counted:
            raise ConfigError(
                key,
                num_processes,
                f", the default of {type(config).__name__}, needs CPUs that a trial does not have",
                "numbers of env runners and learners that the algo file itself sets",
                f"+{key}={counted}",
            )


def _find_fault(config: AlgorithmConfig) -> Exception | None:
    """Return the exception that RLlib raises when it validates a config; None if the config is valid."""
    try:
        config.validate()
    except Exception as error:  # RLlib raises many types, such as TypeError for a value that cannot be compared.
        return error
    return None


def _suggest_value(build: Build, space: Space, corner: Mapping[str, Any], message: str) -> str:
    """Suggest an override that fixes one parameter so that RLlib accepts every corner of the space.

    Args:
        corner: The values that RLlib refuses.
        message: RLlib's words. The parameters that it names are tried, at their own ends and at each other's values.
    """
    named = [name for name in space.names if re.search(rf"\b{re.escape(name)}\b", message)][:MAX_NAMED]
    ends = [
        value for dimension in space.dimensions if dimension.name in named for value in space.list_marks(dimension.name)
    ]
    for name in named:
        for value in [*ends, *(corner[other] for other in named if other in corner)]:
            dimensions = tuple(d for d in space.dimensions if d.name != name and name not in d.when)
            if _is_valid(build, Space(dimensions, {**space.fixed, name: value})):
                return f"space.{name}={value}"
    return f"~space.{named[0]}" if named else "change the values that the message names"


def _is_valid(build: Build, space: Space) -> bool:
    """Return whether RLlib accepts the config at every corner of a search space."""
    try:
        return not any(_find_fault(build_config(build, corner, seed=0)) for corner in space.corners())
    except ConfigError:
        return False


def _build_module(config: AlgorithmConfig, build: Build) -> None:
    """Build the network, and nothing else of the algorithm, to refuse an environment whose actions it cannot handle."""
    from rltune.envs.observations import find_network_spaces

    pair = build.facts.find_policy_spaces()
    row = capabilities_of(type(config))
    check_spaces(build.algo, build.env, pair, row)
    check_mask(build.algo, build.env.id, build.facts.mask, build.facts.action_space, row)
    pairs = {DEFAULT_MODULE: pair} if pair else policy_spaces(build.env, build.facts.spaces_by_agent)
    env = build.with_params({}).env
    spaces = {
        name: find_network_spaces(*pair, env if env.policies is None else describe_agent(env, *pair))
        for name, pair in pairs.items()
    }
    try:
        config.get_multi_rl_module_spec(spaces=spaces, inference_only=False).build()
    except Exception as error:  # Whatever RLlib's model catalogs raise, the network cannot be built.
        raise ConfigError(
            "algo",
            build.algo["name"],
            f"cannot act in env.id={build.env.id}: {_first_line(error)}",
            "an environment whose observations and actions the algorithm handles",
            "choose another env= or algo=",
        ) from None


def check_vector_env(build: Build) -> None:
    """Refuse a registered vector environment for an environment whose copies rltune has to wrap one by one.

    Raises:
        ConfigError: Observations, actions or a mask of the environment need single copies. Where a setting needs them,
            they are stepped in its place, with a note.
    """
    vectorize, env = "vector_entry_point", build.with_params({}).env
    if build.vectorize == vectorize and not env.needs_single_copies and not is_plain(env, build.facts):
        raise ConfigError(
            "env.vectorize",
            vectorize,
            f"with env.id={build.env.id}: its observations or actions are made ready for networks copy by copy",
            "an environment of float vectors, without a mask, and with the actions that networks choose",
            "env.vectorize=sync",
        )


def check_spaces(
    algo: Mapping[str, Any],
    env: EnvSpec,
    spaces: tuple[Any, Any] | None,
    row: Capabilities | None,
    space: Space | None = None,
) -> None:
    """Refuse an environment whose observations or actions the algorithm does not take; RLlib's own errors are obscure.

    Args:
        space: The search space; with it, settings that are not read with these observations or actions are refused.
        spaces: The spaces of its observations and actions; None for several agents, each of which has its own.
        row: The algorithm's features; None if its class has to be imported to know them, for which `check_corners` is.
    """
    # Imported here, because Gymnasium loads slowly.
    from rltune.envs.observations import make_layout
    from rltune.envs.spaces import name_setting, read_actions

    if spaces is None or row is None:
        return
    place = f"cannot act in env.id={env.id}"
    try:
        actions = read_actions(spaces[1], joint=row.joins_choices)
    except ConfigError as refusal:
        raise name_setting(refusal, "algo", algo["name"], place) from None
    kinds = {"discrete": bool(actions.sizes), "continuous": bool(actions.num_numbers)}
    for kind, has_kind in kinds.items():
        if has_kind and row.actions not in ("both", kind):
            able = list_algos(partial(_takes, kind), with_variants=True)
            raise ConfigError(
                "algo",
                algo["name"],
                f"{place}, whose actions are {spaces[1]}",
                f"{kind} actions are for {able}",
                "algo=ppo, or another env=",
            )
    images = make_layout(spaces[0], env.encode).images
    if images and not row.images:
        names = ", ".join(image.name for image in images)
        raise ConfigError(
            "algo",
            algo["name"],
            f"cannot act in env.id={env.id}, which has images: {names}",
            f"images are for {list_algos(lambda row: row.images, with_variants=True)}",
            f"algo=ppo, or vectors: env.encode={{{', '.join(f'{image.name}: flat' for image in images)}}}",
        )
    if space is not None:
        check_unread(algo, space, row, {"is_image": bool(images), "is_discrete": kinds["discrete"]})


def _takes(kind: str, row: Capabilities) -> bool:
    return row.actions in ("both", kind)


def _format_corner(params: Mapping[str, Any]) -> str:
    return ", ".join(f"{key}={value}" for key, value in params.items())


def _first_line(error: BaseException) -> str:
    text = next((line for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {text}"[:300]


def check_mask(
    algo: Mapping[str, Any], env_id: str, mask: MaskSource | None, action_space: Any, row: Capabilities | None
) -> None:
    """Refuse an environment with a mask for an algorithm that would choose illegal actions.

    Args:
        mask: Where the environment says which actions are legal.
        action_space: The space of its actions.
        row: The algorithm's features; None if its class has to be imported to know them.
    """
    if mask is None or row is None:
        return
    from rltune.envs.masks import OFF, SETTING  # Imported here, because Gymnasium loads slowly.
    from rltune.envs.spaces import read_actions

    fix = f"{SETTING}={OFF} trains without it"
    if not row.uses_masks:
        raise ConfigError(
            "algo",
            algo["name"],
            f"does not use an action mask, which env.id={env_id} has: {mask.describe()}",
            f"masks are for {list_algos(lambda row: row.uses_masks, with_variants=True)}",
            f"algo=ppo, or {fix}",
        )
    # Only an algorithm that chooses among all combinations is limited in how many there are.
    is_joint = row.joins_choices or mask.joint
    if is_joint and read_actions(action_space, joint=True).sizes != (math.prod(mask.sizes),):
        raise ConfigError(
            "algo",
            algo["name"],
            f"chooses whole numbers with the other choices of env.id={env_id}, of which its mask has no flags",
            "an algorithm with a head for each part of an action",
            f"algo=ppo, or {fix}",
        )


def check_bounds(algo: str, env_id: str, action_space: Any, row: Capabilities | None) -> list[str]:
    """Refuse actions without bounds for an algorithm whose outputs lie between -1 and 1, and note which are not scaled.

    Args:
        algo: The algorithm's name.
        env_id: The environment.
        action_space: The space of its actions.
        row: The algorithm's features; None if its class has to be imported to know them.
    """
    from rltune.envs.actions import NUMBERS  # Imported here, because Gymnasium loads slowly.
    from rltune.envs.spaces import read_actions

    if row is None or row.joins_choices:
        return []
    parts = [part for part in read_actions(action_space, joint=False).parts if part.kind == NUMBERS]
    names = [
        f"action{''.join(f'.{name}' for name in part.path)}" + (f"[{index}]" if part.shape else "")
        for part in parts
        for index in range(part.num_elements)
        if part.scaled is None or not part.scaled.reshape(-1)[index]
    ]
    if not names:
        return []
    listed = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    subject = f"{listed} {'has' if len(names) == 1 else 'have'} no two finite bounds"
    is_squashed = row.network is not None and row.network.kind == "squashed_gaussian"
    if is_squashed and len(names) == sum(part.num_elements for part in parts):
        raise ConfigError(
            "env.id",
            env_id,
            f": {subject}, to which the outputs of {algo} from -1 to 1 would be scaled",
            "a lowest and a highest number for each action, in the environment or by a wrapper that sets action_space",
            "algo=ppo, whose outputs have no bounds; or action_space = gymnasium.spaces.Box(-10, 10, ...)",
        )
    ends = f", and {algo} gives numbers from -1 to 1 there" if is_squashed else ""
    return [f"actions without two finite bounds are not scaled: {subject}{ends}"]
