"""Collect from remote env runners: weights and normaliser state go out, arrays come back, once per fragment.

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
    """RLlib's ``EnvRunnerGroup`` whose processes serve one algorithm after another.

    A process starts in some 5 s of CPU, nearly all of it imports, where trials may last for seconds. They are kept in a
    placement group alone, as Tune's trials have one: its CPUs belong to this process as long as it lives, so that
    nobody waits for them. They end with it.
    """

    def _make_worker(self, **kwargs: Any) -> Any:
        """Let an idle process begin anew, or start one."""
        idle = _idle[self._key(kwargs["worker_index"])]
        while idle:
            actor = idle.pop()
            with contextlib.suppress(ray.exceptions.RayActorError):  # The idle actor may have died meanwhile.
                # Waiting for each actor raises an environment's error here, as if its process had just started.
                ray.get(actor.begin_anew.remote(**kwargs, tune_trial_id=self._tune_trial_id))
                return actor
        return super()._make_worker(**kwargs)

    def _key(self, worker_index: int) -> tuple[Any, ...]:
        group = ray.util.get_current_placement_group()
        return (group and group.id, self.env_runner_cls, worker_index)

    def stop(self) -> None:
        """Close all environments, keep the processes that answer, and end processes that do not."""
        if ray.util.get_current_placement_group() is not None:
            manager = self._worker_manager
            for answer in manager.foreach_actor(lambda runner: runner.stop()):
                if answer.ok:
                    _idle[self._key(answer.actor_id)].append(manager.remove_actor(answer.actor_id))
        super().stop()


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
    # The steps are shared by healthy runners only, so that a batch keeps its size if a runner is lost.
    share = math.ceil(steps / max(1, group.num_healthy_remote_workers()))
    rollouts: list[Rollout] = _call_runners(algorithm, "collect_with", moments=_moments_of(runner), steps=share)
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
    clock = algorithm.counters["num_env_steps_sampled_lifetime"]  # Epsilon follows the steps of all runners.
    answers = _call_runners(algorithm, "collect_transitions", moments=_moments_of(runner), steps=share, clock=clock)
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
    merged = _moments_of(runner)
    if learned is not None and merged is not None:
        runner.normaliser.load(*merge_moments(merged, learned))


def _call_runners(algorithm: Any, method: str, **request: Any) -> list[Any]:
    """Call a method of every healthy remote runner with the learner's weights; return what came back in time.

    Raises:
        RuntimeError: Nothing did.
    """
    config = algorithm.config
    # The weights are put into the object store once. As an argument of each call they would be pickled for each runner.
    weights = ray.put(algorithm.learner_module.get_state(inference_only=True))
    answers: list[Any] = algorithm.env_runner_group.foreach_env_runner(
        # A lambda would cost 9 ms for each runner, because cloudpickle searches all modules for the name "ray".
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
    """Run in the process of a remote ``ArrayEnvRunner``, which is the first argument."""
    return getattr(runner, method)(**request)
