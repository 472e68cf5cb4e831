"""Collect samples from remote env runners: weights and statistics are sent to them, and arrays come back.

RLlib sends lists of episode objects instead, which have to be pickled one by one, and starts new processes for each
algorithm, which import torch and RLlib first.
"""

from __future__ import annotations

import contextlib
import math
from collections import defaultdict
from typing import Any

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rltune.engine.on_policy.rollout import Rollout
from rltune.engine.sampling.observation_filter import Moments, merge_moments

_idle: defaultdict[tuple[Any, ...], list[Any]] = defaultdict(list)
"""Env runners without an algorithm, by placement group, class and number."""


class RemoteRunners(EnvRunnerGroup):
    """RLlib's ``EnvRunnerGroup`` with processes that are reused by one algorithm after another.

    A process starts in some 5 s of CPU, nearly all of it imports, where trials may last for seconds. They are kept in a
    placement group alone, as Tune's trials have one: its CPUs belong to this process as long as it lives, so that
    nobody waits for them. They end with it.
    """

    def _make_worker(self, **kwargs: Any) -> Any:
        """Reuse an idle env runner process for this algorithm, or start a new one."""
        idle = _idle[self._key(kwargs["worker_index"])]
        while idle:
            actor = idle.pop()
            # If the idle process has died, the next one is tried.
            with contextlib.suppress(ray.exceptions.RayActorError):
                # Waiting raises an exception of the environment's constructor here, as for a newly started process.
                ray.get(actor.begin_anew.remote(**kwargs, tune_trial_id=self._tune_trial_id))
                return actor
        return super()._make_worker(**kwargs)

    def _key(self, worker_index: int) -> tuple[Any, ...]:
        group = ray.util.get_current_placement_group()
        return (group and group.id, self.env_runner_cls, worker_index)

    def stop(self) -> None:
        """Close all environments and end the processes; in a placement group, keep and reuse those that respond."""
        if ray.util.get_current_placement_group() is not None:
            manager = self._worker_manager
            for answer in manager.foreach_actor(lambda runner: runner.stop()):
                if answer.ok:
                    _idle[self._key(answer.actor_id)].append(manager.remove_actor(answer.actor_id))
        super().stop()


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
    for rows, taken, episodes, learned in answers:
        algorithm.replay.extend(rows)
        algorithm.count(taken, episodes)
        _merge_learned(runner, learned)


def _moments_of(runner: Any) -> Moments | None:
    """Return the merged observation statistics, which the local runner keeps; None without normalisation."""
    normaliser = runner.normaliser
    return None if normaliser is None else (normaliser.count, normaliser.mean, normaliser.sum_squares)


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
    """Call a method of an ``ArrayEnvRunner`` in its remote process."""
    return getattr(runner, method)(**request)
