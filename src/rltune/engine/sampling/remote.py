"""Rollouts from remote env runners: weights and normaliser state out, arrays back, once per fragment."""

from __future__ import annotations

import math
from typing import Any

import ray

from rltune.engine.on_policy.rollout import Rollout
from rltune.engine.sampling.observation_filter import Moments, merge_moments


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
    moments = _moments(runner)
    rollouts: list[Rollout] = group.foreach_env_runner(
        lambda remote: remote.collect_with(ray.get(weights), moments, share),
        local_env_runner=False,
        timeout_seconds=algorithm.config.sample_timeout_s,
    )
    _require(rollouts, algorithm.config)
    for rollout in rollouts:
        _learn(runner, rollout.moments)
    return rollouts


def collect_transitions(algorithm: Any, steps: int) -> None:
    """Have every healthy remote runner collect its share of ``steps`` into the algorithm's replay memory."""
    group, runner = algorithm.env_runner_group, algorithm.env_runner_group.local_env_runner
    algorithm.restore_env_runners(group)
    share = math.ceil(steps / max(1, group.num_healthy_remote_workers()))
    weights = ray.put(algorithm.learner_module.get_state(inference_only=True))
    clock = algorithm.counters["num_env_steps_sampled_lifetime"]
    moments = _moments(runner)
    answers = group.foreach_env_runner(
        lambda remote: remote.collect_transitions(ray.get(weights), moments, share, clock),
        local_env_runner=False,
        timeout_seconds=algorithm.config.sample_timeout_s,
    )
    _require(answers, algorithm.config)
    for rows, taken, episodes, learned in answers:
        algorithm.replay.extend(rows)
        algorithm.count(taken, episodes)
        _learn(runner, learned)


def _moments(runner: Any) -> Moments | None:
    """The local runner's normaliser state, which is the merged one."""
    normaliser = runner.normaliser
    return None if normaliser is None else (normaliser.count, normaliser.mean, normaliser.sum_squares)


def _learn(runner: Any, learned: Moments | None) -> None:
    """Merge what a remote normaliser learned into the local runner's."""
    present = _moments(runner)
    if learned is not None and present is not None:
        runner.normaliser.load(*merge_moments(present, learned))


def _require(answers: list[Any], config: Any) -> None:
    if not answers:
        raise RuntimeError(
            f"none of {config.num_env_runners} env runners returned a fragment within "
            f"{config.sample_timeout_s} s (sample_timeout_s)"
        )
