"""A runner in an environment whose infos have numbers of many kinds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from informing import METRICS

from rltune.driver.plan import make_plan
from rltune.trial.algorithm_runner import AlgorithmRunner


def run_informing(request_of: Callable[..., Any], *overrides: str, engine: str = "fast") -> AlgorithmRunner:
    """Build a small runner with all of its metrics."""
    declared = ",".join(f"{key}: {reduction}" for key, reduction in METRICS.items())
    small = ("algo.rl_module.model_config.fcnet_hiddens=[8]", "++algo.training.train_batch_size_per_learner=100")
    names = ("env.id=informing:Informing-v0", f"++metrics={{{declared}}}", "algo.env_runners.num_envs_per_env_runner=2")
    small += () if "algo=dqn" in overrides else ("algo.training.minibatch_size=50",)
    build = make_plan(request_of(*small, *names, *overrides)).build
    return AlgorithmRunner(build, {}, seed=1, engine=engine, threads=1, scored_steps=1000)
