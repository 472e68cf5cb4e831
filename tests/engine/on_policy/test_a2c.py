"""A2C is PPO's loop on advantages as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rltune.algorithms.a2c import A2CConfig
from rltune.engine import build_algorithm
from rltune.engine.on_policy.a2c import FastA2C


@pytest.mark.parametrize("standardise", [False, True])
def test_only_ppo_standardises_the_advantages(standardise: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    config = A2CConfig().environment("CartPole-v1").env_runners(num_env_runners=0).debugging(seed=0)
    algorithm: Any = build_algorithm(config)
    assert type(algorithm) is FastA2C
    assert not FastA2C.standardise_advantages
    monkeypatch.setattr(FastA2C, "standardise_advantages", standardise)
    seen: list[np.ndarray] = []
    update = algorithm.loop.update

    def spy(batch: Any, timestep: int) -> Any:
        seen.append(batch.advantages.numpy().copy())
        return update(batch, timestep)

    monkeypatch.setattr(algorithm.loop, "update", spy)
    algorithm.train()
    algorithm.stop()
    assert (abs(seen[0].mean()) < 0.1) == standardise
