"""Write and load the policies of several agents as one, and act on dicts with it. Runs anywhere.

It is a folder with ``policy.json`` (who acts by which policy) and one bundle for each policy under ``policies/``.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
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

    def predict(
        self,
        obs: Sequence[Mapping[str, Any]],
        state: Any = None,
        episode_start: Any = None,
        deterministic: bool = True,
        rng: np.random.Generator | int | None = None,
    ) -> tuple[list[dict[str, Any]], None]:
        """Choose the actions of the agents of several environments, with one forward pass for each policy.

        Args:
            obs: For each environment, the observations by agent.
            state: Not used: these policies have no memory.
            episode_start: Not used.
            deterministic: As for `act`.
            rng: As for `act`.

        Returns:
            For each environment, the actions by agent; and no state.
        """
        groups: dict[str, list[tuple[int, str]]] = {}
        for i, agents in enumerate(obs):
            for agent in agents:
                groups.setdefault(self.owners[agent], []).append((i, agent))
        actions: list[dict[str, Any]] = [{} for _ in obs]
        for name, pairs in groups.items():
            batch = np.stack([obs[i][agent] for i, agent in pairs])
            for (i, agent), action in zip(pairs, self.policies[name].act(batch, deterministic, rng), strict=True):
                actions[i][agent] = action
        return actions, None

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


class TeamEnv:
    """A PettingZoo environment that resets and steps as a Gymnasium one does: all agents share one reward and one end.

    Args:
        policy: The policy that will play.
        spec: The environment's specification.

    Raises:
        PolicyError: The environment has other agents or spaces than the policy.
    """

    def __init__(self, policy: MultiAgentPolicy, spec: Mapping[str, Any]) -> None:
        self._env = make_env(spec)
        _check_spaces(policy, self._env, str(spec["id"]))
        self.reset, self.close = self._env.reset, self._env.close

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], float, bool, bool, dict[str, Any]]:
        """Step all agents; the reward is the sum of theirs, and the episode ends with the last agent's."""
        obs, rewards, *_ = self._env.step(actions)
        return obs, sum(map(float, rewards.values())), not self._env.agents, False, {}


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
