"""Build multi-agent environments from PettingZoo's modules, and assign a policy to each agent.

All agents act at the same time, in PettingZoo's parallel interface. An environment whose agents take turns is converted
where its author says that it can run in parallel. PettingZoo is imported inside the functions, because it is an extra.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import ModuleType
from typing import Any, cast

import numpy as np

from rltune.envs.closing import close_env
from rltune.envs.constructors import make_file_error
from rltune.envs.copies import Copy, build_copy
from rltune.envs.facts import EnvFacts, select_json
from rltune.envs.first_steps import (
    Episode,
    describe_excess,
    describe_mask,
    describe_unseeded,
    draw_action,
    find_difference,
    play_episode,
)
from rltune.envs.guest import call_guest, import_guest
from rltune.envs.inspection import digest_sources
from rltune.envs.masks import KEY, OFF, OFF_FIX, SETTING, MaskReader, MaskSource, find_mask_of_agent
from rltune.envs.missing import suggest_installation
from rltune.envs.observations import find_network_spaces
from rltune.envs.rllib_agents import SIMULTANEOUS, TURNS_FIX, RLlibAgents, is_rllib_class
from rltune.envs.spaces import (
    check_observation,
    check_reward,
    make_network_actions,
    name_setting,
    read_actions,
    to_python,
)
from rltune.envs.spec import CONTEXTS, EntryPoint, EnvSpec, resolve_arguments
from rltune.envs.step_count import read_reward
from rltune.errors import ABSENT, ConfigError, GuestError, choices, describe_exception, nearest, spell

SHARED, SEPARATE = "shared", "separate"
# A PettingZoo module has a function of one of these names that builds its environment.
FACTORIES = ("parallel_env", "env")
USAGE = "shared, separate, a mapping {agent: policy}, whose agents may be patterns such as agent_*, or module:function"
EXTRA = "pip install 'rltune[multiagent]'"
EXTRAS = ("pettingzoo", "mpe2")  # The packages of this extra.
MAX_NAMED = 3  # At most this many agents without a policy are named, each with a policy of its own.
NUM_EPISODES = 20  # How many episodes a mapping function is asked for.


def make_parallel_env(spec: EnvSpec, copy: Copy | None = None, /, **kwargs: Any) -> Any:
    """Build a ``pettingzoo.ParallelEnv``, or what acts like one.

    Args:
        spec: What to build; its id is a module such as ``mpe2.simple_spread_v3``, or ``module:Class``.
        copy: As for `rltune.envs.build.make_env`.
        kwargs: Further arguments of the environment, such as ``render_mode``.

    Raises:
        ConfigError: The module is missing or defines no such environment.
    """
    make = _find_factory(spec)

    def build(copy: Copy) -> Any:
        arguments = {**resolve_arguments(spec.kwargs), **copy.make_arguments(), **kwargs}
        return _to_parallel(make(**arguments))

    return build_copy(spec, copy, build)


def _find_factory(spec: EnvSpec) -> Callable[..., Any]:
    """Find what builds an environment: a function of PettingZoo's names, or the class that its id names.

    Other functions are not called, so that a YAML file cannot call any function of any module.
    """
    point = spec.registration
    module = _import_module(point.module, spec.id)
    if point.name:
        made: Any = getattr(module, point.name, None)
        if callable(made) and (point.name in FACTORIES or (isinstance(made, type) and _is_of_agents(made))):
            return cast(Callable[..., Any], made)
    elif name := next((name for name in FACTORIES if callable(getattr(module, name, None))), None):
        return cast(Callable[..., Any], getattr(module, name))
    classes = [name for name, made in vars(module).items() if isinstance(made, type) and _is_of_agents(made)]
    defined = [name for name in classes if getattr(module, name).__module__ == point.module]
    close = nearest(point.name, defined) or next(iter(defined), None)
    raise ConfigError(
        "env.id",
        spec.id,
        "defines no environment of several agents",
        f"a module with a function {' or '.join(FACTORIES)}, as PettingZoo's have, or module:Class of a ParallelEnv or "
        "of RLlib's MultiAgentEnv",
        f"env.id={point.module}:{close}"
        if close
        else "env.id=mpe2.simple_spread_v3, or env.policies=null for an environment of one agent",
    )


def _is_of_agents(kind: type) -> bool:
    """Return whether a class, but for the libraries' own, makes environments of several agents."""
    bases = {(base.__module__.partition(".")[0], base.__name__) for base in kind.__mro__[1:]}
    return is_rllib_class(kind) or not bases.isdisjoint({("pettingzoo", "ParallelEnv"), ("pettingzoo", "AECEnv")})


def _import_module(name: str, env_id: str) -> Any:
    if not re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", name):
        raise ConfigError(
            "env.id",
            env_id,
            "is no module, and env.policies asks for several agents",
            "the module that defines the environment",
            "env.id=mpe2.simple_spread_v3",
        )
    try:
        return import_guest(name)
    # The import may fail in any way, for example with an ImportError or AttributeError if a package is missing.
    except GuestError as fault:
        error = fault.__cause__
        if not isinstance(error, Exception):
            raise
        package = name.partition(".")[0]
        lacks_extra = getattr(error, "name", None) in EXTRAS or package in EXTRAS
        advice = f"put {package}.py, or the folder {package}, into this folder, or install its package"
        if isinstance(error, ModuleNotFoundError) and error.name and not name.startswith(error.name):
            advice = suggest_installation(error)
        raise ConfigError(
            "env.id",
            env_id,
            f": the module cannot be imported ({error})",
            "an installed package",
            EXTRA if lacks_extra else advice,
        ) from None


def _to_parallel(env: Any) -> Any:
    if is_rllib_class(type(env)):
        return RLlibAgents(env)
    from pettingzoo import AECEnv, ParallelEnv
    from pettingzoo.utils.conversions import aec_to_parallel

    if isinstance(env, ParallelEnv):
        return env
    if isinstance(env, AECEnv) and env.metadata.get("is_parallelizable"):
        return aec_to_parallel(env)
    if isinstance(env, AECEnv):
        raise ConfigError("", ABSENT, "its agents take turns", SIMULTANEOUS, TURNS_FIX)
    raise ConfigError(
        "",
        ABSENT,
        f"it builds a {type(env).__name__}",
        "a pettingzoo.ParallelEnv, one that can be converted, or RLlib's MultiAgentEnv",
        "env.policies=null for an environment of one agent",
    )


def read_policies(policies: str | Mapping[str, str] | None, agents: Mapping[str, Any]) -> dict[str, str]:
    """Return what a function of the user's says of each agent's policy, as RLlib's ``policy_mapping_fn``.

    A policy is trained, saved and played for an agent. So the function is asked for many episodes, and has to give the
    same answer in each.

    Args:
        policies: ``package.module:function``; empty for any other form.
        agents: Each agent's own id by its name.

    Raises:
        ConfigError: There is no such function, or its answer depends on the episode.
        GuestError: It raises.
    """
    if not isinstance(policies, str) or ":" not in policies:
        return {}
    point = EntryPoint.parse(policies)
    function = getattr(_import_mapping(point, policies), point.name, None)
    if not callable(function):
        allowed = f"a function of the module {point.module}; {USAGE}"
        raise ConfigError("env.policies", policies, ": there is no such function", allowed, "env.policies=separate")
    owners: dict[str, str] = {}
    for name, agent in agents.items():
        with call_guest(f"policy mapping of {name}"):
            answers = [str(function(agent, _Episode(number))) for number in range(NUM_EPISODES)]
        owners[name] = answers[0]
        if other := next((answer for answer in answers if answer != answers[0]), None):
            raise ConfigError(
                "env.policies",
                policies,
                f": {name} has the policy {answers[0]} in one episode and {other} in another",
                "a function of the agent alone, because each agent keeps its policy when the winner is used",
                "env.policies=separate",
            )
    return owners


class _Episode:
    """What a mapping function sees of an episode: its id."""

    def __init__(self, number: int) -> None:
        self.id_ = f"{number:032x}"
        self.episode_id = number


def _import_mapping(point: EntryPoint, policies: str) -> ModuleType:
    try:
        return import_guest(point.module)
    except GuestError as fault:
        if not isinstance(fault.__cause__, ImportError):
            raise
        raise ConfigError(
            "env.policies",
            policies,
            f": {fault.__cause__}",
            "module:function that can be imported",
            "env.policies=separate",
        ) from None


def assign_policies(policies: str | Mapping[str, str], agents: list[str]) -> dict[str, str]:
    """Return the name of the policy that acts for each agent.

    Args:
        policies: ``shared`` (one policy for all), ``separate`` (one for each agent), or a policy by agent or pattern,
            of which the first that matches an agent counts.
        agents: All agents that there may be.

    Raises:
        ConfigError: An agent has no policy, or a policy no agent.
    """
    if policies == SHARED:
        return dict.fromkeys(agents, SHARED)
    if policies == SEPARATE:
        return {agent: agent for agent in agents}
    if not isinstance(policies, Mapping):
        raise ConfigError("env.policies", policies, "is unknown", USAGE, "env.policies=shared")
    patterns = {agent: next((key for key in policies if fnmatchcase(agent, str(key))), None) for agent in agents}
    if without := [agent for agent, pattern in patterns.items() if pattern is None]:
        is_short = len(without) <= MAX_NAMED
        more = {agent: re.sub(r"[^\w-]", "_", agent) for agent in without} if is_short else {"*": "others"}
        listed = ", ".join(without[:MAX_NAMED]) + (f" and {len(without) - MAX_NAMED} more" if not is_short else "")
        fix = f"'env.policies={spell({**policies, **more})}'"
        raise ConfigError("env.policies", ABSENT, f"names no policy for {listed}", USAGE, fix)
    owners = {agent: str(policies[pattern]) for agent, pattern in patterns.items() if pattern is not None}
    idle = [key for key in policies if not any(fnmatchcase(agent, str(key)) for agent in agents)]
    if idle:
        raise ConfigError(
            f"env.policies.{idle[0]}",
            ABSENT,
            ": there is no such agent",
            choices(str(idle[0]), agents),
            "env.policies=separate",
        )
    wrong = [name for name in owners.values() if not re.fullmatch(r"[\w-]+", name, re.ASCII)]
    if wrong:
        raise ConfigError(
            "env.policies",
            ABSENT,
            f": {wrong[0]!r} cannot name a folder",
            "letters, digits, - _",
            "env.policies=shared",
        )
    return owners


def spaces_by_agent(env: Any) -> dict[str, tuple[Any, Any]]:
    """Return the observation space and the action space of each agent."""
    return {agent: (env.observation_space(agent), env.action_space(agent)) for agent in env.possible_agents}


def join_spaces(spaces: Mapping[str, tuple[Any, Any]]) -> tuple[Any, Any]:
    """Join the spaces of all agents to one Dict of their observations and one of their actions."""
    from gymnasium.spaces import Dict

    return Dict({agent: pair[0] for agent, pair in spaces.items()}), Dict(
        {agent: pair[1] for agent, pair in spaces.items()}
    )


class TeamEnv:
    """A PettingZoo environment with Gymnasium's reset and step: one summed reward, and one end for all agents.

    Args:
        env: A ``pettingzoo.ParallelEnv``.

    Attributes:
        observation_space: The agents' spaces, as one Dict space.
        action_space: The same of their actions.
    """

    def __init__(self, env: Any) -> None:
        self.observation_space, self.action_space = join_spaces(spaces_by_agent(env))
        self._env, self.reset, self.close = env, env.reset, env.close

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step all agents; the reward is the sum over the agents, and the episode ends when no agent is left.

        The observations are those of the agents that are left, who act next, and the infos those of all, by agent.
        """
        obs, rewards, is_over, infos = self.step_each(actions)
        return obs, sum(map(read_reward, rewards.values())), is_over, False, infos

    def step_each(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any], bool, dict[str, Any]]:
        """Step all agents, and return observations, the reward of each agent, whether none is left, and infos."""
        obs, rewards, _, _, infos = self._env.step(to_python(self.action_space, actions))
        obs = {agent: seen for agent, seen in obs.items() if agent in self._env.agents}  # Others do not act any more.
        return obs, dict(rewards), not self._env.agents, dict(infos)


def check_agents(spec: EnvSpec, share: float = 1.0) -> EnvFacts:
    """Build a multi-agent environment and play a random episode, so that errors are found before the first trial.

    It makes one copy, which is closed whatever the check finds.

    Args:
        spec: The environment.
        share: As for `play_episode`.

    Returns:
        What was learned about it.

    Raises:
        ConfigError: It cannot be built or stepped, or its settings do not go with several agents.
    """
    for key, used, without in (
        ("env.wrappers", spec.wrappers, "env.wrappers=[]"),
        ("env.rewards", spec.rewards, "env.rewards.scale=1 env.rewards.clip=null"),
    ):
        if used:
            raise ConfigError(key, ABSENT, "is for one agent, and env.policies asks for several", f"no {key}", without)
    env, notes = None, dict[str, str]()  # The first note of each kind.
    try:
        try:
            with call_guest("make"):
                env = make_parallel_env(spec)
            agents = getattr(env, "agent_ids", {agent: agent for agent in env.possible_agents})
            owners = read_policies(spec.policies, agents)
            spec = replace(spec, policies=owners or spec.policies)
            spaces = spaces_by_agent(env)
            masks = {agent: MaskSource.parse(describe_agent(spec, *pair).action_mask) for agent, pair in spaces.items()}
            with call_guest("reset"):
                first = copy.deepcopy(env.reset(seed=0)[0])
                again, infos = copy.deepcopy(env.reset(seed=0))
            for agent in env.agents:
                _refuse_info(spec, agent, infos)
            episode = _play(spec, env, masks, again, notes, share)
        except ConfigError as error:
            raise name_setting(error, "env.id", spec.id) from None
        except GuestError as fault:
            if not isinstance(fault.__cause__, Exception):
                raise
            if fault.call.startswith("policy mapping"):
                allowed = "a function of an agent and an episode, as RLlib's policy_mapping_fn"
                raise fault.rewrite(
                    f": {fault.problem}", allowed, "env.policies=separate", key="env.policies", value=spec.policies
                ) from fault.__cause__
            if fault.call.startswith(("reset", "step")):
                raise fault.rewrite(f": {fault.problem}", key="env.id", value=spec.id) from fault.__cause__
            if (refusal := make_file_error(spec.kwargs, fault.__cause__, fault.problem)) is not None:
                raise refusal from None
            raise ConfigError(
                "env.id",
                spec.id,
                f"with env.kwargs={dict(spec.kwargs)}: {describe_exception(fault.__cause__)}",
                "arguments that the environment takes",
                _suggest_config(spec, fault.__cause__) or "env.kwargs={}",
            ) from None
        for pair in policy_spaces(spec, spaces).values():
            find_network_spaces(*pair, describe_agent(spec, *pair))
        for agent, mask in masks.items():
            if mask is not None:
                notes.setdefault("mask", describe_mask(mask, agent))
        for agent in filter(again.__contains__, first):
            if difference := find_difference(spaces[agent][0], first[agent], again[agent], f" of {agent}"):
                notes.setdefault("seed", describe_unseeded(spec.id, f"two resets with seed 0 differ, {difference}"))
        metadata, sources = select_json(getattr(env, "metadata", None) or {}), digest_sources(env)
        return EnvFacts(
            *join_spaces(spaces),
            metadata=metadata,
            agents=tuple(spaces),
            policies=owners,
            notes=(*notes.values(), *episode.notes),
            sources=sources,
            episode_steps=episode.steps,
            episode_is_over=episode.is_over,
        )
    finally:
        if env is not None:
            with call_guest("close"):
                close_env(env)


def _suggest_config(spec: EnvSpec, error: Exception) -> str:
    """Suggest the ``config`` that RLlib passes to constructors, if one asks for it; else empty."""
    lacking = next((name for name in CONTEXTS if name not in spec.kwargs and f"argument: '{name}'" in str(error)), None)
    return f"'+env.kwargs={{{lacking}: {{}}}}'" if lacking else ""


def describe_agent(spec: EnvSpec, observation_space: Any, action_space: Any) -> EnvSpec:
    """Return the specification of what one of several agents sees and does: with the mask in its observations.

    Args:
        spec: The environment.
        observation_space: The agent's.
        action_space: The agent's.

    Raises:
        ConfigError: What its observations call a mask has no flag for each of its actions.
    """
    is_off = spec.action_mask == OFF
    mask = None if is_off else find_mask_of_agent(observation_space, read_actions(action_space).sizes)
    setting = mask.to_dict() if mask else OFF
    return replace(spec, policies=None, encode={}, action_mask=setting, joint_actions=bool(mask and mask.joint))


def _refuse_info(spec: EnvSpec, agent: str, infos: Any) -> None:
    """Refuse a mask in an agent's info, from which several agents do not take it."""
    if spec.action_mask != OFF and isinstance(info := (infos or {}).get(agent), Mapping) and KEY in info:
        raise ConfigError(
            SETTING,
            spec.action_mask,
            f": the info of {agent} has an {KEY}",
            f"with several agents, a Dict observation with the part {KEY}",
            OFF_FIX,
        )


def _draw_action(space: Any, mask: MaskSource | None, observation: Any, rng: np.random.Generator) -> Any:
    """Draw a random action of an agent, a legal one if its observation has a mask."""
    actions = read_actions(space)
    flags = None if mask is None else MaskReader(None, mask, space).read(observation, {})
    return draw_action(actions, make_network_actions(actions), flags, mask, rng)


def _play(
    spec: EnvSpec,
    env: Any,
    masks: Mapping[str, MaskSource | None],
    observations: Any,
    notes: dict[str, str],
    share: float,
) -> Episode:
    """Play a random episode of all agents, and refuse what they get if it is invalid.

    Args:
        spec: The environment.
        env: What has just been reset.
        masks: Where each agent's legal actions are in its observations.
        observations: What the reset has returned.
        notes: Gets a note on a number that leaves its bounds.
        share: As for `play_episode`.
    """
    rng, spaces = np.random.default_rng(0), spaces_by_agent(env)
    team = TeamEnv(env)

    def look(call: str) -> None:
        for agent, seen in observations.items():
            with _name_agent(agent, call):
                if excess := check_observation(spaces[agent][0], seen):
                    notes.setdefault("bounds", describe_excess(f"{excess} of {agent}, by {call}"))

    def step(call: str) -> tuple[float, bool, dict[str, Any]]:
        nonlocal observations
        with call_guest(call):
            drawn = {
                agent: _draw_action(spaces[agent][1], masks[agent], observations[agent], rng) for agent in env.agents
            }
            observations, rewards, is_over, infos = team.step_each(drawn)
        for agent, reward in rewards.items():
            with _name_agent(agent, call):
                check_reward(reward)
        look(call)
        return sum(map(read_reward, rewards.values())), is_over, infos

    look("reset")
    return play_episode(spec, step, share)


@contextlib.contextmanager
def _name_agent(agent: str, call: str) -> Iterator[None]:
    """Add to a refusal which agent has got what is refused, and by which call."""
    try:
        yield
    except ConfigError as error:
        problem = f"{agent}, by {call}: {error.problem}"
        raise ConfigError("", ABSENT, problem, error.allowed, error.fix) from None


def policy_spaces(spec: EnvSpec, spaces: Mapping[str, tuple[Any, Any]]) -> dict[str, tuple[Any, Any]]:
    """Return the observation space and the action space of each policy.

    Args:
        spec: The environment.
        spaces: The observation space and the action space of each agent.

    Raises:
        ConfigError: Agents of different spaces share a policy, or no policy takes a space of this kind.
    """
    spaces_by_policy: dict[str, tuple[Any, Any]] = {}
    first: dict[str, str] = {}
    for agent, policy in assign_policies(spec.policies or SHARED, list(spaces)).items():
        pair = spaces[agent]
        if spaces_by_policy.setdefault(policy, pair) != pair:
            raise ConfigError(
                "env.policies",
                ABSENT,
                f": {first[policy]} and {agent} share a policy, but their spaces differ",
                "one policy for agents of the same spaces",
                "env.policies=separate",
            )
        first.setdefault(policy, agent)
    return spaces_by_policy
