"""An environment of which a test replaces a part, and its check."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces as S

from rltune.envs.facts import EnvFacts
from rltune.envs.spec import EnvSpec
from rltune.envs.validation import check_env
from rltune.errors import ConfigError

VECTOR = S.Box(-1.0, 1.0, (2,), np.float32)


class Walk(gymnasium.Env):
    """A walk of 20 steps, of which a test replaces a part."""

    observation_space: Any = VECTOR
    action_space: Any = S.Discrete(3)

    def __init__(self, **parts: Any) -> None:
        vars(self).update(parts)

    def look(self) -> Any:
        return np.array([self.x, 0.0], np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.at, self.x = 0, self.np_random.uniform(-0.5, 0.5)
        return self.look(), self.tell()

    def step(self, action: Any) -> Any:
        self.at += 1
        self.take(action)
        return self.look(), self.reward(), False, self.at == 20, self.tell()

    def take(self, action: Any) -> None:
        """React to the action."""

    def reward(self) -> Any:
        return 1.0

    def tell(self) -> dict[str, Any]:
        return {}


@contextlib.contextmanager
def registered(made: Any) -> Iterator[str]:
    gymnasium.register("Walk-v0", entry_point=made)
    try:
        yield "Walk-v0"
    finally:
        del gymnasium.registry["Walk-v0"]


def check(made: Any = Walk, **spec: Any) -> EnvFacts:
    with registered(made) as env_id:
        facts = check_env(EnvSpec(env_id, **spec))
    assert facts is not None
    return facts


def refuse(made: Any, **spec: Any) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        check(made, **spec)
    return refused.value
