"""Start a local Ray for the duration of a sweep, or join a running Ray cluster.

This is the only module that starts Ray. Runs in the driver.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rltune.cluster.fork_server import ForkServer
from rltune.cluster.resources import Machine, local_machine
from rltune.cluster.slots import list_nodes
from rltune.cluster.worker_logs import bound_logs, delete_session
from rltune.compat import ray_start
from rltune.compat.ray_start import (
    find_logs,
    list_private_arguments,
    start_in_own_session,
    start_without_extras,
    start_workers_by,
)
from rltune.config.schema import ClusterConfig
from rltune.errors import ResourceError, RltuneError, UnavailableError, describe_exception

# Tune reads these variables when it is imported or run. They switch off Tune's own output, loggers and snapshots,
# because a sweep has its console, MLflow and the ledger, and Tune's own working folder for each trial.
TUNE_SETTINGS = {
    "RAY_AIR_NEW_OUTPUT": "0",
    # By default each trial runs in a folder of its own, where a path relative to the command's folder leads nowhere.
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    "TUNE_DISABLE_SIGINT_HANDLER": "1",
    "TUNE_DISABLE_STRICT_METRIC_CHECKING": "1",
    "TUNE_GLOBAL_CHECKPOINT_S": "100000000",
    # By default Tune starts a trial only when the previous trial's process is up (Ray 2.60). A high limit turns this
    # off, because rltune's own searcher limits how many trials wait for their processes.
    "TUNE_MAX_PENDING_TRIALS_PG": "100000000",
    "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    "TUNE_RESULT_BUFFER_LENGTH": "1",
    "TUNE_WARN_THRESHOLD_S": "60",
    "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "0",
    # By default, Tune restarts a preempted trial from its beginning.
    "RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE": "1",
    "RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS": "0",
    "RAY_DEDUP_LOGS": "0",
}
CONNECT_S = 5.0  # How long to wait for a cluster's head node to accept a connection.
# Ray's object store is small, because it holds only reports and messages: samples stay in the trials.
OBJECT_STORE_BYTES = 256 * 2**20
SOCKET_BYTES = 107  # The longest path of a socket.
SOCKET = "ray/session_2026-01-01_00-00-00_000000_4194304/sockets/plasma_store"
"""The longest path of a socket below the folder for temporary files, which Ray makes (2.60)."""


def check_address(cluster: ClusterConfig) -> None:
    """Refuse a ``cluster.address`` of something that is not a Ray cluster, such as a Ray Client or a dashboard.

    Raises:
        ResourceError: It is a Ray Client's or a dashboard's, or none at all.
    """
    if cluster.address is None:
        return
    key, address = "cluster.address", cluster.address
    if address == "auto":  # With cluster.address=auto, Ray reads its address from RAY_ADDRESS.
        key, address = "RAY_ADDRESS", os.environ.get("RAY_ADDRESS", "")
        if address in ("", "auto"):
            return
    if match := re.match(r"\w+://(?:[^/@]*@)?([^:/]+)", address):
        host = match[1]
        raise ResourceError(
            ": a sweep cannot run through Ray Client or through the dashboard's port",
            f"host:port of the cluster's head, such as {host}:6379, or auto, on a node of the cluster",
            f"ray job submit --address http://{host}:8265 -- python -m rltune run cluster=address ...",
            key=key,
            value=address,
        )
    if not re.fullmatch(r"\S+:\d+", address):
        raise ResourceError(
            ": not the address of a Ray cluster",
            "host:port of the cluster's head, or auto on one of its nodes",
            f"{key}={address or 'head'}:6379",
            key=key,
            value=address,
        )


def find_temp_folder() -> Path:
    """Return the folder in which a Ray of our own makes ``ray``, with its sockets, logs and spilled objects.

    It is the first usable one of ``RAY_TMPDIR`` alone, if it is set; else of ``TMPDIR``, ``/tmp`` and a folder of this
    user's in ``/tmp``, because a batch system's paths may be too long for sockets, and ``/tmp/ray`` another user's.

    Raises:
        ResourceError: There is none.
    """
    typed = {name: value for name in ("RAY_TMPDIR", "TMPDIR") if (value := os.environ.get(name))}
    folders = [typed.get("TMPDIR", "/tmp"), "/tmp", f"/tmp/rltune-{os.getuid()}"]  # noqa: S108 - where Ray's are
    if "RAY_TMPDIR" in typed:
        folders = [typed["RAY_TMPDIR"]]
    obstacles = [_describe_obstacle(Path(folder)) for folder in folders]
    usable = next((folder for folder, obstacle in zip(folders, obstacles, strict=True) if not obstacle), None)
    if usable is not None:
        return Path(usable)
    key = next(iter(typed), "TMPDIR")
    room = SOCKET_BYTES - len(SOCKET) - 1
    raise ResourceError(
        f": {obstacles[0]}",
        f"a folder for the sockets and logs of Ray's processes that you can write to, of at most {room} bytes",
        "export RAY_TMPDIR=$(mktemp -d /tmp/ray-XXXXXX), or another such folder",
        key=key,
        value=typed.get(key, folders[0]),
    )


def _describe_obstacle(folder: Path) -> str:
    """Say why Ray cannot use a folder for temporary files; empty if it can."""
    if (length := len(os.fsencode(folder.absolute() / SOCKET))) > SOCKET_BYTES:
        return f"it has {len(os.fsencode(folder.absolute()))} bytes, with which sockets in it have {length}"
    path = folder.absolute() / "ray"
    place = next(parent for parent in (path, *path.parents) if os.path.lexists(parent))
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return f"{place} is {f'of user {place.lstat().st_uid}, and ' if place == path else ''}no folder to write to"
    return ""


def machine_of(cluster: ClusterConfig) -> Machine | None:
    """Return what a local Ray offers to trials; None for a cluster to join, whose nodes are not known yet."""
    if cluster.address is not None:
        return None
    here = local_machine()
    return Machine(cpus=cluster.num_cpus or here.cpus, gpus=here.gpus if cluster.num_gpus is None else cluster.num_gpus)


def can_fork_workers(cluster: ClusterConfig) -> bool:
    """Return whether Ray's workers can be forked: only in a local Ray, and without GPUs as CUDA cannot be forked."""
    machine = machine_of(cluster)
    ray = sys.modules.get("ray")
    return machine is not None and not machine.gpus and not (ray and ray.is_initialized())


def prepare_environment(cluster: ClusterConfig | None = None) -> None:
    """Set the environment variables that Ray and Tune read when they are imported; to be called before that.

    Args:
        cluster: Which Ray will run; None is one of our own.
    """
    for key, value in TUNE_SETTINGS.items():
        os.environ.setdefault(key, value)
    if cluster is not None and cluster.address is not None:
        return
    folder = find_temp_folder()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.environ["RAY_TMPDIR"] = str(folder.absolute())  # Not a relative one: Ray's processes have other folders.
    if "ray" not in sys.modules:
        # Token authentication for a local Ray; a cluster that is joined has its own settings. Ray would store the token
        # in the user's home, readable by all; a token in the environment ends with this process.
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))


_own_logs: list[Path] = []  # The folder of the logs of the Ray that `connect_ray` has started.


@contextmanager
def connect_ray(
    cluster: ClusterConfig, modules: Sequence[str] = (), fork_server: ForkServer | None = None
) -> Iterator[tuple[Machine, ...]]:
    """Start a local Ray or join a cluster, and shut down or disconnect at the end of the context.

    A Ray that runs in this process already (a test's, a notebook's) is used and left running. The session of a Ray of
    our own, with its logs, is deleted if the context ends without an exception, or with one of ours.

    Args:
        modules: What the processes of a Ray of our own import as soon as they start, before there is a trial.
        fork_server: Forks those processes, with their imports done; None lets Ray start them.

    Yields:
        What each of its nodes has for trials, at this moment.

    Raises:
        ResourceError: The Ray at the address cannot be joined.
        UnavailableError: No Ray answers at the address, or one of our own does not come up.
    """
    import ray

    if ray.is_initialized():
        yield list_nodes()
        return
    _start_alone(cluster, modules, fork_server)
    logs = find_logs() if cluster.address is None else None
    _own_logs[:] = [logs] if logs else []
    are_logs_needed = True
    try:
        yield list_nodes()
        are_logs_needed = False
    except RltuneError:
        are_logs_needed = False
        raise
    finally:
        _own_logs.clear()
        ray.shutdown()
        if logs and not are_logs_needed:
            delete_session(logs)


def bound_own_logs() -> None:
    """Bound the logs of workers, unless this process has joined a Ray or uses one that it has not started."""
    for logs in _own_logs:
        bound_logs(logs)


def ensure_ray() -> None:
    """Start a local Ray unless this process already has one; it lasts until the process ends."""
    prepare_environment()
    import ray

    if not ray.is_initialized():
        _start_alone(ClusterConfig())


def _start_alone(cluster: ClusterConfig, modules: Sequence[str] = (), fork_server: ForkServer | None = None) -> None:
    """Start a local Ray or join a cluster; a fork server, if given, forks Ray's workers."""
    handler = signal.getsignal(signal.SIGTERM)
    with contextlib.ExitStack() as stack:
        if fork_server:  # Ray may request workers from the moment its raylet runs.
            script = stack.enter_context(fork_server.publish_address(modules))
            stack.enter_context(start_workers_by(script, fork_server.prepare))
        _start(cluster, modules)
    if callable(handler) and threading.current_thread() is threading.main_thread():
        # Ray sets a handler of its own, which prints a stack before it raises SystemExit (Ray 2.60).
        signal.signal(signal.SIGTERM, handler)
    if fork_server:
        fork_server.report_started_ray()


def _start(cluster: ClusterConfig, modules: Sequence[str]) -> None:
    if cluster.address is not None:
        _join(cluster.address)
        return
    machine = machine_of(cluster)
    assert machine is not None
    try:
        with start_in_own_session(), start_without_extras(cluster.dashboard):
            _init_local(cluster, machine, modules)
    except Exception as error:
        # Ray raises a plain Exception if its node is not up in time (Ray 2.60).
        raise UnavailableError(
            f": Ray did not start ({describe_exception(error)})",
            "a machine with time and memory for Ray's own processes; their logs are in "
            f"{find_temp_folder()}/ray/session_latest/logs",
            "the same command again, when the machine is less busy",
            key="cluster",
            value="local",
        ) from error


def _join(address: str) -> None:
    import ray
    from ray.exceptions import AuthenticationError

    try:
        target = (os.environ.get("RAY_ADDRESS") or "auto") if address == "auto" else address
        # Check first that something listens at the address, because otherwise `ray.init` waits for minutes.
        if target != "auto":
            host, _, port = target.rpartition(":")
            socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (
        AuthenticationError,
        OSError,
        RuntimeError,
        ValueError,
    ) as error:  # OSError includes ConnectionError.
        raise _explain_failed_join(address, error) from None


def _explain_failed_join(address: str, error: BaseException) -> RltuneError:
    """Turn the error of a failed attempt to join a Ray cluster into one that says what to do."""
    from ray.exceptions import AuthenticationError

    said = "\n".join(str(text) for text in (error, error.__cause__, error.__context__) if text)
    if isinstance(error, AuthenticationError) or "InvalidAuthToken" in said:
        return ResourceError(
            ": wrong or missing token",
            "the cluster's own token in RAY_AUTH_TOKEN, or in the file that RAY_AUTH_TOKEN_PATH names",
            "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN=..., then the same command",
            key="cluster.address",
            value=address,
        )
    versions = re.findall(r"    Ray: (\S+)\n    Python: (\S+)", said)
    if "Version mismatch" in said and len(versions) >= 2:
        (their_ray, their_python), (ray, python) = versions[:2]
        return ResourceError(
            f": Ray {their_ray} on Python {their_python} runs there, Ray {ray} on Python {python} here",
            "the same versions of Ray and Python on every node, to the last digit",
            f"pip install ray=={ray} on the nodes, under Python {python}, and start them again",
            key="cluster.address",
            value=address,
        )
    if "No node info found" in said:
        # Ray raises this, after a minute, on a machine that is not a node of the cluster.
        return ResourceError(
            ": a Ray cluster answers, but this machine is not one of its nodes",
            "a command on a node of the cluster; a node without CPUs for trials is enough",
            f"ray start --address={address} --num-cpus=0 here, then the same command; or ray job submit",
            key="cluster.address",
            value=address,
        )
    return UnavailableError(
        f": no Ray answers ({describe_exception(error)})",
        "the address of a running Ray, or auto on one of its nodes",
        "ray start --head, or cluster=local",
        key="cluster.address",
        value=address,
    )


def _init_local(cluster: ClusterConfig, machine: Machine, modules: Sequence[str]) -> None:
    import ray

    ray.init(
        address="local",  # By default, Ray would join a cluster that RAY_ADDRESS names.
        num_cpus=int(machine.cpus),
        num_gpus=int(machine.gpus),
        object_store_memory=OBJECT_STORE_BYTES,
        include_dashboard=cluster.dashboard,
        dashboard_host=ray_start.LOCALHOST,
        log_to_driver=False,
        logging_level="ERROR",
        **list_private_arguments(modules),
    )
