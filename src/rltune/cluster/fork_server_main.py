"""The fork server's process: imports RLlib and torch once, then forks a process for each request."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import marshal
import os
import pickle
import random
import runpy
import signal
import socket
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from select import select
from typing import Any

from rltune.cluster.worker_entry import FORKED, MODULES_VARIABLE, WORKER_VARIABLE
from rltune.compat.ray_start import (
    WORKER_MODULE,
    draw_actor_class_ids,
    forbid_auto_start,
    forget_finalizers,
    run_exit_handlers,
)
from rltune.envs import child
from rltune.envs.guest import make_fault

# What RLlib, Ray's serialization and Tune import, but does not import Ray, so that it can be imported before Ray's
# settings are known. Tune asks IPython, if it is installed, whether a trial's process is a notebook.
EARLY = (
    *("torch", "numba", "torch.export", "pandas", "pyarrow", "gymnasium", "pydantic", "rich", "jsonschema"),
    *("pydantic.v1", "starlette.datastructures", "IPython"),
)
# RLlib imports the last two when an algorithm is built.
LATE = (
    *("ray.rllib.algorithms.algorithm", WORKER_MODULE),
    *("ray.rllib.core.learner.torch.torch_learner", "ray.rllib.core.models.catalog"),
)
OOM_SCORE = "1000"  # The score Ray gives its workers (2.60), so that the kernel kills a trial before the driver.
NO_JOB = "ffffffff"  # The job id in the environment of workers that Ray starts before there is a job (2.60).
# The first bytes of a request to call a function, and to fork an `rltune.envs.child`; one for a worker begins with its
# length.
CALL, CHILD = b"call", b"child"
ANSWERED, RAISED, ENDED = "answered", "raised", "ended"  # What a call sends: its answer, its error or its exit code.
PID_BYTES = 8  # The length of the answer to a request for a child, its process id.
REQUEST_S = 5.0  # The time-out for reading a request, so that a client that was stopped does not block the others.
PR_SET_PDEATHSIG = 1  # prctl's option for a signal that a process gets when its parent ends.

Request = dict[str, Any]


# -- Functions that run in the fork server ----------------------------------------------------------------------------


def main(descriptor: str) -> None:
    """Serve requests that arrive at a listening socket, and do in each forked process what it was forked for."""
    serve(socket.socket(fileno=int(descriptor)))()


def serve(listening: socket.socket) -> Callable[[], None]:
    """Serve requests to fork workers or to call functions, until the driver ends.

    Ray's library reads its settings, such as the id of the raylet's process, when it is imported (2.60). So the second
    half of the imports waits for the first request that has Ray's environment: a request for a worker, or the request
    without streams that `ForkServer.prepare` sends for this purpose alone. Calls are queued until then.

    Args:
        listening: The socket that receives the requests.

    Returns:
        In each forked process, the function that it has to run. In the fork server itself `serve` never returns.
    """
    _import_modules(EARLY)
    is_ready = False  # Whether the modules that need Ray's environment variables are imported.
    calls: list[tuple[socket.socket, bytes]] = []
    while True:
        if sys.stdin in select([listening, sys.stdin], [], [])[0]:
            os._exit(0)
        connection, _ = listening.accept()
        head, streams = _receive_head(connection)
        if head.startswith(CALL):
            calls.append((connection, head[len(CALL) :]))
        elif head == CHILD:
            if is_ready and _fork([listening, *(other for other, _ in calls)]):
                return functools.partial(_become_child, connection, streams)
            connection.close()
            for stream in streams:
                os.close(stream)
        else:
            request = _receive_request(connection, head)
            if request and not is_ready:
                _prepare(request["environment"])
                is_ready = True
            if request and streams and _fork([listening, *(other for other, _ in calls)]):
                return functools.partial(_become_worker, connection, request, streams)
            connection.close()
            for stream in streams:
                os.close(stream)
        while is_ready and calls:
            connection, head = calls.pop()
            if _fork([listening, *(other for other, _ in calls)]):
                return functools.partial(_answer_call, connection, head)
            connection.close()


def _prepare(environment: Mapping[str, str]) -> None:
    """Import the modules that need Ray's environment variables, before the first worker is forked."""
    _replace_environment(environment)
    # Ray draws a random id for an actor class when it is defined, that is, during these imports.
    with draw_actor_class_ids():
        _import_modules([*LATE, *environment[MODULES_VARIABLE].split()])
    forget_finalizers()
    gc.collect()
    gc.freeze()  # Keeps the garbage collector from writing to memory that is shared with forked processes.
    # With SIGCHLD ignored, the kernel reaps ended child processes.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _import_modules(names: Iterable[str]) -> None:
    """Import modules, and call the functions that are named as ``module:function``."""
    for module, _, function in (name.partition(":") for name in names):
        with contextlib.suppress(Exception):  # The worker that needs the module reports the import error.
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _receive_head(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive the first bytes of a request, with the streams of a worker; b"" if the client has disconnected."""
    connection.settimeout(REQUEST_S)
    try:
        head, streams, _, _ = socket.recv_fds(connection, len(CALL) + 4, 4)
    except OSError:
        return b"", []
    return head, list(streams)


def _receive_request(connection: socket.socket, head: bytes) -> Request | None:
    """Receive the rest of a request for a worker; None if the client has disconnected or does not send it in time."""
    size, content = int.from_bytes(head, "little"), b""
    with contextlib.suppress(OSError):
        while len(content) < size and (more := connection.recv(size - len(content))):
            content += more
    if not content or len(content) != size:
        return None
    request: Request = marshal.loads(content)  # noqa: S302 - from our own process, through a private socket
    return request


def _fork(inherited: Sequence[socket.socket]) -> bool:
    """Fork this process; in the child, close the given sockets, reseed the random generators and return True."""
    if os.fork():
        return False
    for other in inherited:
        other.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # All children inherit the same state of the random generators, and would draw the same numbers.
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    return True


# -- Functions that run in a forked process ---------------------------------------------------------------------------


def _become_worker(connection: socket.socket, request: Request, streams: Sequence[int]) -> None:
    """Run Ray's worker script in this process, in place of the process that Ray has started."""
    # Ray kills the process group of a worker that ends (2.60), which must not be the group of the fork server.
    # Only the process group is new, because a later driver finds stale processes by their session.
    os.setpgid(0, 0)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _replace_environment(request["environment"])
    os.chdir(request["folder"])
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    connection.sendall(FORKED)
    connection.close()
    worker = request["environment"][WORKER_VARIABLE]
    sys.argv = [worker, *request["arguments"]]
    sys.path.insert(0, str(Path(worker).parent))
    runpy.run_path(worker, run_name="__main__")


def _answer_call(connection: socket.socket, head: bytes) -> None:
    """Call a function for the driver in a child of this process, which joins no Ray cluster, and send the answer.

    If the child ends without one, then this process, which runs nobody's code, sends the child's exit code. Both are
    killed with the fork server, which ignores the ends of its own children.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    forbid_auto_start()
    connection.settimeout(None)
    # Tells the driver that the call has begun, so that it does not call the function itself.
    connection.sendall(FORKED)
    content = head + b"".join(iter(lambda: connection.recv(65536), b""))
    if caller := os.fork():
        _, status = os.waitpid(caller, 0)
        if status:
            connection.sendall(pickle.dumps((ENDED, os.waitstatus_to_exitcode(status))))
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    try:
        # It imports the function's module, and may fail in it.
        function, arguments = pickle.loads(content)  # noqa: S301 - from the driver, through a private socket
        answer = pickle.dumps((ANSWERED, function(*arguments)))
    except BaseException as error:
        answer = _pickle_error(error if isinstance(error, Exception) else make_fault(error, "the check"))
    connection.sendall(answer)
    connection.shutdown(socket.SHUT_WR)  # The driver goes on, however long simulators take to end.
    run_exit_handlers()
    os._exit(0)


def _become_child(connection: socket.socket, streams: Sequence[int]) -> None:
    """Become the supervising process of an `rltune.envs.child.Child`, in a session of its own, as if it were started.

    It ends with the driver, and not with the fork server.
    """
    lifeline, requests, output, answers = streams
    os.setsid()
    forbid_auto_start()
    for number, stream in enumerate((lifeline, output, output)):
        os.dup2(stream, number)
    os.close(lifeline)
    os.close(output)
    connection.sendall(os.getpid().to_bytes(PID_BYTES))
    connection.close()
    child.supervise(requests, answers)


def _pickle_error(error: Exception) -> bytes:
    """Pickle an exception; if it cannot be unpickled, pickle a RuntimeError with its text instead."""
    try:
        content = pickle.dumps((RAISED, error))
        pickle.loads(content)  # noqa: S301 - our own
    except Exception:
        return pickle.dumps((RAISED, RuntimeError(f"{type(error).__name__}: {error}")))
    return content
