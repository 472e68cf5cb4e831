"""Environment steps are counted while they are taken, and can be ended."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rltune.envs.step_count import STEPS, SamplingEnded, count_steps_of
from rltune.errors import Cause, GuestError, RewardError


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


class Strict(gym.Env[Any, Any]):
    """Takes nothing but Python ints, and pays an array of one number."""

    observation_space, action_space = gym.spaces.Discrete(2), gym.spaces.Discrete(2)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        return 0, {}

    def step(self, action: Any) -> Any:
        assert type(action) is int
        return 0, np.array([1.0]), False, False, {}


def test_stock_rllibs_copies_get_what_the_engines_get() -> None:
    envs = gym.wrappers.vector.DictInfoToList(gym.vector.SyncVectorEnv([Strict] * 2))  # As RLlib makes it.
    count_steps_of(envs)
    count_steps_of(envs)
    envs.reset()
    assert list(envs.step(np.array([0, 1]))[1]) == [1.0, 1.0]
    envs.close()


class Bare(Strict):
    """Returns no info any more after its first episode began, or from its third step on."""

    begun = steps = 0

    def __init__(self, call: str) -> None:
        self.call = call

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        self.begun += 1
        return 0, None if self.call == "reset" and self.begun == 2 else {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        return 0, 1.0, False, False, None if self.call == "step" and self.steps == 3 else {}


@pytest.mark.parametrize("call", ["reset", "step"])
def test_stock_rllibs_copies_must_return_an_info(call: str) -> None:
    envs = gym.wrappers.vector.DictInfoToList(gym.vector.SyncVectorEnv([lambda: Bare(call)] * 2))
    count_steps_of(envs)

    def play() -> None:
        for _ in range(3):
            envs.reset()
            envs.step(np.array([0, 1]))

    with pytest.raises(GuestError) as fault:
        play()
    envs.close()
    assert fault.value.cause is Cause.ENVIRONMENT
    assert fault.value.call.startswith(call)
    assert "info, a dict" in fault.value.allowed


class Envs(SimpleNamespace):
    """As many environments as there are rewards, which are those of each step."""

    def reset(self) -> Any:
        return None, {}

    def step(self, actions: Any) -> Any:
        return None, self.rewards, None, None, {}


@pytest.mark.parametrize(
    ("rewards", "wrong"),
    [([1.0, math.nan], "nan"), ([{"a": 1.0}, {"a": 0, "b": -math.inf}], "-inf"), ([1, 2.0], None), ([{}, {}], None)],
)
def test_a_reward_that_is_no_number_is_the_environments_fault(rewards: list[Any], wrong: str | None) -> None:
    """Of one agent, and of several."""
    envs = Envs(num_envs=2, rewards=rewards)
    count_steps_of(envs)
    if wrong is None:
        assert envs.step(None)[1] is rewards
        return
    with pytest.raises(RewardError) as refused:
        envs.step(None)
    assert f" {wrong} " in refused.value.what
    assert refused.value.call == "step 1 of copy 2"
