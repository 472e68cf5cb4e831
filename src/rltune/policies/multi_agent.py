"""The policies of several agents as one: written, acting on dicts, evaluated. Runs anywhere.

A team is a folder with ``policy.json`` (who acts by which policy) and one bundle for each policy under ``policies/``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from rltune.envs.build import make_env
from rltune.envs.pettingzoo import assign_policies, make_parallel_env, policy_spaces, spaces_by_agent
from rltune.envs.spec import spec_of
from rltune.errors import PolicyError, choices
from rltune.policies import bundle_reader
from rltune.policies.bundle_reader import Policy, load_bundle
from rltune.policies.bundle_writer import describe_space, write_bundle

MARK, MEMBERS = "policy.json", "policies"
NUM_ENVS = 8  # at once in an evaluation
Pair = tuple[int, str]


class MultiAgentPolicy:
    """The policies of several agents, acting on observations by agent.

    Attributes:
        info: Where they came from, as for one agent's policy.
        owners: The name of each agent's policy.
        policies: By name; each acts for one agent, or for a batch of them.
        network: All of their networks.
        spaces: ``observation`` and ``action``, by agent.
    """

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if about.get("format") != bundle_reader.FORMAT:
            raise ValueError(f"{folder} has format {about.get('format')}, this rltune reads {bundle_reader.FORMAT}")
        self.owners: dict[str, str] = about["owners"]
        names = dict.fromkeys(self.owners.values())
        self.policies = {name: load_bundle(folder / MEMBERS / name) for name in names}
        self.info: dict[str, Any] = next(iter(self.policies.values())).info
        self.network = torch.nn.ModuleDict({name: policy.network for name, policy in self.policies.items()})
        self.spaces = {
            key: {agent: self.policies[owner].spaces[key] for agent, owner in self.owners.items()}
            for key in ("observation", "action")
        }

    def act(
        self, obs: Mapping[str, Any], deterministic: bool = True, rng: np.random.Generator | int | None = None
    ) -> dict[str, Any]:
        """The actions of the agents whose observations are given.

        Args:
            obs: By agent, one observation or a batch of them each.
            deterministic: As for one agent's ``act``.
            rng: As for one agent's ``act``.

        Returns:
            By agent, what ``env.step`` takes.

        Raises:
            PolicyError: There is no such agent, or an observation fits neither one nor a batch.
        """
        rng = np.random.default_rng(rng) if isinstance(rng, int) else rng
        unknown = next((agent for agent in obs if agent not in self.owners), None)
        if unknown is not None:
            raise PolicyError(f"there is no agent {unknown!r}", choices(str(unknown), self.owners), "see policy.owners")
        try:
            return {agent: self.policies[self.owners[agent]].act(one, deterministic, rng) for agent, one in obs.items()}
        except ValueError as error:
            raise PolicyError(
                str(error), "observations as the environment gives them", "policy.env().reset() gives some"
            ) from None

    def env(self, **kwargs: Any) -> Any:
        """The PettingZoo environment that they were trained in.

        Args:
            kwargs: Further arguments of the environment, such as ``render_mode="rgb_array"``.
        """
        return make_env(self.info["env"], **kwargs)


def is_multi_agent(folder: Path) -> bool:
    """Whether a policy's folder holds those of several agents."""
    return (folder / MEMBERS).is_dir()


def write_policies(
    modules: Mapping[str, Any],
    folder: Path,
    *,
    info: dict[str, Any],
    actions: Literal["normalize", "clip", "raw"] = "normalize",
) -> None:
    """Write RLlib's modules as a team.

    Args:
        modules: A live RLModule for each policy.
        folder: Where to; made if missing.
        info: Where they came from; ``info["env"]`` says who acts by which.
        actions: As for `rltune.policies.bundle_writer.write_bundle`.

    Raises:
        ValueError: A module cannot be expressed.
    """
    spec = spec_of(info["env"])
    env = make_parallel_env(spec)
    spaces, owners = policy_spaces(spec, env), assign_policies(spec.policies or "", env.possible_agents)
    env.close()
    for name, module in modules.items():
        place = folder / MEMBERS / name
        write_bundle(module, place, info=info, observation_space=spaces[name][0], actions=actions)
    about = {"format": bundle_reader.FORMAT, "owners": owners}
    # Last, so that a folder with a policy.json is a whole one.
    (folder / MARK).write_text(json.dumps(about, indent=1, allow_nan=False), encoding="utf-8")


def choose_agent(policy: Any, what: str) -> Policy:
    """The policy, where what is done with it takes that of one agent.

    Args:
        policy: One agent's, or a team.
        what: What is done with it.

    Raises:
        PolicyError: It is a team.
    """
    if isinstance(policy, MultiAgentPolicy):
        raise PolicyError(
            f"{what} takes the policy of one agent; this one has {', '.join(policy.owners)}",
            "the policy of one agent",
            "rltune.load_policy gives all of them, python -m sweeps.evaluate plays them",
        )
    found: Policy = policy
    return found


@dataclass(frozen=True)
class EpisodeRequest:
    """Which episodes to play; see `rltune.policies.evaluation.evaluate`."""

    episodes: int
    seed: int
    deterministic: bool
    progress: Callable[[int, int], None] | None


def play_multi_agent(
    team: MultiAgentPolicy, spec: Mapping[str, Any], wanted: EpisodeRequest
) -> tuple[np.ndarray, np.ndarray]:
    """Returns, summed over the agents, and lengths of episodes, in the order of the environment's seeds.

    Raises:
        PolicyError: The environment has other agents or spaces.
    """
    envs = [make_env(spec) for _ in range(min(wanted.episodes, NUM_ENVS))]
    try:
        _check(team, envs[0], str(spec["id"]))
        return _played(team, envs, wanted)
    finally:
        for env in envs:
            env.close()


def _check(team: MultiAgentPolicy, env: Any, env_id: str) -> None:
    for agent, spaces in spaces_by_agent(env).items():
        known = agent in team.owners
        trained = tuple(team.spaces[key][agent] for key in ("observation", "action")) if known else ()
        if tuple(map(describe_space, spaces)) != trained:
            raise PolicyError(
                f"env={env_id}: {agent} observes {spaces[0]} and acts in {spaces[1]}",
                "the spaces that it was trained with" if known else f"these agents: {', '.join(team.owners)}",
                "leave env out to use the one that it was trained in",
            )


def _played(team: MultiAgentPolicy, envs: list[Any], wanted: EpisodeRequest) -> tuple[np.ndarray, np.ndarray]:
    returns, lengths = np.zeros(wanted.episodes), np.zeros(wanted.episodes, dtype=np.int64)
    current = dict(enumerate(range(len(envs))))  # the episode of each environment
    seen = {place: env.reset(seed=wanted.seed + place)[0] for place, env in enumerate(envs)}
    waiting, done, rng = len(envs), 0, np.random.default_rng(wanted.seed)
    while current:
        actions = _actions(team, {place: seen[place] for place in current}, wanted.deterministic, rng)
        for place, episode in list(current.items()):
            env = envs[place]
            seen[place], rewards, *_ = env.step(actions[place])
            returns[episode] += sum(map(float, rewards.values()))
            lengths[episode] += 1
            if env.agents:
                continue
            done += 1
            if wanted.progress:
                wanted.progress(done, wanted.episodes)
            del current[place]
            if waiting < wanted.episodes:
                current[place], waiting = waiting, waiting + 1
                seen[place] = env.reset(seed=wanted.seed + current[place])[0]
    return returns, lengths


def _actions(
    team: MultiAgentPolicy, seen: Mapping[int, Mapping[str, Any]], deterministic: bool, rng: np.random.Generator
) -> dict[int, dict[str, Any]]:
    """One forward pass for each policy, over all environments and agents that it acts for."""
    groups: dict[str, list[Pair]] = {}
    for place, obs in seen.items():
        for agent in obs:
            groups.setdefault(team.owners[agent], []).append((place, agent))
    actions: dict[int, dict[str, Any]] = {place: {} for place in seen}
    for name, pairs in groups.items():
        chosen = team.policies[name].act(np.stack([seen[place][agent] for place, agent in pairs]), deterministic, rng)
        for (place, agent), action in zip(pairs, chosen, strict=True):
            actions[place][agent] = action
    return actions
