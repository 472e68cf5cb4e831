"""Two agents that raise at an illegal action; the second one leaves first, and sees no legal action then."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces as S
from pettingzoo import ParallelEnv

CHOICES = {"long": S.Discrete(4), "short": S.MultiDiscrete([2, 3])}
SIZES = {"long": (4,), "short": (2, 3)}
LENGTHS = {"long": 20, "short": 12}


class StrictTeam(ParallelEnv[str, Any, Any]):
    """Draws which actions are legal at each step.

    Args:
        place: ``observation`` or ``info``: where the mask is.
        joint: Whether the second agent's flags are of combinations, which may depend on each other.
    """

    metadata: dict[str, Any] = {"name": "strict_team", "is_parallelizable": True}  # noqa: RUF012

    def __init__(self, place: str = "observation", joint: bool = False) -> None:
        self.place, self.joint, self.possible_agents, self.at = place, joint, list(CHOICES), 0
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        seen = S.Box(-1, 1, (2,), np.float32)
        if self.place == "info":
            return seen
        sizes = SIZES[agent]
        return S.Dict(action_mask=S.MultiBinary(int(np.prod(sizes)) if self.joint else sum(sizes)), seen=seen)

    def action_space(self, agent: str) -> Any:
        return CHOICES[agent]

    def _look(self, agents: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
        observations, infos = {}, {}
        for agent in agents:
            parts = [self.random.random(size) < 0.4 for size in SIZES[agent]]
            for flags in parts:
                flags[self.random.integers(len(flags))] = True
            table = np.logical_and.reduce(np.meshgrid(*parts, indexing="ij"))
            if self.joint:
                chosen = tuple(int(np.argmax(flags)) for flags in parts)
                table &= self.random.random(table.shape) < 0.5
                table[chosen] = True
            is_open = agent in self.agents
            mask = (table.ravel() if self.joint else np.concatenate(parts)) & is_open
            seen = np.array([self.at / 20, parts[0][0]], np.float32)
            self.tables[agent] = table
            is_seen = self.place == "observation"
            observations[agent] = {"action_mask": mask.astype(np.int8), "seen": seen} if is_seen else seen
            infos[agent] = {} if is_seen else {"action_mask": mask.astype(np.int8)}
        return observations, infos

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None or not hasattr(self, "random"):
            self.random = np.random.default_rng(seed)
        self.agents, self.at, self.tables = list(CHOICES), 0, dict[str, Any]()
        return self._look(self.agents)

    def step(self, actions: dict[str, Any]) -> Any:
        assert set(actions) == set(self.agents), f"actions for {set(actions)}"
        for agent, action in actions.items():
            assert self.tables[agent][tuple(np.atleast_1d(action))], f"illegal action {action} of {agent}"
        self.at += 1
        acted = self.agents
        self.agents = [agent for agent in acted if self.at < LENGTHS[agent]]
        over = {agent: agent not in self.agents for agent in acted}
        observations, infos = self._look(acted)
        rewards = {agent: float(np.atleast_1d(actions[agent])[0]) for agent in acted}
        return observations, rewards, over, dict.fromkeys(acted, False), infos


def parallel_env(**kwargs: Any) -> StrictTeam:
    return StrictTeam(**kwargs)
