"""Environments that people know train with the engine at the first typed command, without a setting of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rltune.driver.plan import make_plan
from rltune.engine.algorithm import FastAlgorithm
from rltune.policies.policy import load_policy
from rltune.trial.algorithm_runner import AlgorithmRunner

WITHOUT_MISSION = "env.wrappers=[{entry_point: 'rltune.envs.spaces:Without', kwargs: {keys: [mission]}}]"
COMMANDS = {
    "frozenlake, ppo": ("algo=ppo", "env.id=FrozenLake-v1"),
    "frozenlake, dqn": ("algo=dqn", "env.id=FrozenLake-v1"),
    "taxi, ppo": ("algo=ppo", "env.id=Taxi-v3"),
    "taxi, dqn": ("algo=dqn", "env.id=Taxi-v3"),
    "blackjack": ("algo=ppo", "env.id=Blackjack-v1"),
    "cliff": ("algo=ppo", "env.id=CliffWalking-v1", "+env.kwargs.max_episode_steps=100"),
    "minigrid": ("algo=ppo", "env.id=minigrid:MiniGrid-Empty-5x5-v0", WITHOUT_MISSION),
    "carracing, ppo": ("algo=ppo", "env.id=CarRacing-v3"),
    **{f"{side} pixels, {algo}": (f"algo={algo}", f"env.id=pixels:Pixels{side}-v0")
       for side in (42, 64, 84, 96, 150) for algo in ("ppo", "dqn")},
}  # fmt: skip
SMALL = {
    "ppo": ("algo.training.train_batch_size_per_learner=64", "algo.training.num_epochs=1"),
    "dqn": ("algo.training.num_steps_sampled_before_learning_starts=32",),
}
QUICK = ("frozenlake, ppo", "blackjack")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in QUICK else [pytest.mark.nightly]) for name in COMMANDS]
)
def test_a_known_environment_trains_at_the_first_command(
    name: str, request_of: Callable[..., Any], tmp_path: Path
) -> None:
    algo, *words = COMMANDS[name]
    size = "algo.env_runners.num_envs_per_env_runner=2"
    plan = make_plan(request_of(algo, "env=gym", "~tuned", size, *SMALL[algo.partition("=")[2]], *words))
    runner = AlgorithmRunner(plan.build, {}, 1, "fast", threads=1, scored_steps=1000)
    try:
        assert isinstance(runner.algorithm, FastAlgorithm)
        runner.train()
        assert runner.train().env_steps >= 64
        runner.save(tmp_path, {"algo": algo})
    finally:
        runner.stop()
    facts = plan.build.facts
    if facts.mask is not None:  # Then the policy acts with the flags of legal actions.
        return
    policy, space, taken = load_policy(tmp_path), facts.observation_space, facts.action_space
    space.seed(0)
    for _ in range(20):
        action = policy.act(space.sample())
        assert taken.contains(action) or taken.contains(np.asarray(action))


LAKE = (
    "algo=ppo", "env=gym", "env.id=FrozenLake-v1", "~tuned", "algo.normalise=[]", "algo.training.lr=0.001",
    "algo.training.gamma=0.98", "algo.training.train_batch_size_per_learner=4096",
    "algo.training.minibatch_size=512", "algo.env_runners.num_envs_per_env_runner=32",
)  # fmt: skip

TAXI = (
    "algo=ppo", "env=gym", "env.id=Taxi-v3", "~tuned", "algo.normalise=[rewards]", "algo.training.lr=0.001",
    "algo.training.gamma=0.95", "algo.training.entropy_coeff=[[0,0.1],[200000,0.0]]", "algo.training.num_epochs=5",
    "algo.training.train_batch_size_per_learner=4096",
    "algo.training.minibatch_size=512", "algo.env_runners.num_envs_per_env_runner=32",
)  # fmt: skip


def train_until(request: Any, env_steps: int) -> float:
    """Return the mean return of the last 20,000 steps."""
    runner = AlgorithmRunner(make_plan(request).build, {}, 1, "fast", threads=1, scored_steps=20_000)
    progress = runner.train()
    while progress.env_steps < env_steps:
        progress = runner.train()
    runner.stop()
    return progress.return_mean


@pytest.mark.nightly
def test_frozenlake_reaches_its_known_return(request_of: Callable[..., Any]) -> None:
    """Gymnasium calls it solved at 0.7; the best policy reaches 0.74."""
    threshold = gymnasium.spec("FrozenLake-v1").reward_threshold
    assert threshold is not None
    assert train_until(request_of(*LAKE), 250_000) >= threshold


@pytest.mark.nightly
def test_taxi_reaches_its_known_return(request_of: Callable[..., Any]) -> None:
    """The best policy reaches 7.93, by shortest ways; detours of one step cost one."""
    assert train_until(request_of(*TAXI), 250_000) >= 7.6
