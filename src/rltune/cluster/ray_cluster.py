"""The Ray that runs the trials: one of our own for as long as the sweep lasts, or a running one.

The only module that starts Ray, on behalf of `rltune.sweep.pipeline`. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from rltune.cluster.fork_server import ForkServer
from rltune.cluster.resources import Machine, Share, local_machine
from rltune.config.schema import ClusterConfig
from rltune.errors import ResourceError

# Read by Tune when it is imported or run. Its own output, loggers and snapshots are switched off: the console, MLflow
# and the ledger have their places.
TUNE_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000000",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "0",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_DEDUP_LOGS": "0",
}
STRANGER = "ab" * 28  # no cluster's number: its GCS refuses whoever asks by it, after a look at the token
TOKEN_S = 3.0  # for that answer
NODE_S = 30.0  # as long as Ray waits itself for its raylet
OBJECT_STORE_BYTES = 256 * 2**20  # reports and placement messages only: samples never leave a trial


def machine_of(cluster: ClusterConfig) -> Machine | None:
    """What trials can count on; None for a running Ray, which has to be asked once connected."""
    if cluster.address is not None:
        return None
    here = local_machine()
    return Machine(cpus=cluster.num_cpus or here.cpus, gpus=here.gpus if cluster.num_gpus is None else cluster.num_gpus)


def can_fork_workers(cluster: ClusterConfig) -> bool:
    """Whether processes of the Ray to come may be forked: only of our own, and where no GPU's library is loaded."""
    machine = machine_of(cluster)
    ray = sys.modules.get("ray")
    return machine is not None and not machine.gpus and not (ray and ray.is_initialized())


def prepare_environment(cluster: ClusterConfig | None = None) -> None:
    """Set what Ray and Tune read from the environment when they are imported; to be called before they are.

    Args:
        cluster: Which Ray will run; None is one of our own.
    """
    for key, value in TUNE_SETTINGS.items():
        os.environ.setdefault(key, value)
    if "ray" not in sys.modules and (cluster is None or cluster.address is None):
        # A Ray that is joined has its own mode and token, which ours would hide, or demand of it.
        # Ray would write a token into the user's home, readable by all; in the environment it ends with this process.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


@contextmanager
def connect_ray(
    cluster: ClusterConfig, modules: Sequence[str] = (), nursery: ForkServer | None = None
) -> Iterator[Machine]:
    """Start or join Ray, and leave it again.

    A Ray that runs in this process already (a test's, a notebook's) is used and left running.

    Args:
        cluster: Which.
        modules: What the processes of a Ray of our own import as soon as they start, before there is a trial.
        nursery: Where they come from with their imports done.

    Yields:
        What it has for trials.

    Raises:
        ResourceError: No Ray answers at the address.
    """
    import ray

    ours = not ray.is_initialized()
    if ours:
        _start_alone(cluster, modules, nursery)
    try:
        total = ray.cluster_resources()
        yield Machine(cpus=total.get("CPU", 0.0), gpus=total.get("GPU", 0.0))
    finally:
        if ours:
            ray.shutdown()


def find_ray_logs() -> Path | None:
    """Where Ray's processes on this machine write; None without a Ray."""
    import ray

    if not ray.is_initialized():
        return None
    node = ray._private.worker._global_node
    return Path(node.get_logs_dir_path()) if node is not None else None


def ensure_ray() -> None:
    """Start a local Ray unless one runs in this process already; for scripts, which keep it until they end."""
    prepare_environment()
    import ray

    if not ray.is_initialized():
        _start_alone(ClusterConfig())


def _start_alone(cluster: ClusterConfig, modules: Sequence[str] = (), nursery: ForkServer | None = None) -> None:
    """Start or join Ray while other threads work with it.

    Registering an environment or importing RLlib asks for Ray's job, and Ray starts itself for whoever asks too early
    (2.60): a second Ray in the middle of our start, which then fails. Under its own lock it waits for ours.
    """
    from ray._private.auto_init_hook import auto_init_lock

    with auto_init_lock, _workers_of(nursery, modules) if nursery else contextlib.nullcontext():
        _start(cluster, modules)


def _start(cluster: ClusterConfig, modules: Sequence[str]) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    if cluster.address is not None:
        try:
            _check_token(cluster.address)
            ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
        except AuthenticationError:
            raise ResourceError(
                f"cluster.address={cluster.address}: wrong or missing token",
                "the cluster's own token, in RAY_AUTH_TOKEN, in the file that RAY_AUTH_TOKEN_PATH names, "
                "or in ~/.ray/auth_token",
                "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=..., then the same command",
            ) from None
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise ResourceError(
                f"cluster.address={cluster.address}: no Ray answers ({str(error).splitlines()[0]})",
                "the address of a running Ray, or auto on one of its nodes",
                "ray start --head, or cluster=local",
            ) from None
        return
    machine = machine_of(cluster)
    assert machine is not None
    with _own_session(), _lean(cluster.dashboard):
        _init_local(cluster, machine, modules)


def _check_token(address: str) -> None:
    """Ask a Ray whether it takes our token: `ray.init` asks for 20 s, and then says only that it failed (2.60).

    Raises:
        AuthenticationError: It does not.
    """
    from ray._private.authentication import authentication_token_setup as tokens
    from ray._private.services import canonicalize_bootstrap_address
    from ray._raylet import GcsClient  # type: ignore[attr-defined]
    from ray.exceptions import AuthenticationError, RayError

    if "://" in address or (found := canonicalize_bootstrap_address(address)) is None:
        return  # a Ray Client's, or none: for `ray.init` to say
    if address == "auto":
        tokens.maybe_enable_token_auth_if_token_available(warn_if_disabled=False)  # as `ray.init` does
    tokens.ensure_token_if_auth_enabled(create_token_if_missing=False)  # a client without one ends this process
    try:
        GcsClient(address=found, cluster_id=STRANGER).check_alive([], timeout=TOKEN_S)
    except AuthenticationError as error:
        if "InvalidAuthToken" in str(error):
            raise
    except (RayError, OSError):
        pass  # nobody there, or not yet


@contextmanager
def _replaced(owner: Any, **others: Any) -> Iterator[None]:
    """Let some of its names mean something else for a while."""
    plain = {name: getattr(owner, name) for name in others}
    for name, other in others.items():
        setattr(owner, name, other)
    try:
        yield
    finally:
        for name, one in plain.items():
            setattr(owner, name, one)


def _with_params(**changes: Any) -> AbstractContextManager[None]:
    """Let a Ray that starts have these parameters, besides those that `ray.init` gives it."""
    from ray._private import parameter

    def params(*args: Any, made_by: Any = parameter.RayParams, **kwargs: Any) -> Any:
        made = made_by(*args, **kwargs)
        vars(made).update(changes)
        return made

    return _replaced(parameter, RayParams=params)


@contextmanager
def _own_session() -> Iterator[None]:
    """Let what Ray starts have a session of its own.

    Whoever ends a job (timeout, a batch system, a container's init) signals its whole process group. Ray shields its
    processes from SIGINT alone (2.60): SIGTERM would take the cluster away before the trials could save their state.
    """
    from ray._private import services

    with _replaced(services, ConsolePopen=functools.partial(services.ConsolePopen, start_new_session=True)):
        yield


@contextmanager
def _lean(dashboard: bool) -> Iterator[None]:
    """Give Ray what `ray.init` has no argument for (2.60).

    Two cores are three seconds earlier without the autoscaler, which has nothing to scale on one machine, the reader of
    logs, whose lines the driver does not ask for, and the dashboard's server, which Ray starts and waits for even where
    it is to serve no dashboard.

    Args:
        dashboard: Whether somebody wants to see it.
    """
    from ray._private import services

    served = {} if dashboard else {"start_api_server": lambda *args, **kwargs: (None, None)}  # as where it cannot start
    without = _with_params(no_monitor=True, include_log_monitor=False)
    with without, _replaced(services, get_node=_node_of, **served):
        yield


@contextmanager
def _workers_of(nursery: ForkServer, modules: Sequence[str]) -> Iterator[None]:
    """Let Ray start its workers by the nursery, and the nursery get ready as soon as there is a raylet."""
    from ray._private import services

    def start_raylet(*args: Any, plain: Any = services.start_raylet, **kwargs: Any) -> Any:
        started = plain(*args, **kwargs)
        nursery.prepare(started.process.pid)
        return started

    told = _replaced(services, start_raylet=start_raylet)
    with nursery.serving(modules) as script, _with_params(worker_path=script), told:
        yield


def _node_of(gcs_address: str, node_id: str) -> dict[str, Any]:
    """Ray's `services.get_node`, which looks for a node that is not there yet once a second."""
    from ray._private import services, state

    known = state.GlobalState()
    known._initialize_global_state(services._get_gcs_client_options(gcs_address))
    deadline = time.monotonic() + NODE_S
    while time.monotonic() < deadline and node_id not in {node["NodeID"] for node in known.node_table()}:
        time.sleep(0.02)
    found: dict[str, Any] = known.get_node(node_id)
    return found


def _init_local(cluster: ClusterConfig, machine: Machine, modules: Sequence[str]) -> None:
    import ray

    ray.init(
        num_cpus=int(machine.cpus),
        num_gpus=int(machine.gpus),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=cluster.dashboard,
        dashboard_host="127.0.0.1",
        _node_ip_address="127.0.0.1",
        log_to_driver=False,
        logging_level="ERROR",
        # Ray starts a process per CPU at once and gives it to a trial, unless a task has run in it (Ray 2.60): a task
        # of ours cannot do the imports, and see `warm_actors`.
        _system_config={"preload_python_modules": list(modules)},
    )


@contextmanager
def warm_actors(cluster: ClusterConfig, share: Share) -> Iterator[None]:
    """Let Tune start its actors in the processes that have their imports done, where that is possible.

    Two habits of Tune (2.60) keep it from that: each trial has a placement group, whose readiness Ray asks by a task
    in such a process, which no actor gets afterwards; and each actor has environment variables of its own, for which
    Ray starts another process, although those of a Ray of our own have inherited them. Groups are needed where a
    trial has several processes, which must fit together, and both on a cluster.
    """
    if cluster.address is not None or share.env_runners:
        yield
        return
    from ray.air.execution import FixedResourceManager
    from ray.tune.execution import tune_controller

    lighter = {"PlacementGroupResourceManager": FixedResourceManager, "_ActorClassCache": _PlainActors}
    with _replaced(tune_controller, **lighter):
        yield


@contextmanager
def lost_processes() -> Iterator[None]:
    """Let a process that Ray ended for want of memory, or that its machine took along, cost its trial alone.

    Tune knows two kinds of errors and raises at any other (2.60), which would end the whole sweep.
    """
    from ray.air.execution._internal.actor_manager import RayActorManager
    from ray.exceptions import RayActorError, RayError, RayTaskError

    plain = RayActorManager._actor_task_failed

    def failed(manager: Any, tracked_actor_task: Any, exception: Exception) -> None:
        if isinstance(exception, RayError) and not isinstance(exception, RayActorError | RayTaskError):
            exception = RayActorError(error_msg=f"{type(exception).__name__}: {exception}")
        plain(manager, tracked_actor_task=tracked_actor_task, exception=exception)

    with _replaced(RayActorManager, _actor_task_failed=failed):
        yield


@contextmanager
def uncounted() -> Iterator[None]:
    """Let Tune not look which of its callbacks are Ray's own, to count them in Ray's usage statistics.

    To know MLflow's among them it imports MLflow (2.60), two seconds before the first trial.
    """
    from ray.air._internal import usage

    with _replaced(usage, tag_callbacks=lambda callbacks: False):
        yield


class _PlainActors:
    """Tune's cache of actor classes, without environment variables."""

    def __init__(self) -> None:
        self._known: dict[type, Any] = {}

    def get(self, trainable: type) -> Any:
        """The actor class of a trainable."""
        import ray

        if trainable not in self._known:
            self._known[trainable] = ray.remote(trainable)
        return self._known[trainable]
