"""Collect samples from remote env runners: weights and statistics are sent to them, and arrays come back.

RLlib sends lists of episode objects instead, which have to be pickled one by one.
"""

from __future__ import annotations

import faulthandler
import math
from typing import Any

import ray

from rltune.engine.on_policy.rollout import Rollout
from rltune.engine.sampling.observation_filter import Moments, merge_moments

CLOSE_S = 10.0  # How long an env runner may take to close its environments after one of them has failed.


def collect_remotely(algorithm: Any, steps: int) -> list[Rollout]:
    """Let every healthy remote runner collect an equal share of ``steps`` in parallel.

    Args:
        algorithm: A ``FastAlgorithm`` with ``num_env_runners > 0``.
        steps: Environment steps over all runners.

    Raises:
        RuntimeError: When no runner delivers within RLlib's ``sample_timeout_s``.
    """
    group, runner = algorithm.env_runner_group, algorithm.env_runner_group.local_env_runner
    algorithm.restore_env_runners(group)
    # Only healthy runners are counted, so that the batch keeps its size if a runner is lost.
    share = math.ceil(steps / max(1, group.num_healthy_remote_workers()))
    rollouts: list[Rollout] = _call_runners(algorithm, "collect_with", moments=_moments_of(runner), steps=share)
    for rollout in rollouts:
        _merge_learned(runner, rollout.moments)
    return rollouts


def collect_transitions(algorithm: Any, steps: int) -> None:
    """Let every healthy remote runner collect an equal share of ``steps`` for the replay memory.

    Args:
        algorithm: An ``OffPolicy`` with ``num_env_runners > 0``.
        steps: Environment steps over all runners.

    Raises:
        RuntimeError: When no runner delivers within RLlib's ``sample_timeout_s``.
    """
    group, runner = algorithm.env_runner_group, algorithm.env_runner_group.local_env_runner
    algorithm.restore_env_runners(group)
    share = math.ceil(steps / max(1, group.num_healthy_remote_workers()))
    # Epsilon depends on the steps of all runners together.
    clock = algorithm.counters["num_env_steps_sampled_lifetime"]
    answers = _call_runners(algorithm, "collect_transitions", moments=_moments_of(runner), steps=share, clock=clock)
    for collected, taken, episodes, learned in answers:
        algorithm.replay.add(collected)
        algorithm.count(taken, episodes)
        _merge_learned(runner, learned)


def _moments_of(runner: Any) -> Moments | None:
    """Return the merged observation statistics, which the local runner keeps; None without normalisation."""
    normaliser = runner.normaliser
    return None if normaliser is None else normaliser.moments


def _merge_learned(runner: Any, learned: Moments | None) -> None:
    """Merge a remote runner's new observation statistics into the local runner's."""
    merged = _moments_of(runner)
    if learned is not None and merged is not None:
        runner.normaliser.load(*merge_moments(merged, learned))


def _call_runners(algorithm: Any, method: str, **request: Any) -> list[Any]:
    """Call a method of every healthy remote runner with the current weights; return the answers that came in time.

    Raises:
        RuntimeError: Nothing did.
    """
    config = algorithm.config
    # The weights are put into Ray's object store once; as an argument of each call they would be pickled for each
    # runner.
    weights = ray.put(algorithm.learner_module.get_state(inference_only=True))
    answers: list[Any] = algorithm.env_runner_group.foreach_env_runner(
        # A module-level function is sent, because cloudpickle would take 9 ms per runner for a lambda.
        _call_method,
        kwargs={"method": method, "weights": weights, **request},
        local_env_runner=False,
        timeout_seconds=config.sample_timeout_s,
    )
    if not answers:
        raise RuntimeError(
            f"none of {config.num_env_runners} env runners returned a fragment within "
            f"{config.sample_timeout_s} s (sample_timeout_s)"
        )
    return answers


def _call_method(runner: Any, method: str, **request: Any) -> Any:
    """Call a method of an ``ArrayEnvRunner`` in its remote process, which RLlib ends at any exception.

    The environments are closed before that, as they may have processes of their own.
    """
    try:
        return getattr(runner, method)(**request)
    except Exception:
        faulthandler.dump_traceback_later(CLOSE_S, exit=True, file=2)
        runner.stop()
        raise
