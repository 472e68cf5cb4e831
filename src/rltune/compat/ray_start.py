"""Start a local Ray in ways that `ray.init` has no arguments for, and find the logs of a running Ray.

Runs in the driver and in the fork server. Ray is imported inside the functions, after
`rltune.cluster.ray_cluster.prepare_environment`.
"""

from __future__ import annotations

import atexit
import functools
import os
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from rltune.compat.patching import are_replacements_on, is_tested, replace_names, switched

NODE_S = 120.0  # How long to wait for Ray's node. Ray itself gives up after 30 s, which a busy machine may need.
WORKER_MODULE = "ray._private.workers.default_worker"  # The module that each worker process of Ray runs.
LOCALHOST = "127.0.0.1"


def forbid_auto_start() -> None:
    """Forbid Ray to start or join a cluster by itself in this process, which only checks configurations.

    What: ``auto_init_hook.enable_auto_connect``, otherwise read from ``RAY_ENABLE_AUTO_CONNECT`` at the import.
    Why: RLlib's registrations would start or join a cluster. The variable is read too early for a forked process.
    Tested with Ray 2.60; only used where workers are forked, which is tested versions alone.
    """
    from ray._private import auto_init_hook

    auto_init_hook.enable_auto_connect = False


@switched(nullcontext)
@contextmanager
def start_in_own_session() -> Iterator[None]:
    """Start Ray's processes in a session of their own, out of reach of signals to the driver's process group.

    What: ``services.ConsolePopen`` with ``start_new_session``.
    Why: a timeout, a batch system or a container's init signals the whole process group of a job. Ray protects its
    processes from SIGINT only. A SIGTERM would end Ray before the trials could save their state.
    Gains: no time. With the switch off a SIGTERM to the group costs what was trained since the last checkpoint.
    Tested with Ray 2.60.
    """
    from ray._private import services

    with replace_names(services, ConsolePopen=functools.partial(services.ConsolePopen, start_new_session=True)):
        yield


@switched(nullcontext)
@contextmanager
def start_without_extras(dashboard: bool) -> Iterator[None]:
    """Start Ray without its autoscaler, its log monitor and, if there is no dashboard, its API server.

    What: ``RayParams`` with ``no_monitor`` and ``include_log_monitor``, ``services.start_api_server``,
    ``services.get_node``; ``services.start_raylet``, to know of a raylet that has ended.
    Why: the autoscaler has nothing to scale on one machine, and the driver reads no lines of logs. Ray starts the API
    server and waits for it even if there is no dashboard. `get_node` sleeps a second while the node is not ready yet.
    Gains: three seconds of a start on two cores, of which `get_node` has half a second on average and one at most.
    Tested with Ray 2.60.

    Args:
        dashboard: Whether Ray's dashboard is wanted.
    """
    from ray._private import services

    raylets: list[Any] = []

    def start_raylet(*args: Any, plain: Any = services.start_raylet, **kwargs: Any) -> Any:
        raylets.append(plain(*args, **kwargs))
        return raylets[-1]

    def get_node(gcs_address: str, node_id: str) -> dict[str, Any]:
        return _get_node(gcs_address, node_id, lambda: all(each.process.poll() is None for each in raylets))

    # If the dashboard cannot start, Ray's own function returns these values, too.
    served = {} if dashboard else {"start_api_server": lambda *args, **kwargs: (None, None)}
    without = _replace_params(no_monitor=True, include_log_monitor=False)
    with without, replace_names(services, get_node=get_node, start_raylet=start_raylet, **served):
        yield


@contextmanager
def start_workers_by(script: str, when_raylet_runs: Callable[[int], None]) -> Iterator[None]:
    """Make Ray start our script `worker_entry` instead of its own worker script.

    What: ``RayParams`` with ``worker_path``; ``services.start_raylet``, to know the raylet before it asks for workers;
    ``services._site_flags``, so that Python starts the script without looking for installed packages.
    Why and gains: a worker forked from a process that has imported RLlib and torch costs 0.1 s instead of 5 s of CPU,
    and 0.1 GB instead of 0.3 GB; see `rltune.cluster.fork_server`, which is not used with a Ray that was not tested.
    Tested with Ray 2.60.

    Args:
        script: The script, which gets the arguments of Ray's own worker.
        when_raylet_runs: Called with the id of the raylet's process.
    """
    from ray._private import services

    def start_raylet(*args: Any, plain: Any = services.start_raylet, **kwargs: Any) -> Any:
        started = plain(*args, **kwargs)
        when_raylet_runs(started.process.pid)
        return started

    names = {"start_raylet": start_raylet, "_site_flags": lambda: ["-S"]}
    with _replace_params(worker_path=script), replace_names(services, **names):
        yield


def find_worker_script() -> Path:
    """Return the path of Ray's own worker script, which forked workers run. Tested with Ray 2.60."""
    import ray

    return Path(ray.__file__).parent.joinpath(*WORKER_MODULE.split(".")[1:]).with_suffix(".py")


@contextmanager
def draw_actor_class_ids() -> Iterator[None]:
    """Let actor classes defined in the context get their ids from the operating system's random numbers.

    What: ``ray.actor.ActorClassID``.
    Why: Ray draws from a generator whose state forked workers inherit, so that all would draw the same ids.
    Tested with Ray 2.60; only used where workers are forked.
    """
    import ray.actor

    class FreshID(ray.ActorClassID):
        """Ray's ActorClassID, but random in every forked process."""

        @classmethod
        def from_random(cls) -> Any:
            return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))

    with replace_names(ray.actor, ActorClassID=FreshID):
        yield


def list_private_arguments(modules: Sequence[str] = ()) -> dict[str, Any]:
    """Return the unstable arguments of `ray.init` for a local Ray: its address and the modules to preload.

    What: ``_node_ip_address``; ``_system_config`` with ``preload_python_modules``.
    Why: without the first Ray's processes listen on the machine's address in the network, where only a token protects
    them. So an untested Ray gets it, too, if it still documents it. The second lets Ray's processes import as soon as
    they start, before there is a trial. A task could not do that, because no actor gets a process that has run a task.
    Gains: if workers are not forked (GPUs), the 5 s of CPU for imports are over when a slot's first trial begins.
    Upstream: https://github.com/ray-project/ray/pull/33572 added the setting and calls it experimental.
    Tested with Ray 2.60.

    Args:
        modules: The modules that the processes import.
    """
    import ray

    known = is_tested("ray") or "_node_ip_address" in (ray.init.__doc__ or "")
    arguments: dict[str, Any] = {"_node_ip_address": LOCALHOST} if known else {}
    # An untested version of Ray may not know this setting, and would then raise an error.
    if modules and are_replacements_on():
        arguments["_system_config"] = {"preload_python_modules": list(modules)}
    return arguments


def run_exit_handlers() -> None:
    """Run the exit handlers of a worker that ends without Python's teardown, but not Ray's.

    What: ``atexit._run_exitfuncs``.
    Why: simulators and temporary folders register handlers that close and remove them. Ray's
    own handler is left out, because it would disconnect the worker before the answer to this call is sent.
    Tested with Python 3.11 to 3.13.
    """
    import ray

    atexit.unregister(ray.shutdown)
    atexit._run_exitfuncs()


def forget_finalizers() -> None:
    """Let no process that is forked from this one run the finalizers that exist by now when it ends.

    What: ``weakref.finalize._registry``.
    Why: torch registers 134 of them when it is imported, which only free memory. What others would remove is not the
    forked process's.
    Gains: 35 ms of CPU at the end of each attempt at a trial. Tested with Python 3.11 to 3.13.
    """
    for finalizer in weakref.finalize._registry:  # type: ignore[attr-defined]
        finalizer.atexit = False


@switched(lambda: None)
def find_logs() -> Path | None:
    """Return the folder with the logs of Ray's processes on this machine.

    What: ``ray._private.worker._global_node``.
    Why: the log of a dead process explains more than Ray's guess, and nothing public names its folder.
    Without it a failed trial's reason is Ray's own. Tested with Ray 2.60.

    Returns:
        None without Ray, or if the folder is unknown.
    """
    import ray

    if not ray.is_initialized():
        return None
    node = ray._private.worker._global_node
    return Path(node.get_logs_dir_path()) if node is not None else None


def _replace_params(**changes: Any) -> AbstractContextManager[None]:
    """Change parameters of Ray's start, in addition to those that `ray.init` sets, while the context is open."""
    from ray._private import parameter

    def build_params(*args: Any, plain: Any = parameter.RayParams, **kwargs: Any) -> Any:
        params = plain(*args, **kwargs)
        vars(params).update(changes)
        return params

    return replace_names(parameter, RayParams=build_params)


def _get_node(gcs_address: str, node_id: str, may_come: Callable[[], bool]) -> dict[str, Any]:
    """Replace ``services.get_node``, which polls once a second, by a loop that polls 50 times a second."""
    from ray._private import services, state

    known = state.GlobalState()
    known._initialize_global_state(services._get_gcs_client_options(gcs_address))
    deadline = time.monotonic() + NODE_S
    while node_id not in {node["NodeID"] for node in known.node_table()}:
        if time.monotonic() > deadline or not may_come():
            break
        time.sleep(0.02)
    entry: dict[str, Any] = known.get_node(node_id)
    return entry
