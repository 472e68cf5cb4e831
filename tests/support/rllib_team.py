"""RLlib's environments of several agents, with numbers as ids, and functions that map agents to policies.

The base has RLlib's name without RLlib, whose import takes seconds.
"""

from __future__ import annotations

import itertools
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces as S

_draws = itertools.count()


class MultiAgentEnv(gymnasium.Env[Any, Any]):
    """What of RLlib's base class an environment uses."""

    __module__ = "ray.rllib.env.multi_agent_env"

    def get_observation_space(self, agent: Any) -> Any:
        return self.observation_spaces[agent]  # type: ignore[attr-defined]

    def get_action_space(self, agent: Any) -> Any:
        return self.action_spaces[agent]  # type: ignore[attr-defined]


class Leaving(MultiAgentEnv):
    """Two agents; the second one leaves at the third step, without a last observation and with an info for nobody."""

    def __init__(self, config: Any) -> None:
        self.length = config.get("length", 5)
        self.agents = self.possible_agents = [0, 1]
        self.observation_spaces = dict.fromkeys((0, 1), S.Box(-1, 1, (2,), np.float32))
        self.action_spaces = dict.fromkeys((0, 1), S.Discrete(2))

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.at = 0
        return {agent: np.zeros(2, np.float32) for agent in (0, 1)}, {}

    def step(self, actions: Any) -> Any:
        self.at += 1
        seen = {agent: np.full(2, self.at / 10, np.float32) for agent in actions if agent == 0 or self.at != 3}
        rewards = {agent: float(action) for agent, action in actions.items()}
        ended = {**({1: True} if self.at == 3 else {}), "__all__": False}
        return seen, rewards, ended, {"__all__": self.at >= self.length}, {"__common__": {"wind": 1}}


class Turns(Leaving):
    """The same agents, one after the other."""

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return {0: super().reset()[0][0]}, {}

    def step(self, actions: Any) -> Any:
        self.at += 1
        return {self.at % 2: np.zeros(2, np.float32)}, {}, {"__all__": self.at >= 5}, {"__all__": False}, {}


def map_agent(agent: Any, episode: Any, **others: Any) -> str:
    """Map the first agent, by its own id, to a policy of its own."""
    return "first" if agent == 0 else "others"


def map_by_chance(agent: Any, episode: Any) -> str:
    """Map agents anew in each episode."""
    return f"team_{next(_draws) % 2}"


def map_wrongly(agent: Any) -> str:
    """Take no episode, which RLlib passes."""
    return "all"
