"""Let Tune start and end the processes of trials as a sweep needs it, and survive lost ones. Runs in the driver."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from rltune.compat.patching import replace_names, switched


@switched(nullcontext)
@contextmanager
def adapt_tune(one_process: bool, is_urgent: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Apply all replacements of this module while a `tune.Tuner` runs.

    Args:
        one_process: Whether each trial is a single process in our own Ray.
        is_urgent: Whether the sweep has to end within seconds.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(survive_lost_processes())
        stack.enter_context(skip_callback_count())
        stack.enter_context(end_processes_first())
        stack.enter_context(kill_late_processes(is_urgent))
        stack.enter_context(log_raylet())
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


def end_processes_first() -> AbstractContextManager[None]:
    """Let a trial's process end before the trial does, so that nothing that follows meets the old process.

    What: ``TuneController.stop_trial``, which first calls the trainable's method ``leave`` and then kills the process.
    Why: Tune reports a trial's end, gives its slot away and may retry it while the old process still closes its
    environment, which may hold a port, a licence or a lock. Tune then waits ten minutes for the process; ``leave`` ends
    it after some seconds.
    Gains: simulators of which only one copy may run. Tested with Ray 2.60.
    """
    import ray
    from ray.tune.execution.tune_controller import TuneController

    plain = TuneController.stop_trial

    def stop(controller: Any, trial: Any) -> None:
        def finish(trial: Any, *_: object) -> None:
            if actor := trial.temporary_state.ray_actor:  # None if the process has ended by itself.
                ray.kill(actor)
            plain(controller, trial)

        if trial.status == trial.RUNNING and trial in controller._trial_to_actor:
            controller._schedule_trial_task(trial, "leave", on_result=finish, on_error=finish)
        else:
            plain(controller, trial)

    return replace_names(TuneController, stop_trial=stop)


def kill_late_processes(is_urgent: Callable[[], bool]) -> AbstractContextManager[None]:
    """After a signal, kill the processes of trials that have not ended in the time that they had.

    What: ``TuneController._cleanup_trials``. Why: Tune waits ten seconds more for a process that hangs in an
    environment. Gains: Ctrl-C ends a sweep within ten seconds. Tested with Ray 2.60.

    Args:
        is_urgent: Whether the sweep has to end within seconds.
    """
    from ray.tune.execution.tune_controller import TuneController

    plain = TuneController._cleanup_trials

    def clean_up(controller: Any) -> None:
        for actor in [*controller._stopping_actors] if is_urgent() else []:
            controller._actor_manager.remove_actor(actor, kill=True)
        plain(controller)

    return replace_names(TuneController, _cleanup_trials=clean_up)


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


def log_raylet() -> AbstractContextManager[None]:
    """Write what the raylet says of dead workers to the sweep's log, and not to standard output.

    What: ``ray._private.worker.print_to_stdstream``.
    Why: Ray prints a thousand characters for each dead process, whatever its setting for logs, and so between a
    command's own lines, which say it in one. Tested with Ray 2.60.
    """
    from ray._private import worker

    def log(data: Any, ignore_prefix: bool) -> None:
        logging.getLogger("ray.tune").warning("(%s) %s", data["pid"], "\n".join(data["lines"]))

    return replace_names(worker, print_to_stdstream=log)


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
