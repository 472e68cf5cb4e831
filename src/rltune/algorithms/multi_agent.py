"""Let RLlib train several agents: adapt their environment, and assign policies to them.

This module is separate from ``rllib_env`` because the adapter's base class requires the import of RLlib, which takes
seconds.
"""

from __future__ import annotations

from typing import Any

import gymnasium
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from rltune.compat.row_catalog import see_rows_of_policies
from rltune.envs import pettingzoo
from rltune.envs.closing import close_env
from rltune.envs.facts import EnvFacts
from rltune.envs.layout import Layout
from rltune.envs.masks import MaskReader, MaskSource
from rltune.envs.observations import encode_observation, find_layout, find_network_spaces, is_row
from rltune.envs.pettingzoo import assign_policies, describe_agent, policy_spaces, spaces_by_agent
from rltune.envs.spaces import read_actions, to_python
from rltune.envs.spec import EnvSpec
from rltune.envs.step_count import read_reward

StepResult = tuple[dict[str, Any], dict[str, float], dict[str, bool], dict[str, bool], dict[str, Any]]


class ParallelEnvAdapter(MultiAgentEnv):
    """Adapts a ``pettingzoo.ParallelEnv`` to RLlib, with the observations and actions that networks take.

    RLlib's own adapter (Ray 2.60) never ends an episode in which some agents are terminated and others truncated.

    Args:
        env: The environment.
        spec: Its specification.
    """

    def __init__(self, env: Any, spec: EnvSpec) -> None:
        super().__init__()
        self.env, self.metadata = env, env.metadata
        self.render_mode = getattr(env, "render_mode", None)
        self.possible_agents = list(env.possible_agents)
        self.agents = list(env.possible_agents)
        self._own = spaces_by_agent(env)
        specs = {agent: describe_agent(spec, *pair) for agent, pair in self._own.items()}
        spaces = {agent: find_network_spaces(*pair, specs[agent]) for agent, pair in self._own.items()}
        actions = {agent: read_actions(pair[1], joint=specs[agent].joint_actions) for agent, pair in self._own.items()}
        self._decoders = {agent: parts.decode_one for agent, parts in actions.items() if not parts.is_identity}
        self._layouts: dict[str, Layout | None] = {
            agent: None if is_row(pair[0], specs[agent]) else find_layout(pair[0], specs[agent])
            for agent, pair in self._own.items()
        }
        masks = {agent: MaskSource.parse(specs[agent].action_mask) for agent in specs}
        self._readers = {
            agent: MaskReader(env, mask, self._own[agent][1]) for agent, mask in masks.items() if mask is not None
        }
        self.observation_spaces = {agent: pair[0] for agent, pair in spaces.items()}
        self.action_spaces = {agent: pair[1] for agent, pair in spaces.items()}
        self.observation_space = gymnasium.spaces.Dict(self.observation_spaces)
        self.action_space = gymnasium.spaces.Dict(self.action_spaces)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Reset the environment, and return observations and infos by agent."""
        obs, info = self.env.reset(seed=seed, options=options)
        self.agents = list(self.env.agents)
        return self._encode(obs), dict(info or {})

    def _encode(self, obs: dict[str, Any]) -> dict[str, Any]:
        return {agent: self._encode_one(agent, seen) for agent, seen in obs.items()}

    def _encode_one(self, agent: str, seen: Any) -> Any:
        if (layout := self._layouts[agent]) is None:
            return seen
        flags = None
        if reader := self._readers.get(agent):
            flags = reader.read(seen, {}, is_over=agent not in self.agents)
        return layout.view(encode_observation(self._own[agent][0], layout, seen, flags))

    def step(self, actions: dict[str, Any]) -> StepResult:
        """Step the environment with one action for every agent that is still alive.

        Returns:
            Observations, rewards, terminations, truncations and infos by agent, as ``MultiAgentEnv`` requires.
        """
        decoded = {
            agent: self._decoders[agent](action) if agent in self._decoders else to_python(self._own[agent][1], action)
            for agent, action in actions.items()
        }
        obs, rewards, terminated, truncated, info = self.env.step(decoded)
        over = not self.env.agents
        self.agents = list(self.env.agents)
        cut = over and any(truncated.values())
        ends = {**terminated, "__all__": over and not cut}, {**truncated, "__all__": cut}
        return self._encode(obs), {agent: read_reward(reward) for agent, reward in rewards.items()}, *ends, dict(info)

    def render(self) -> Any:
        """Render the wrapped environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the wrapped environment."""
        close_env(self.env)


class PolicyMapping:
    """Maps agents to policies, as RLlib's ``policy_mapping_fn``.

    Args:
        owners: The name of the policy for each agent.
    """

    def __init__(self, owners: dict[str, str]) -> None:
        self.owners = owners

    def __call__(self, agent_id: Any, *args: Any, **kwargs: Any) -> str:
        """Return the name of the policy that acts for an agent."""
        return self.owners[str(agent_id)]


def configure_agents(config: Any, spec: EnvSpec, facts: EnvFacts) -> None:
    """Add the policies, and the mapping from agents to policies, to RLlib's config.

    Args:
        config: The config, which is changed in place.
        spec: The environment, with ``policies``.
        facts: What is known about it.
    """
    from ray.rllib.policy.policy import PolicySpec

    owners = assign_policies(spec.policies or pettingzoo.SHARED, list(facts.agents))
    pairs = policy_spaces(spec, facts.spaces_by_agent)
    specs = {name: describe_agent(spec, *pair) for name, pair in pairs.items()}
    spaces = {name: find_network_spaces(*pair, specs[name]) for name, pair in pairs.items()}
    policies = {name: PolicySpec(observation_space=pair[0], action_space=pair[1]) for name, pair in spaces.items()}
    config.multi_agent(policies=policies, policy_mapping_fn=PolicyMapping(owners))
    config.environment(disable_env_checking=True)  # It would send random actions; our own check sends legal ones.
    see_rows_of_policies(config, {name: find_layout(pair[0], specs[name]) for name, pair in pairs.items()})
