"""The fork server's process: import once, then fork a worker for each that asks."""

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
OOM_SCORE = "1000"  # as Ray gives its workers (2.60): a trial dies before the driver does
NO_JOB = "ffffffff"  # what Ray tells workers that it starts before there is a job (2.60)
CALL = b"call"
PR_SET_PDEATHSIG = 1  # Linux's: what a process gets when its parent ends


# -- in the nursery ---------------------------------------------------------------------------------------------------


def main(listening: socket.socket) -> Callable[[], None]:
    """Serve until the driver is gone.

    Ray's library reads its settings, such as the number of its raylet's process, when it is imported (2.60): the first
    order brings them along, one for a worker or one without streams, which is for nothing else.

    Args:
        listening: Where workers and calls are asked for.

    Returns:
        In each forked process, what it is to do; the nursery itself never comes back.
    """
    _import(EARLY)
    fit: bool | None = None
    waiting: list[tuple[socket.socket, bytes]] = []
    while True:
        if sys.stdin in select([listening, sys.stdin], [], [])[0]:
            os._exit(0)
        asked, _ = listening.accept()
        begin, streams, _, _ = socket.recv_fds(asked, len(CALL) + 4, 3)
        if begin.startswith(CALL):
            waiting.append((asked, begin[len(CALL) :]))
        else:
            order = _order(asked, begin)
            if order and fit is None:
                fit = _prepare(order["environment"])
            if order and fit and streams and _forked([listening, *(other for other, _ in waiting)]):
                return functools.partial(_be_worker, asked, order, streams)
            asked.close()
            for stream in streams:
                os.close(stream)
        while fit is not None and waiting:
            asked, begin = waiting.pop()
            if _forked([listening, *(other for other, _ in waiting)]):
                return functools.partial(_answer, asked, begin)
            asked.close()


def _prepare(environment: Mapping[str, str]) -> bool:
    """Import what is left; whether forked processes can be Ray's."""
    _take_on(environment)
    with draw_actor_class_ids():  # an actor class draws its id when it is defined
        _import([*LATE, *environment[MODULES_VARIABLE].split()])
    gc.collect()
    gc.freeze()  # the collector would write to pages that forked processes share
    fit = _draw() != _draw()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead need nobody to wait for them
    return fit


def _draw() -> bytes:
    """A number as Ray would draw it in a forked process: two of them with the same one would break it (2.60)."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        import ray

        os.write(write, ray.ObjectRef.from_random().binary())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as drawn:
        return drawn.read()


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def _take_on(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)


def _order(asked: socket.socket, begin: bytes) -> dict[str, Any] | None:
    """What a worker is to be; None when who asked was ended meanwhile."""
    size, content = int.from_bytes(begin, "little"), b""
    while len(content) < size and (more := asked.recv(size - len(content))):
        content += more
    order: dict[str, Any] | None = json.loads(content) if content and len(content) == size else None
    return order


def _forked(inherited: Sequence[socket.socket]) -> bool:
    """Fork; True in the new process, which is to have none of these."""
    if os.fork():
        return False
    for other in inherited:
        other.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    random.seed()
    sys.modules["numpy"].random.seed()
    return True


def _be_worker(asked: socket.socket, order: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Go on as the process that Ray has started would have."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    _take_on(order["environment"])
    os.chdir(order["folder"])
    Path("/proc/self/oom_score_adj").write_text(OOM_SCORE)
    asked.sendall(FORKED)
    asked.close()
    worker = order["environment"][WORKER_VARIABLE]
    sys.argv = [worker, *order["arguments"]]
    sys.path.insert(0, str(Path(worker).parent))
    runpy.run_path(worker, run_name="__main__")


def _answer(asked: socket.socket, begin: bytes) -> None:
    """Call what was asked for, without a Ray, and not beyond the nursery's end."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    forbid_auto_start()
    content = begin + b"".join(iter(lambda: asked.recv(65536), b""))
    function, arguments = pickle.loads(content)  # noqa: S301 - the driver's, by a private socket
    try:
        answer = False, function(*arguments)
    except Exception as error:
        answer = True, error
    asked.sendall(pickle.dumps(answer))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))()
