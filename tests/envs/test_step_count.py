"""Environment steps are counted while they are taken, and can be ended."""

from __future__ import annotations

import gymnasium as gym
import pytest

from rltune.envs.step_count import STEPS, SamplingEnded, count_steps_of


@pytest.fixture(autouse=True)
def go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(STEPS, "is_ending", False)


def test_stock_rllibs_environments_are_counted_once() -> None:
    envs = gym.make_vec("CartPole-v1", 3, gym.VectorizeMode.SYNC)
    envs.reset(seed=0)
    count_steps_of(envs)
    count_steps_of(envs)
    before = STEPS.steps
    envs.step(envs.action_space.sample())
    assert STEPS.steps - before == 3
    STEPS.is_ending = True
    with pytest.raises(SamplingEnded):
        envs.step(envs.action_space.sample())
    envs.close()
