"""Every kind of environment follows one contract."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import numpy as np
import psutil
import pytest
from ray.tune import register_env

from rltune.engine.sampling.vector_envs import SyncEnvs, VectorEnvs, make_envs
from rltune.errors import Cause, GuestError, RewardError
from tests.engine.engine_toy import CountEnv, make_collector, ppo_config

SEEN: list[tuple[int, int]] = []


def create_indexed(config: Any) -> CountEnv:  # at module level: Ray's registry pickles closures by value
    SEEN.append((config["length"], config.vector_index))
    return CountEnv(length=config["length"])


def create_unrewarding(config: Any) -> CountEnv:
    return CountEnv(reward=float("nan"))


@pytest.mark.parametrize("mode", ["native", "async", "vector"])
def test_vector_environments_follow_the_same_contract(mode: str) -> None:
    config = ppo_config("CartPole-v1", envs=12 if mode == "native" else 2)
    if mode != "native":
        config.env_runners(gym_env_vectorize_mode="async" if mode == "async" else "vector_entry_point")
    envs = make_envs(config)
    try:
        assert isinstance(envs, VectorEnvs)
        rollout = make_collector(envs).collect(400)
    finally:
        envs.close()
    over = rollout.terminated | rollout.truncated
    assert over.any()
    np.testing.assert_array_equal(rollout.valid[1:], ~over[:-1])
    assert (rollout.rewards[~rollout.valid] == 0).all()
    assert all(reward == length for reward, length in rollout.episodes)
    starts = rollout.obs[1:][~rollout.valid]
    assert (np.abs(starts) <= 0.05).all()


def test_few_environments_are_stepped_one_by_one() -> None:
    """Many are native, where the arguments allow."""
    assert isinstance(make_envs(ppo_config(envs=2)), SyncEnvs)
    unknown = ppo_config(envs=16).environment(env_config={"render_mode": None, "max_episode_steps": 7})
    native = make_envs(unknown)
    assert isinstance(native, VectorEnvs)
    assert max(length for _, length in make_collector(native).collect(500).episodes) <= 7


def test_a_registered_environment_receives_its_config_and_index() -> None:
    register_env("indexed", create_indexed)
    SEEN.clear()
    make_envs(ppo_config("indexed", envs=3).environment(env_config={"length": 4})).close()
    assert SEEN == [(4, 0), (4, 1), (4, 2)]


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_reward_that_is_no_number_ends_the_sampling(mode: str) -> None:
    register_env("unrewarding", create_unrewarding)
    envs = make_envs(ppo_config("unrewarding", envs=2).env_runners(gym_env_vectorize_mode=mode))
    with pytest.raises(RewardError) as caught:
        make_collector(envs).collect(4)
    assert caught.value.call == f"step 1 of copy {1 if mode == 'sync' else 2}"
    envs.close()


class Guest(CountEnv):
    """Does something wrong at a step or a reset, in its second copy."""

    def __init__(self, fault: Any, at: int = 2) -> None:
        super().__init__()
        self.fault, self.at = fault, at
        if at == -1:
            self.fault()

    def reset(self, **kwargs: Any) -> Any:
        obs, info = super().reset(**kwargs)
        return (self.fault(obs, 1.0)[0], info) if self.at == 0 and callable(self.fault) else (obs, info)

    def step(self, action: Any) -> Any:
        obs, reward, *ends = super().step(action)
        if self.count == self.at:
            obs, reward = self.fault(obs, reward)
        return obs, reward, *ends


def leave(*args: Any) -> Any:
    raise SystemExit(3)


def divide(*args: Any) -> Any:
    return 1 / 0, 0.0


def kill(*args: Any) -> Any:
    os._exit(3)


FAULTS = {
    "exit": (leave, Cause.ENVIRONMENT),
    "exception": (divide, Cause.ENVIRONMENT),
    "nothing": (lambda obs, reward: (obs, None), Cause.REWARD),
    "list": (lambda obs, reward: (obs, [reward]), Cause.REWARD),
    "pair": (lambda obs, reward: (obs, np.array([reward, 1.0])), Cause.REWARD),
    "text": (lambda obs, reward: (obs, "1.0"), Cause.REWARD),
    "huge": (lambda obs, reward: (obs, 10**400), Cause.REWARD),
    "nan": (lambda obs, reward: (obs * np.nan, reward), Cause.OBSERVATION),
    "infinite": (lambda obs, reward: (obs - [0.0, np.inf], reward), Cause.OBSERVATION),
    "shape": (lambda obs, reward: (obs[:1], reward), Cause.OBSERVATION),
    "scalar": (lambda obs, reward: (0.0, reward), Cause.OBSERVATION),
}


CALLS = {2: "step 2 of copy 2", 0: "reset of copy 2", -1: "make of copy 2"}
CASES = [*((2, fault) for fault in FAULTS), (0, "exit"), (0, "nan"), (0, "shape"), (-1, "exit"), (-1, "exception")]


@pytest.mark.parametrize(("at", "fault"), CASES)
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_a_fault_names_its_cause_and_its_call(mode: str, fault: str, at: int) -> None:
    act, cause = FAULTS[fault]
    register_env("guest", lambda config: Guest(act, at) if config.vector_index == 1 else CountEnv())
    envs: Any = None

    def sample() -> None:
        nonlocal envs
        envs = make_envs(ppo_config("guest", envs=2).env_runners(gym_env_vectorize_mode=mode))
        make_collector(envs).collect(20)

    with pytest.raises(GuestError) as caught:
        sample()
    if envs is not None:
        envs.close()
    assert (caught.value.cause, caught.value.call) == (cause, CALLS[at])
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_unusual_but_right_numbers_are_taken(mode: str) -> None:
    register_env("guest", lambda config: Guest(lambda obs, reward: (obs.tolist(), np.array([reward])), 2))
    envs = make_envs(ppo_config("guest", envs=2).env_runners(gym_env_vectorize_mode=mode))
    rollout = make_collector(envs).collect(20)
    envs.close()
    assert {total for total, _ in rollout.episodes} == {6.0}


def test_a_process_that_ends_is_a_lost_one() -> None:
    register_env("guest", lambda config: Guest(kill))
    envs = make_envs(ppo_config("guest", envs=2).env_runners(gym_env_vectorize_mode="async"))
    with pytest.raises(GuestError) as caught:
        make_collector(envs).collect(20)
    envs.close()
    assert caught.value.cause is Cause.LOST_PROCESS
    assert "3" in caught.value.what
    assert not multiprocessing.active_children()


class Parent(CountEnv):
    """Starts a process of its own, as simulators do."""

    def __init__(self) -> None:
        super().__init__()
        self.child = multiprocessing.Process(target=time.sleep, args=(600,))
        self.child.start()

    def close(self) -> None:
        self.child.kill()
        self.child.join()


def test_an_asynchronous_copy_may_start_a_process() -> None:
    register_env("parent", lambda config: Parent())
    envs = make_envs(ppo_config("parent", envs=2).env_runners(gym_env_vectorize_mode="async"))
    make_collector(envs).collect(8)
    children = [child for worker in psutil.Process().children() for child in worker.children(recursive=True)]
    assert children
    envs.close()
    assert not psutil.wait_procs(children, 10)[1]
    assert not multiprocessing.active_children()


def test_a_failed_build_closes_the_copies_it_made() -> None:
    closed: list[int] = []

    class Closing(CountEnv):
        def close(self) -> None:
            closed.append(1)

    def make(index: int) -> Any:
        return Closing() if index < 2 else divide()

    with pytest.raises(GuestError):
        SyncEnvs(make, 3)
    assert len(closed) == 2
