"""Start a Ray of our own as `ray.init` has no arguments for, and find out what a running one has.

Runs in the driver and in the process that workers are forked from; Ray is imported inside the functions, after
`rltune.cluster.ray_cluster.prepare_environment`.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rltune.compat.patching import are_replacements_on, is_tested, replace_names, switched

NODE_S = 30.0  # as long as Ray waits itself for its raylet
WORKER_MODULE = "ray._private.workers.default_worker"  # what Ray starts for each worker
LOCALHOST = "127.0.0.1"


def forbid_auto_start() -> None:
    """Let this process never start a Ray by itself; for one that only checks configurations.

    What: ``auto_init_hook.enable_auto_connect``, otherwise read from ``RAY_ENABLE_AUTO_CONNECT`` at the import.
    Why: what RLlib registers would start or join a cluster. The process has imported Ray long before it is forked.
    Tested with Ray 2.60; only used where workers are forked, which is tested versions alone.
    """
    from ray._private import auto_init_hook

    auto_init_hook.enable_auto_connect = False


@switched(nullcontext)
@contextmanager
def start_in_own_session() -> Iterator[None]:
    """Let what Ray starts have a session of its own.

    What: ``services.ConsolePopen`` with ``start_new_session``.
    Why: whoever ends a job (timeout, a batch system, a container's init) signals its whole process group. Ray shields
    its processes from SIGINT alone: SIGTERM would take the cluster away before the trials could save their state.
    Gains: no time. With the switch off a SIGTERM to the group costs what was trained since the last checkpoint.
    Tested with Ray 2.60.
    """
    from ray._private import services

    with replace_names(services, ConsolePopen=functools.partial(services.ConsolePopen, start_new_session=True)):
        yield


@switched(nullcontext)
@contextmanager
def start_without_extras(dashboard: bool) -> Iterator[None]:
    """Let a Ray that starts do without its autoscaler, its reader of logs and, unless it is wanted, its API server.

    What: ``RayParams`` with ``no_monitor`` and ``include_log_monitor``, ``services.start_api_server``,
    ``services.get_node``.
    Why: the autoscaler has nothing to scale on one machine and the driver asks for no lines of logs. The API server is
    started and waited for even where it is to serve no dashboard. `get_node` sleeps a second whenever the node is not
    there yet.
    Gains: three seconds of a start on two cores, of which `get_node` has half a second on average and one at most.
    Tested with Ray 2.60.

    Args:
        dashboard: Whether somebody wants to see it.
    """
    from ray._private import services

    served = {} if dashboard else {"start_api_server": lambda *args, **kwargs: (None, None)}  # as where it cannot start
    without = _replace_params(no_monitor=True, include_log_monitor=False)
    with without, replace_names(services, get_node=_get_node, **served):
        yield


@contextmanager
def start_workers_by(script: str, when_raylet_runs: Callable[[int], None]) -> Iterator[None]:
    """Let Ray start its workers by a script of ours.

    What: ``RayParams`` with ``worker_path``; ``services.start_raylet``, to know the raylet before it asks for workers.
    Why and gains: a worker forked from a process that has imported RLlib and torch costs 0.1 s instead of 5 s of CPU,
    and 0.1 GB instead of 0.3 GB; see `rltune.cluster.fork_server`, which is not used with a Ray that was not tested.
    Tested with Ray 2.60.

    Args:
        script: Started with the arguments of Ray's own worker.
        when_raylet_runs: Called with the number of the raylet's process.
    """
    from ray._private import services

    def start_raylet(*args: Any, plain: Any = services.start_raylet, **kwargs: Any) -> Any:
        started = plain(*args, **kwargs)
        when_raylet_runs(started.process.pid)
        return started

    with _replace_params(worker_path=script), replace_names(services, start_raylet=start_raylet):
        yield


def find_worker_script() -> Path:
    """Return the script that Ray starts for each worker. Tested with Ray 2.60; used where workers are forked."""
    import ray

    return Path(ray.__file__).parent.joinpath(*WORKER_MODULE.split(".")[1:]).with_suffix(".py")


@contextmanager
def draw_actor_class_ids() -> Iterator[None]:
    """Let actor classes that are defined meanwhile draw their ids from the operating system.

    What: ``ray.actor.ActorClassID``.
    Why: Ray's own draw seeds a generator that forked workers would inherit, and then draw the same ids.
    Tested with Ray 2.60; only used where workers are forked.
    """
    import ray.actor

    class FreshID(ray.ActorClassID):
        """An actor class's id without the generator's state."""

        @classmethod
        def from_random(cls) -> Any:
            return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))

    with replace_names(ray.actor, ActorClassID=FreshID):
        yield


def list_private_arguments(modules: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a Ray of our own is to know that `ray.init` only takes as unstable arguments.

    What: ``_node_ip_address``; ``_system_config`` with ``preload_python_modules``.
    Why: without the first Ray's processes listen on the machine's address in the network, where a token alone protects
    them: it is given to an untested Ray too, if that still documents it. By the second its processes import as soon as
    they start, before there is a trial; a task of ours cannot have them do it, because no actor gets a process in which
    a task has run.
    Gains: the imports of a slot's first trial, 5 s of CPU, are over by then where workers are not forked (GPUs).
    Upstream: https://github.com/ray-project/ray/pull/33572 added the setting and calls it experimental.
    Tested with Ray 2.60.

    Args:
        modules: What the processes import.
    """
    import ray

    known = is_tested("ray") or "_node_ip_address" in (ray.init.__doc__ or "")
    arguments: dict[str, Any] = {"_node_ip_address": LOCALHOST} if known else {}
    if modules and are_replacements_on():  # a Ray that does not know the setting ends itself
        arguments["_system_config"] = {"preload_python_modules": list(modules)}
    return arguments


@switched(lambda: None)
def find_logs() -> Path | None:
    """Return the folder that Ray's processes on this machine write their logs to.

    What: ``ray._private.worker._global_node``.
    Why: the log of a process that died says more than Ray's guess; nothing public names the folder.
    Without it a failed trial's reason is Ray's own. Tested with Ray 2.60.

    Returns:
        None without a Ray, or where it cannot be known.
    """
    import ray

    if not ray.is_initialized():
        return None
    node = ray._private.worker._global_node
    return Path(node.get_logs_dir_path()) if node is not None else None


def _replace_params(**changes: Any) -> AbstractContextManager[None]:
    """Let a Ray that starts have these parameters, besides those that `ray.init` gives it."""
    from ray._private import parameter

    def build_params(*args: Any, plain: Any = parameter.RayParams, **kwargs: Any) -> Any:
        params = plain(*args, **kwargs)
        vars(params).update(changes)
        return params

    return replace_names(parameter, RayParams=build_params)


def _get_node(gcs_address: str, node_id: str) -> dict[str, Any]:
    """Do as ``services.get_node``, but look for a node that is not there yet 50 times a second."""
    from ray._private import services, state

    known = state.GlobalState()
    known._initialize_global_state(services._get_gcs_client_options(gcs_address))
    deadline = time.monotonic() + NODE_S
    while time.monotonic() < deadline and node_id not in {node["NodeID"] for node in known.node_table()}:
        time.sleep(0.02)
    found: dict[str, Any] = known.get_node(node_id)
    return found
