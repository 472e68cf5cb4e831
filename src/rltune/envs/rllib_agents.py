"""Give RLlib's ``MultiAgentEnv`` the interface of PettingZoo's ``ParallelEnv``, which everything else takes.

RLlib is not imported here: an environment of its kind is known by the names of its class's bases, as the module that
defines the environment has imported RLlib already.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rltune.errors import ABSENT, ConfigError

BASE = ("ray.rllib.env.multi_agent_env", "MultiAgentEnv")
ALL = "__all__"  # RLlib's key for the end of the episode, beside the ends of agents.
SIMULTANEOUS = "agents that act at the same time: each that lives observes at every step"
TURNS_FIX = (
    "an environment of one agent in whose step the other players move, by a policy or rules of yours; "
    "see docs/from-ray-tune.md, 'Not planned'"
)


def is_rllib_class(kind: type) -> bool:
    """Return whether a class derives from RLlib's ``MultiAgentEnv``."""
    return any((base.__module__, base.__name__) == BASE for base in kind.__mro__)


class RLlibAgents:
    """A ``MultiAgentEnv`` whose agents act at the same time, with reset, step and spaces as PettingZoo has them.

    Args:
        env: The environment.

    Attributes:
        agent_ids: Each agent's own id, which may be a number, by the text that names the agent everywhere else.
        agents: The agents that act next.
    """

    def __init__(self, env: Any) -> None:
        self.env = env
        ids = list(env.possible_agents) or list(env.observation_spaces or {})
        if not ids:
            allowed, fix = "its agents' ids, once it is made", "self.possible_agents = [...] in its constructor"
            raise ConfigError("", ABSENT, "it has no possible_agents", allowed, fix)
        self.agent_ids = {str(agent): agent for agent in ids}
        self.possible_agents, self.agents = list(self.agent_ids), list[str]()
        self.metadata, self.render_mode = getattr(env, "metadata", None) or {}, getattr(env, "render_mode", None)
        self._last: dict[str, Any] = {}

    def observation_space(self, agent: str) -> Any:
        """Return the space of an agent's observations."""
        return self.env.get_observation_space(self.agent_ids[agent])

    def action_space(self, agent: str) -> Any:
        """Return the space of an agent's actions."""
        return self.env.get_action_space(self.agent_ids[agent])

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        """Begin an episode; return observations and infos by agent."""
        observations, infos = self.env.reset(seed=seed, options=options)
        self._last = _name(observations)
        self.agents = [agent for agent in self.possible_agents if agent in self._last]
        return dict(self._last), _fill(_name(infos or {}), self.agents)

    def step(self, actions: Mapping[str, Any]) -> tuple[dict[str, Any], ...]:
        """Step all agents; return observations, rewards, terminations, truncations and infos by agent.

        Raises:
            ConfigError: An agent that lives has no observation, because the agents take turns.
        """
        answer = self.env.step({self.agent_ids[agent]: action for agent, action in actions.items()})
        seen, rewards, *ends, infos = (_name(by_agent or {}) for by_agent in answer)
        self._last |= seen  # RLlib lets an agent end without a last observation, and repeats the one before, too.
        present = [agent for agent in self.possible_agents if agent in self.agents or agent in seen]
        terminated, truncated = (
            {agent: bool(those.get(agent) or those.get(ALL)) for agent in present} for those in ends
        )
        self.agents = [agent for agent in present if not (terminated[agent] or truncated[agent])]
        if idle := [agent for agent in self.agents if agent not in seen]:
            problem = f"its agents take turns: {idle[0]} lives and observes nothing"
            raise ConfigError("", ABSENT, problem, SIMULTANEOUS, TURNS_FIX)
        numbers = {agent: rewards.get(agent, 0.0) for agent in present}
        observations = {agent: self._last[agent] for agent in present}
        return observations, numbers, terminated, truncated, _fill(infos, present)

    def render(self) -> Any:
        """Render the environment."""
        return self.env.render()

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


def _name(by_agent: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(agent): value for agent, value in by_agent.items()}


def _fill(infos: Mapping[str, Any], agents: Iterable[str]) -> dict[str, Any]:
    """Return an info for each agent: RLlib may leave infos out, and has one for no agent."""
    return {agent: infos.get(agent) or {} for agent in agents}
