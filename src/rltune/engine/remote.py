"""Rollouts from remote env runners: weights and normaliser state out, arrays back, once per fragment."""

from __future__ import annotations

import math
from typing import Any

import ray

from rltune.engine.normalise import Moments, merge
from rltune.engine.rollout import Rollout


def collect_remotely(algorithm: Any, steps: int) -> list[Rollout]:
    """Have every healthy remote runner collect its share of ``steps`` at the same time.

    Args:
        algorithm: A ``FastAlgorithm`` with ``num_env_runners > 0``.
        steps: Environment steps over all runners.

    Raises:
        RuntimeError: When no runner delivers within RLlib's ``sample_timeout_s``.
    """
    group, runner = algorithm.env_runner_group, algorithm.env_runner_group.local_env_runner
    algorithm.restore_env_runners(group)
    share = math.ceil(steps / max(1, group.num_healthy_remote_workers()))
    weights = ray.put(algorithm.learner_module.get_state(inference_only=True))
    moments: Moments | None = None
    if runner.normaliser is not None:
        normaliser = runner.normaliser
        moments = (normaliser.count, normaliser.mean, normaliser.sum_squares)
    rollouts: list[Rollout] = group.foreach_env_runner(
        lambda remote: remote.collect_with(ray.get(weights), moments, share),
        local_env_runner=False,
        timeout_seconds=algorithm.config.sample_timeout_s,
    )
    if not rollouts:
        raise RuntimeError(
            f"none of {algorithm.config.num_env_runners} env runners returned a rollout within "
            f"{algorithm.config.sample_timeout_s} s (sample_timeout_s)"
        )
    if moments is not None:
        for rollout in rollouts:
            if rollout.moments is not None:
                moments = merge(moments, rollout.moments)
        runner.normaliser.load(*moments)
    return rollouts
