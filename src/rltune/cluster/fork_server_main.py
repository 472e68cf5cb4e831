"""Run the fork server's process: import once, then fork a process for each request."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import pickle
import random
import runpy
import signal
import socket
import struct
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from select import select
from typing import Any

from rltune.cluster.worker_entry import FORKED, MODULES_VARIABLE, WORKER_VARIABLE
from rltune.compat.ray_start import WORKER_MODULE, draw_actor_class_ids, forbid_auto_start

# What RLlib imports and what does not import Ray, so that it can be imported before Ray's settings are known.
EARLY = ("torch", "torch.export", "pandas", "pyarrow", "gymnasium", "pydantic", "rich", "jsonschema")
LATE = ("ray.rllib.algorithms.algorithm", WORKER_MODULE)
OOM_SCORE = "1000"  # as Ray gives its workers (2.60): the system ends a trial before the driver
NO_JOB = "ffffffff"  # what Ray tells workers that it starts before there is a job (2.60)
MORE, PROGRESS = b"+", struct.Struct(">II")  # before an answer, a sign of progress: how many are done, of how many
CALL = b"call"  # the first bytes of a request to call a function; a request for a worker begins with its length
REQUEST_S = 5.0  # for a client to send its request: one that was stopped must not hold up all others
PR_SET_PDEATHSIG = 1  # Linux's prctl: the signal that a process gets when its parent ends

Request = dict[str, Any]


# -- in the fork server -----------------------------------------------------------------------------------------------


def main(listening: socket.socket) -> Callable[[], None]:
    """Serve requests until the driver is gone.

    Ray's library reads its settings, such as the number of its raylet's process, when it is imported (2.60). So the
    rest of the imports waits for the first request with an environment: one for a worker, or one without streams, which
    `ForkServer.prepare` sends for nothing else. Calls wait for it, too.

    Args:
        listening: The socket of requests.

    Returns:
        In each forked process, what it is to do; the fork server itself never returns.
    """
    _import_modules(EARLY)
    is_ready = False  # until the rest is imported
    calls: list[tuple[socket.socket, bytes]] = []
    while True:
        if sys.stdin in select([listening, sys.stdin], [], [])[0]:
            os._exit(0)
        connection, _ = listening.accept()
        head, streams = _receive_head(connection)
        if head.startswith(CALL):
            calls.append((connection, head[len(CALL) :]))
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
    """Import what has to wait for Ray's settings."""
    _replace_environment(environment)
    with draw_actor_class_ids():  # an actor class draws its id when it is defined
        _import_modules([*LATE, *environment[MODULES_VARIABLE].split()])
    gc.collect()
    gc.freeze()  # the collector would write to memory that forked processes share
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system then removes ended children by itself


def _import_modules(modules: Iterable[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):  # the worker that needs it will say why it cannot be imported
            importlib.import_module(module)


def _replace_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _receive_head(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a request's first bytes, and the streams of a process that asks for a worker; b"" from one that ended."""
    connection.settimeout(REQUEST_S)
    try:
        head, streams, _, _ = socket.recv_fds(connection, len(CALL) + 4, 3)
    except OSError:
        return b"", []
    return head, list(streams)


def _receive_request(connection: socket.socket, head: bytes) -> Request | None:
    """Receive a request for a worker; None when the process that asks has ended or is stopped."""
    size, content = int.from_bytes(head, "little"), b""
    with contextlib.suppress(OSError):
        while len(content) < size and (more := connection.recv(size - len(content))):
            content += more
    if not content or len(content) != size:
        return None
    request: Request = json.loads(content)
    return request


def _fork(inherited: Sequence[socket.socket]) -> bool:
    """Fork; return True in the new process, where these sockets are closed and random numbers start anew."""
    if os.fork():
        return False
    for other in inherited:
        other.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Forked generators share their state: without new seeds all workers would draw the same numbers.
    random.seed()
    sys.modules["numpy"].random.seed()
    sys.modules["torch"].default_generator.seed()
    return True


# -- in a forked process ----------------------------------------------------------------------------------------------


def _become_worker(connection: socket.socket, request: Request, streams: Sequence[int]) -> None:
    """Go on as the process that Ray has started would have."""
    # When a worker ends, Ray kills its process group (2.60): in the fork server's, all other workers would end with it.
    os.setpgid(0, 0)  # the session stays: by it a later driver finds what a killed one left
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
    """Call the requested function without a Ray, and end with the fork server."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    forbid_auto_start()
    connection.settimeout(None)
    connection.sendall(FORKED)  # from now on the driver does not call the function itself
    content = head + b"".join(iter(lambda: connection.recv(65536), b""))
    function, arguments, progress = pickle.loads(content)  # noqa: S301 - the driver's, by a private socket
    named = {"progress": lambda *made: connection.sendall(MORE + PROGRESS.pack(*made))} if progress else {}
    try:
        answer = pickle.dumps((False, function(*arguments, **named)))
    except Exception as error:
        answer = _pickle_error(error)
    connection.sendall(answer)


def _pickle_error(error: Exception) -> bytes:
    """Pickle an exception, or its words where it could not be read again: not every class keeps its arguments."""
    try:
        content = pickle.dumps((True, error))
        pickle.loads(content)  # noqa: S301 - our own
    except Exception:
        return pickle.dumps((True, RuntimeError(f"{type(error).__name__}: {error}")))
    return content


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))()
