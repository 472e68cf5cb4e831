"""Write and load the policies of several agents as one, act on dicts with it, and play its episodes. Runs anywhere.

It is a folder with ``policy.json`` (who acts by which policy) and one bundle for each policy under ``policies/``.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from rltune.envs.build import make_env
from rltune.envs.pettingzoo import assign_policies, make_parallel_env, policy_spaces, spaces_by_agent
from rltune.envs.spec import spec_of
from rltune.errors import PolicyError, choices
from rltune.formatting import spell_command
from rltune.policies import bundle_reader
from rltune.policies.bundle_reader import Policy, load_bundle
from rltune.policies.bundle_writer import describe_space, write_bundle
from rltune.policies.uri import require_own_environment

OWNERS_FILE, POLICIES = "policy.json", "policies"
NUM_ENVS = 8  # at once in an evaluation


class MultiAgentPolicy:
    """The policies of several agents, acting on observations by agent.

    Attributes:
        info: Where they came from, as for one agent's policy.
        owners: The name of each agent's policy.
        policies: By name; each acts for one agent, or for a batch of them.
        network: All of their networks.
        spaces: ``observation`` and ``action``, by agent.
        is_trusted: As for one agent's policy.
    """

    is_trusted: Callable[[], bool] = staticmethod(lambda: False)

    def __init__(self, folder: Path) -> None:
        about = json.loads((folder / OWNERS_FILE).read_text(encoding="utf-8"))
        if about.get("format") != bundle_reader.FORMAT:
            raise ValueError(f"{folder} has format {about.get('format')}, this rltune reads {bundle_reader.FORMAT}")
        self.owners: dict[str, str] = about["owners"]
        names = dict.fromkeys(self.owners.values())
        self.policies = {name: load_bundle(folder / POLICIES / name) for name in names}
        self.info: dict[str, Any] = next(iter(self.policies.values())).info
        self.network = torch.nn.ModuleDict({name: policy.network for name, policy in self.policies.items()})
        self.spaces = {
            key: {agent: self.policies[owner].spaces[key] for agent, owner in self.owners.items()}
            for key in ("observation", "action")
        }

    def __repr__(self) -> str:
        """What they are: algorithm, environment, agents."""
        env = (self.info.get("env") or {}).get("id", "an unnamed environment")
        return f"<MultiAgentPolicy {self.info.get('algo', '?')} for {env}: {', '.join(self.owners)}>"

    def act(
        self, obs: Mapping[str, Any], deterministic: bool = True, rng: np.random.Generator | int | None = None
    ) -> dict[str, Any]:
        """Choose the actions of the agents whose observations are given.

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
        """Build the PettingZoo environment that they were trained in.

        Args:
            kwargs: Further arguments of the environment, such as ``render_mode="rgb_array"``.

        Raises:
            PolicyError: It would import a module that somebody else has chosen.
        """
        require_own_environment(self.info["env"], self)
        return make_env(self.info["env"], **kwargs)


def is_multi_agent(folder: Path) -> bool:
    """Return whether a policy's folder holds those of several agents."""
    return (folder / POLICIES).is_dir()


def write_policies(
    modules: Mapping[str, Any],
    folder: Path,
    *,
    info: dict[str, Any],
    actions: Literal["normalize", "clip", "raw"] = "normalize",
) -> None:
    """Write the modules of several agents' policies.

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
        write_bundle(module, folder / POLICIES / name, info=info, observation_space=spaces[name][0], actions=actions)
    about = {"format": bundle_reader.FORMAT, "owners": owners}
    # Last, so that a folder with a policy.json is a whole one.
    (folder / OWNERS_FILE).write_text(json.dumps(about, indent=1, allow_nan=False), encoding="utf-8")


def require_single_agent(policy: Policy | MultiAgentPolicy, what: str) -> Policy:
    """Return the policy if it is of one agent.

    Args:
        policy: The policy of one agent, or of several.
        what: What is done with it and takes that of one agent, for the error.

    Raises:
        PolicyError: It is of several agents.
    """
    if isinstance(policy, MultiAgentPolicy):
        raise PolicyError(
            f"{what} takes the policy of one agent; this one has {', '.join(policy.owners)}",
            "the policy of one agent",
            f"rltune.load_policy gives all of them, {spell_command('evaluate')} plays them",
        )
    return policy


def play_multi_agent(
    policy: MultiAgentPolicy,
    spec: Mapping[str, Any],
    episodes: int,
    seed: int,
    deterministic: bool,
    progress: Callable[[int, int], None],
) -> tuple[np.ndarray, np.ndarray]:
    """Play episodes of given seeds.

    Args:
        policy: The policy.
        spec: The environment's specification.
        episodes: How many.
        seed: Of the first episode, and of sampled actions.
        deterministic: As for `MultiAgentPolicy.act`.
        progress: Called with the number of finished episodes and of all, after each and after each step of all.

    Returns:
        Returns, summed over the agents, and lengths, (episodes,) each, in the order of the seeds.

    Raises:
        PolicyError: The environment has other agents or spaces.
    """
    with contextlib.ExitStack() as stack:
        envs = [stack.enter_context(contextlib.closing(make_env(spec))) for _ in range(min(episodes, NUM_ENVS))]
        _check_spaces(policy, envs[0], str(spec["id"]))
        returns, lengths = np.zeros(episodes), np.zeros(episodes, dtype=np.int64)
        current = dict(enumerate(range(len(envs))))  # the episode of each environment that still plays one
        obs = {i: env.reset(seed=seed + i)[0] for i, env in enumerate(envs)}
        started, done, rng = len(envs), 0, np.random.default_rng(seed)
        while current:
            actions = _choose_actions(policy, {i: obs[i] for i in current}, deterministic, rng)
            for i, episode in list(current.items()):
                obs[i], rewards, *_ = envs[i].step(actions[i])
                returns[episode] += sum(map(float, rewards.values()))
                lengths[episode] += 1
                if envs[i].agents:
                    continue
                done += 1
                progress(done, episodes)
                del current[i]
                if started < episodes:
                    current[i], started = started, started + 1
                    obs[i] = envs[i].reset(seed=seed + current[i])[0]
            progress(done, episodes)
    return returns, lengths


def _check_spaces(policy: MultiAgentPolicy, env: Any, env_id: str) -> None:
    for agent, spaces in spaces_by_agent(env).items():
        known = agent in policy.owners
        trained = tuple(policy.spaces[key][agent] for key in ("observation", "action")) if known else ()
        if tuple(map(describe_space, spaces)) != trained:
            raise PolicyError(
                f"env={env_id}: {agent} observes {spaces[0]} and acts in {spaces[1]}",
                "the spaces that it was trained with" if known else f"these agents: {', '.join(policy.owners)}",
                "leave env out to use the one that it was trained in",
            )


def _choose_actions(
    policy: MultiAgentPolicy, obs: Mapping[int, Mapping[str, Any]], deterministic: bool, rng: np.random.Generator
) -> dict[int, dict[str, Any]]:
    """Choose the actions of all environments' agents, with one forward pass for each policy.

    Args:
        policy: The policy.
        obs: By environment, then by agent.
        deterministic: As for `MultiAgentPolicy.act`.
        rng: As for `MultiAgentPolicy.act`.

    Returns:
        By environment, then by agent.
    """
    groups: dict[str, list[tuple[int, str]]] = {}
    for i, agents in obs.items():
        for agent in agents:
            groups.setdefault(policy.owners[agent], []).append((i, agent))
    actions: dict[int, dict[str, Any]] = {i: {} for i in obs}
    for name, pairs in groups.items():
        batch = np.stack([obs[i][agent] for i, agent in pairs])
        for (i, agent), action in zip(pairs, policy.policies[name].act(batch, deterministic, rng), strict=True):
            actions[i][agent] = action
    return actions
