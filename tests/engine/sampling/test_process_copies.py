"""Copies in processes of their own: how they end, and what they may start."""

from __future__ import annotations

import multiprocessing
import os
import time
from typing import Any

import psutil
import pytest
from ray.tune import register_env

from rltune.engine.sampling.vector_envs import make_envs
from rltune.errors import Cause, GuestError
from tests.engine.engine_toy import CountEnv, make_collector, ppo_config


class Ending(CountEnv):
    """Ends its process in its second step."""

    def step(self, action: Any) -> Any:
        if self.count:
            os._exit(3)
        return super().step(action)


def test_a_process_that_ends_is_a_lost_one() -> None:
    register_env("ending", lambda config: Ending())
    envs = make_envs(ppo_config("ending", envs=2).env_runners(gym_env_vectorize_mode="async"))
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
    children = [
        child for worker in multiprocessing.active_children() for child in psutil.Process(worker.pid).children()
    ]
    assert children
    envs.close()
    assert not psutil.wait_procs(children, 10)[1]
    assert not multiprocessing.active_children()
