"""An environment whose last info says how an episode went, and an objective of its own."""

from __future__ import annotations

import sys
from typing import Any

import gymnasium as gym


class Judged(gym.Wrapper[Any, Any, Any, Any]):
    """Says how an episode went in its last step's info, and only there."""

    steps = 0

    def step(self, action: Any) -> Any:
        obs, reward, terminated, truncated, info = self.env.step(action)
        self.steps += 1
        if terminated or truncated:
            info = info | {"is_success": self.steps > 12, "energy": float(self.steps), "note": "fell"}
            self.steps = 0
        return obs, reward, terminated, truncated, info


def falls_late(total: float, length: int, info: dict[str, Any]) -> float:
    return total + 1000 * length + info["energy"]


def reads_a_missing_key(total: float, length: int, info: dict[str, Any]) -> float:
    return float(info["profit"])


def exits(*episode: Any) -> float:
    sys.exit(3)


def gives_a_huge_number(*episode: Any) -> int:
    return 10**400


def gives_nothing(*episode: Any) -> None:
    """Return no score."""
