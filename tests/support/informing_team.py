"""Two agents whose infos have goals, as PettingZoo has them; one of the agents leaves early."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from pettingzoo import ParallelEnv


class Team(ParallelEnv[str, Any, Any]):
    """Episodes of five steps, which ``b`` leaves after three; it scores at each step, and ``a`` at its last."""

    def __init__(self, render_mode: str | None = None) -> None:
        self.metadata: dict[str, Any] = {"name": "informing_team"}
        self.possible_agents, self.render_mode = ["a", "b"], render_mode
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return gym.spaces.Box(-1, 1, (2,), np.float32)

    def action_space(self, agent: str) -> Any:
        return gym.spaces.Discrete(2)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.agents, self.steps = ["a", "b"], 0
        return {agent: np.zeros(2, np.float32) for agent in self.agents}, {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), "agents that have left do not act"
        acting, self.steps = self.agents, self.steps + 1
        ends = {agent: self.steps >= (5 if agent == "a" else 3) for agent in acting}
        infos = {agent: {"goals": np.int64(1)} if agent == "b" or ends[agent] else {} for agent in acting}
        self.agents = [agent for agent in acting if not ends[agent]]
        rewards, cuts = dict.fromkeys(acting, 1.0), dict.fromkeys(acting, False)
        return {agent: np.zeros(2, np.float32) for agent in acting}, rewards, ends, cuts, infos


def parallel_env(**kwargs: Any) -> Team:
    return Team(**kwargs)
