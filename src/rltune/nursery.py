"""Ray's workers, forked from one process that has done the imports: they cost 5 s of CPU once, and memory once.

RLlib and torch take a process 5 s of CPU and 250 MB before its first step. Ray starts a process a slot, each of which
would pay that; so would each that takes the place of one that died. Here Ray starts `hatch` instead, which has the
nursery fork a worker: up in 0.1 s, and most of its memory is shared. The nursery also runs what needs RLlib before
there is a worker (`Nursery.call`), so that the driver need not import it.

`Nursery` runs in the driver, `main` in a process of its own.
"""

from __future__ import annotations

import atexit
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
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from select import select
from typing import Any, TypeVar

from rltune.hatch import BORN, MODULES, SOCKET, WORKER, send_order

# What RLlib imports and what does not import Ray, so that it can be imported before Ray's settings are known.
EARLY = ("torch", "torch.export", "pandas", "pyarrow", "gymnasium", "pydantic", "rich", "jsonschema")
LATE = ("ray.rllib.algorithms.algorithm", "ray._private.workers.default_worker")
LONGEST_ADDRESS = 100  # of a Unix socket: 108 with its end
OOM_SCORE = "1000"  # as Ray gives its workers (2.60): a trial dies before the driver does
NO_JOB = "ffffffff"  # what Ray tells workers that it starts before there is a job (2.60)
PATIENCE_S = 120.0  # for an answer, which waits for Ray to ask for its first worker; it does when it starts
CALL = b"call"
PR_SET_PDEATHSIG = 1  # Linux's: what a process gets when its parent ends
Answer = TypeVar("Answer")


class Nursery:
    """The process that workers are forked from, as the driver sees it; it ends with the driver.

    Args:
        folder: Private, for the socket; removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "socket")
        self._folder, self._closed = folder, False
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.address)
        listening.listen(1024)
        with listening:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rltune.nursery", str(listening.fileno())],
                stdin=subprocess.PIPE,  # whose end tells it that the driver is gone
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # a Ctrl-C is the driver's to handle
            )

    @property
    def pid(self) -> int:
        """The process's number."""
        return self._process.pid

    @contextlib.contextmanager
    def serving(self, modules: Sequence[str]) -> Iterator[str]:
        """While this lasts, what Ray starts finds the nursery.

        Args:
            modules: What the workers will need; one that cannot be imported is left to the worker, which will say why.

        Yields:
            The script that Ray is to start workers by.
        """
        import ray

        worker = Path(ray.__file__).parent / "_private" / "workers" / "default_worker.py"
        found = {SOCKET: self.address, WORKER: str(worker), MODULES: " ".join(modules)}
        os.environ.update(found)
        try:
            yield str(Path(__file__).with_name("hatch.py"))
        finally:
            for name in found:
                del os.environ[name]

    def prepare(self, raylet: int) -> None:
        """Let it import the rest: all that its first worker would bring along is known by now.

        Args:
            raylet: The number of the process that will ask for workers, a second or two after it has begun.
        """
        environment = {**os.environ, "RAY_RAYLET_PID": str(raylet), "RAY_JOB_ID": NO_JOB}
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as asked:
            asked.connect(self.address)
            send_order(asked, {"environment": environment}, [])

    def call(self, function: Callable[..., Answer], *arguments: Any, patience_s: float | None = PATIENCE_S) -> Answer:
        """Call a function where the imports are done, in a process of its own; Ray must be starting, or up.

        Args:
            function: Of a module, by whose name it is found there.
            arguments: Such as can be pickled, and the answer too.
            patience_s: The longest wait, after which it is called here; None waits for as long as the process lives.

        Raises:
            Exception: What the function raises.
            OSError: The nursery was closed meanwhile.
        """
        try:
            with socket.socket(socket.AF_UNIX) as asked:
                asked.settimeout(patience_s)
                asked.connect(self.address)
                asked.sendall(CALL + pickle.dumps((function, arguments)))
                asked.shutdown(socket.SHUT_WR)
                content = b"".join(iter(lambda: asked.recv(65536), b""))
                failed, answer = pickle.loads(content)  # noqa: S301 - from a process of our own, by a private socket
        except (OSError, EOFError, pickle.PickleError):
            if self._closed:  # the sweep ends: nobody waits for the answer any more
                raise
            return function(*arguments)  # no nursery, or one that gave up
        if failed:
            raise answer
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        """End it; workers that it bore live on until their Ray ends them."""
        self._closed = True
        self._process.terminate()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)


_begun: list[Nursery] = []  # one at most, on its way while there are no settings yet


def begin() -> None:
    """Start one for the sweep to come, which `opened` will take: its imports are what a sweep's start waits for.

    Without a sweep it ends with this process. There is none outside Linux, or under a very long temporary folder.
    """
    folder = Path(tempfile.mkdtemp(prefix="rltune-"))  # mode 0700
    if sys.platform != "linux" or len(str(folder / "socket")) > LONGEST_ADDRESS:
        folder.rmdir()
        return
    _begun.append(Nursery(folder))


@atexit.register
def _end_begun() -> None:
    while _begun:
        _begun.pop().close()


@contextlib.contextmanager
def opened(wanted: bool = True) -> Iterator[Nursery | None]:
    """A nursery for a Ray of our own, the one on its way if there is one.

    Args:
        wanted: Whether workers will be forked; if not, the one on its way is ended.

    Yields:
        None where there is no forking.
    """
    if not wanted:
        _end_begun()
    elif not _begun:
        begin()
    nursery = _begun.pop() if _begun else None
    try:
        yield nursery
    finally:
        if nursery:
            nursery.close()


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
    import ray.actor

    class Known(ray.ActorClassID):
        """An actor class draws its number when it is defined, and with it the state that forked processes inherit."""

        @classmethod
        def from_random(cls) -> Any:
            return ray.ActorClassID(os.urandom(ray.ActorClassID.size()))

    plain, ray.actor.ActorClassID = ray.actor.ActorClassID, Known
    _import([*LATE, *environment[MODULES].split()])
    ray.actor.ActorClassID = plain
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
    asked.sendall(BORN)
    asked.close()
    worker = order["environment"][WORKER]
    sys.argv = [worker, *order["arguments"]]
    sys.path.insert(0, str(Path(worker).parent))
    runpy.run_path(worker, run_name="__main__")


def _answer(asked: socket.socket, begin: bytes) -> None:
    """Call what was asked for, without a Ray, and not beyond the nursery's end."""
    from ray._private import auto_init_hook

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    auto_init_hook.enable_auto_connect = False
    content = begin + b"".join(iter(lambda: asked.recv(65536), b""))
    function, arguments = pickle.loads(content)  # noqa: S301 - the driver's, by a private socket
    try:
        answer = False, function(*arguments)
    except Exception as error:
        answer = True, error
    asked.sendall(pickle.dumps(answer))


if __name__ == "__main__":
    main(socket.socket(fileno=int(sys.argv[1])))()
