"""Collect from remote env runners: weights and normaliser state go out, arrays come back, once per fragment.

RLlib sends lists of episode objects instead, which have to be pickled one by one.
"""

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
    # Of the healthy ones: a batch stays as large as it was when a runner is lost.
    share = math.ceil(steps / max(1, group.num_healthy_remote_workers()))
    # Put once: as an argument of each call it would be pickled once for each runner.
    weights = ray.put(algorithm.learner_module.get_state(inference_only=True))
    moments = _moments_of(runner)
    rollouts: list[Rollout] = group.foreach_env_runner(
        # The parameter is the remote ArrayEnvRunner itself: this runs in its process.
        lambda remote: remote.collect_with(ray.get(weights), moments, share),
        local_env_runner=False,
        timeout_seconds=algorithm.config.sample_timeout_s,
    )
    _require_answers(rollouts, algorithm.config)
    for rollout in rollouts:
        _merge_learned(runner, rollout.moments)
    return rollouts


def collect_transitions(algorithm: Any, steps: int) -> None:
    """Have every healthy remote runner collect its share of ``steps`` into the algorithm's replay memory.

    Args:
        algorithm: An ``OffPolicy`` with ``num_env_runners > 0``.
        steps: Environment steps over all runners.

    Raises:
        RuntimeError: When no runner delivers within RLlib's ``sample_timeout_s``.
    """
    group, runner = algorithm.env_runner_group, algorithm.env_runner_group.local_env_runner
    algorithm.restore_env_runners(group)
    share = math.ceil(steps / max(1, group.num_healthy_remote_workers()))
    weights = ray.put(algorithm.learner_module.get_state(inference_only=True))
    clock = algorithm.counters["num_env_steps_sampled_lifetime"]  # of all runners: exploration follows the whole
    moments = _moments_of(runner)
    answers = group.foreach_env_runner(
        lambda remote: remote.collect_transitions(ray.get(weights), moments, share, clock),
        local_env_runner=False,
        timeout_seconds=algorithm.config.sample_timeout_s,
    )
    _require_answers(answers, algorithm.config)
    for rows, taken, episodes, learned in answers:
        algorithm.replay.extend(rows)
        algorithm.count(taken, episodes)
        _merge_learned(runner, learned)


def _moments_of(runner: Any) -> Moments | None:
    """Return the local runner's normaliser state, which is the merged one; None without normalisation."""
    normaliser = runner.normaliser
    return None if normaliser is None else (normaliser.count, normaliser.mean, normaliser.sum_squares)


def _merge_learned(runner: Any, learned: Moments | None) -> None:
    """Merge what a remote normaliser learned into the local runner's."""
    present = _moments_of(runner)
    if learned is not None and present is not None:
        runner.normaliser.load(*merge_moments(present, learned))


def _require_answers(answers: list[Any], config: Any) -> None:
    if not answers:
        raise RuntimeError(
            f"none of {config.num_env_runners} env runners returned a fragment within "
            f"{config.sample_timeout_s} s (sample_timeout_s)"
        )
