"""Let Tune reuse warm processes for trials, and fail only the trial when its process is lost. Runs in the driver."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rltune.compat.patching import replace_names, switched


@switched(nullcontext)
@contextmanager
def adapt_tune(one_process: bool) -> Iterator[None]:
    """Apply all replacements of this module while a `tune.Tuner` runs.

    Args:
        one_process: Whether each trial is a single process in our own Ray.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(survive_lost_processes())
        stack.enter_context(skip_callback_count())
        stack.enter_context(keep_starting_actors())
        if one_process:
            stack.enter_context(use_warm_processes())
        yield


def use_warm_processes() -> AbstractContextManager[None]:
    """Let Tune start trials in Ray's preloaded worker processes instead of new ones.

    What: ``tune_controller.PlacementGroupResourceManager`` and ``_ActorClassCache``.
    Why: Tune gives each trial a placement group. Ray checks the group by a task, and a process that has run a task is
    given to no actor afterwards. Tune also gives each actor environment variables, so that Ray starts another process
    for it, although the processes of our own Ray have inherited these. If a trial has several processes, then it needs
    the group, so that all of them are placed together. A cluster needs both.
    Gains: 5 s of CPU a slot. Tested with Ray 2.60.
    """
    from ray.tune.execution import tune_controller

    lighter = {"PlacementGroupResourceManager": make_resource_manager, "_ActorClassCache": _PlainActors}
    return replace_names(tune_controller, **lighter)


def make_resource_manager() -> Any:
    """Make Tune's resource manager with 1% more of each GPU, so that it admits as many fractions as Ray does.

    Tune adds the fractions up unrounded, so that fourteen sevenths are more than two GPUs, and 6 x 0.1667 are more than
    one. Ray cuts each fraction off after four digits. The difference is below 1% for up to a hundred trials on a GPU.
    """
    import ray
    from ray.air.execution import FixedResourceManager

    there = ray.cluster_resources()
    return FixedResourceManager({**there, "GPU": 1.01 * there.get("GPU", 0.0)})


def keep_starting_actors() -> AbstractContextManager[None]:
    """Let a trial keep the process that is starting for it, and give a free process to another waiting trial.

    What: ``TuneController._maybe_reuse_cached_actor``.
    Why: Tune gives a free process to the first waiting trial, and discards the process that was starting for it.
    If a process takes longer to start than a trial to run, then no second process is ever used: slots stay empty, and
    so does a node that joins.
    Gains: all slots are used. Tested with Ray 2.60.
    """
    from ray.tune.execution.tune_controller import TuneController

    plain = TuneController._maybe_reuse_cached_actor

    def reuse(controller: Any, trial: Any) -> bool:
        own = controller._trial_to_actor.get(trial)
        # If the actor has not started, its process is still importing modules.
        has_place = own is not None and controller._actor_manager.is_actor_started(own)
        return plain(controller, trial) if not has_place or trial in controller._resetting_trials else False

    return replace_names(TuneController, _maybe_reuse_cached_actor=reuse)


def survive_lost_processes() -> AbstractContextManager[None]:
    """Fail only one trial, not the sweep, if Ray kills its process for lack of memory or loses its node.

    What: ``RayActorManager._actor_task_failed``.
    Why: Tune handles two kinds of errors and raises any other, which ends the whole sweep.
    Tested with Ray 2.60.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import RayActorError, RayError, RayTaskError

    plain = RayActorManager._actor_task_failed

    def fail_task(manager: Any, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, RayActorError | RayTaskError):
            exception = RayActorError(error_msg=f"{type(exception).__name__}: {exception}")
        plain(manager, tracked_actor_task=tracked_actor_task, exception=exception)

    return replace_names(RayActorManager, _actor_task_failed=fail_task)


def skip_callback_count() -> AbstractContextManager[None]:
    """Skip the classification of callbacks for Ray's usage statistics, which imports MLflow.

    What: ``ray.air._internal.usage.tag_callbacks``. Why: to recognise MLflow's callback it imports MLflow, even if
    usage statistics are switched off.
    Gains: 2 s before the first trial. Tested with Ray 2.60.
    """
    from ray.air._internal import usage

    return replace_names(usage, tag_callbacks=lambda callbacks: False)


class _PlainActors:
    """Tune's cache of actor classes, but without the environment variables that prevent the use of warm processes."""

    def __init__(self) -> None:
        self._known: dict[type, Any] = {}

    def get(self, trainable: type) -> Any:
        """Return the Ray actor class of a trainable class, and cache it."""
        import ray

        if trainable not in self._known:
            self._known[trainable] = ray.remote(trainable)
        return self._known[trainable]
