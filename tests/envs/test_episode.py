"""The record of an episode is in the info of its last step, however copies step."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import gymnasium as gym
from failing import Failing
from gymnasium.vector import AsyncVectorEnv

from rltune.engine.sampling.vector_envs import SyncEnvs, VectorEnvs
from rltune.envs.build import make_training_env
from rltune.envs.episode import RECORD
from rltune.envs.spec import EnvSpec


def test_an_info_that_is_used_again_keeps_no_record() -> None:
    class Reusing(Failing):
        info: ClassVar[dict[str, Any]] = {}

        def step(self, action: Any) -> Any:
            return *super().step(action)[:4], self.info

    gym.register("Reusing-v0", entry_point=Reusing)
    env = make_training_env(EnvSpec("Reusing-v0", {"length": 2}, rewards={"scale": 2.0}))
    env.reset()
    assert [RECORD in env.step(0)[4] for _ in range(2)] == [False, True]
    assert Reusing.info == {}


def test_copies_in_processes_of_their_own_give_the_same_records() -> None:
    """A copy is made again inside its own process."""
    makers = [
        partial(make_training_env, EnvSpec("failing:Failing-v0", {"fail_at": 3 + 8 * index}, restarts=5))
        for index in range(2)
    ]
    ways = (SyncEnvs(lambda index: makers[index](), 2), VectorEnvs(AsyncVectorEnv(makers, copy=False)))
    seen: list[Any] = []
    for envs in ways:
        envs.reset([1, 2])
        steps = []
        for _ in range(12):
            obs, rewards, terminated, truncated = envs.step(envs.action_space.sample())
            steps.append([*(part.tolist() for part in (obs, rewards, terminated, truncated)), envs.records])
        envs.close()
        seen.append(steps)
    assert seen[0] == seen[1]
    records = [record for step in seen[0] for record in step[4]]
    assert [(env, record.cut, record.length) for env, record in records] == [
        (0, True, 2), (1, False, 5), (0, True, 2), (0, True, 2), (1, False, 5),
    ]  # fmt: skip
