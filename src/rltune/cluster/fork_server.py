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
import os
import pickle
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rltune.cluster.fork_server_main import CALL, NO_JOB
from rltune.cluster.worker_entry import MODULES_VARIABLE, SOCKET_VARIABLE, WORKER_VARIABLE, send_request
from rltune.compat.patching import is_supported
from rltune.compat.ray_start import find_worker_script

LONGEST_ADDRESS = 100  # of a Unix socket: 108 with its end
PATIENCE_S = 120.0  # for an answer, which waits for Ray to ask for its first worker; it does when it starts
Answer = TypeVar("Answer")


class ForkServer:
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
                [sys.executable, "-m", "rltune.cluster.fork_server_main", str(listening.fileno())],
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
        worker = str(find_worker_script())
        found = {SOCKET_VARIABLE: self.address, WORKER_VARIABLE: worker, MODULES_VARIABLE: " ".join(modules)}
        os.environ.update(found)
        try:
            yield str(Path(__file__).with_name("worker_entry.py"))
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
            send_request(asked, {"environment": environment}, [])

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


_begun: list[ForkServer] = []  # one at most, on its way while there are no settings yet


def begin_fork_server() -> None:
    """Start one for the sweep to come, which `opened` will take: its imports are what a sweep's start waits for.

    Without a sweep it ends with this process. There is none outside Linux, with a Ray that was not tested, or under a
    very long temporary folder.
    """
    if not is_supported("ray"):
        return
    folder = Path(tempfile.mkdtemp(prefix="rltune-"))  # mode 0700
    if sys.platform != "linux" or len(str(folder / "socket")) > LONGEST_ADDRESS:
        folder.rmdir()
        return
    _begun.append(ForkServer(folder))


@atexit.register
def _end_begun() -> None:
    while _begun:
        _begun.pop().close()


@contextlib.contextmanager
def acquire_fork_server(wanted: bool = True) -> Iterator[ForkServer | None]:
    """A nursery for a Ray of our own, the one on its way if there is one.

    Args:
        wanted: Whether workers will be forked; if not, the one on its way is ended.

    Yields:
        None where there is no forking.
    """
    if not wanted:
        _end_begun()
    elif not _begun:
        begin_fork_server()
    nursery = _begun.pop() if _begun else None
    try:
        yield nursery
    finally:
        if nursery:
            nursery.close()
