"""Fork Ray's workers from one process that has done the imports.

RLlib and torch take a process 5 s of CPU and 250 MB before its first step. Ray starts a process for each slot, and one
more for each that died; every one would pay that. Here Ray starts `worker_entry` instead, which has the fork server
fork a worker: it is up in 0.1 s, and most of its memory is shared. The fork server also runs what needs RLlib before
there is a worker (`ForkServer.call`), so that the driver need not import RLlib.

`ForkServer` runs in the driver, `fork_server_main` in a process of its own.
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
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rltune.cluster.fork_server_main import CALL, MORE, NO_JOB, PROGRESS
from rltune.cluster.worker_entry import FORKED, MODULES_VARIABLE, SOCKET_VARIABLE, WORKER_VARIABLE, send_request
from rltune.compat.patching import are_replacements_on
from rltune.compat.ray_start import find_worker_script
from rltune.errors import RltuneError

MAX_ADDRESS = 100  # letters of a Unix socket's address: Linux takes 107
PATIENCE_S = 120.0  # for a process that takes a call, which waits until a Ray that starts requests its first worker
Answer = TypeVar("Answer")


class ForkServer:
    """The process that workers are forked from, as the driver sees it; it ends with the driver.

    Args:
        folder: A private folder for the socket; removed at the end.
    """

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "socket")
        self._folder, self._closed = folder, False
        self._has_ray_started = threading.Event()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.address)
        listening.listen(1024)
        with listening:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "rltune.cluster.fork_server_main", str(listening.fileno())],
                stdin=subprocess.PIPE,  # closes when the driver is gone, which the fork server takes as its end
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # a Ctrl-C must reach the driver alone
            )

    @property
    def pid(self) -> int:
        """Return the process's number."""
        return self._process.pid

    @contextlib.contextmanager
    def publish_address(self, modules: Sequence[str]) -> Iterator[str]:
        """Let what Ray starts meanwhile find the fork server, by environment variables.

        Args:
            modules: What the workers will need. A module that cannot be imported is left to the worker, which will say
                why.

        Yields:
            The script that Ray is to start workers by.
        """
        worker = str(find_worker_script())
        variables = {SOCKET_VARIABLE: self.address, WORKER_VARIABLE: worker, MODULES_VARIABLE: " ".join(modules)}
        os.environ.update(variables)
        try:
            yield str(Path(__file__).with_name("worker_entry.py"))
        finally:
            for name in variables:
                del os.environ[name]

    def prepare(self, raylet: int) -> None:
        """Have the rest imported: everything that the first worker's request would bring along is known by now.

        Args:
            raylet: The number of the raylet's process, which requests workers a second or two after it has begun.
        """
        environment = {**os.environ, "RAY_RAYLET_PID": str(raylet), "RAY_JOB_ID": NO_JOB}
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.address)
            send_request(connection, {"environment": environment}, [])

    def report_started_ray(self) -> None:
        """Take note that Ray is up: from now on the driver may call a function itself."""
        self._has_ray_started.set()

    def call(
        self,
        function: Callable[..., Answer],
        *arguments: Any,
        patience_s: float = PATIENCE_S,
        progress: Callable[[int, int], None] | None = None,
    ) -> Answer:
        """Call a function where the imports are done, in a process of its own; Ray must be starting, or up.

        Where no process takes the request, the function is called here, as soon as Ray is up. It is never called a
        second time because its process has died or hangs: what became of that process could become of the driver, too.

        Args:
            function: A function of a module, by whose name it is found there.
            arguments: Its arguments, which can be pickled; so can its answer.
            patience_s: The longest wait for the answer, or between two signs of progress.
            progress: The function's own argument of this name, which it calls whenever it has come further, with how
                much is done and of how much; None where it takes none.

        Raises:
            Exception: What the function raises; a RuntimeError with its words if it cannot be pickled.
            RltuneError: Its process ended without an answer, or came no further.
            OSError: The fork server was closed meanwhile.
        """
        taken, content = False, b""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(PATIENCE_S)  # the fork server may still wait for Ray
                connection.connect(self.address)
                connection.sendall(CALL + pickle.dumps((function, arguments, progress is not None)))
                connection.shutdown(socket.SHUT_WR)
                taken = connection.recv(1) == FORKED
                connection.settimeout(patience_s)
                with connection.makefile("rb") as stream:
                    while (first := stream.read(1)) == MORE:
                        made = PROGRESS.unpack(stream.read(PROGRESS.size))
                        if progress:
                            progress(*made)
                    content = first + stream.read()
        except TimeoutError:
            if taken:
                raise RltuneError(
                    f"the process that runs {_name(function)} has come no further for {patience_s:g} s",
                    "an environment that is made, reset and stepped within failures.stall_s",
                    "failures.stall_s=3600 if it needs so long; else find out where it hangs",
                ) from None
        except (OSError, pickle.PickleError):
            if self._closed:  # the sweep ends: nobody waits for the answer any more
                raise
        if self._closed and not content:
            raise ConnectionAbortedError("the fork server was closed")
        if not taken:
            self._has_ray_started.wait()  # What registers with a Ray that is starting may start a second one (2.60).
            if self._closed:
                raise ConnectionAbortedError("the fork server was closed")
            return function(*arguments, **({"progress": progress} if progress else {}))
        try:
            failed, answer = pickle.loads(content)  # noqa: S301 - our own process's, by a private socket
        except (EOFError, pickle.UnpicklingError):
            raise RltuneError(
                f"the process that ran {_name(function)} ended without an answer",
                "a process that is neither ended for want of memory nor crashes in a library",
                "RLTUNE_COMPAT=off, then the same command: it runs in the driver, and says why it crashes",
            ) from None
        if failed:
            raise answer
        return answer  # type: ignore[no-any-return]

    def close(self) -> None:
        """End it; the workers that it forked live on until their Ray ends them."""
        self._closed = True
        self._has_ray_started.set()  # nobody waits for it any more
        self._process.terminate()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


_early: list[ForkServer] = []  # At most one, which was started before the command's settings are composed.


def begin_fork_server() -> None:
    """Start one for the sweep to come, which `acquire_fork_server` will take: a sweep's start waits for its imports.

    Without a sweep it ends with this process. There is none outside Linux, with replacements switched off, or under a
    temporary folder whose path is too long for a Unix socket.
    """
    if _early or not are_replacements_on():
        return
    folder = Path(tempfile.mkdtemp(prefix="rltune-"))  # mode 0700
    if sys.platform != "linux" or len(str(folder / "socket")) > MAX_ADDRESS:
        folder.rmdir()
        return
    _early.append(ForkServer(folder))


@atexit.register
def _close_early() -> None:
    while _early:
        _early.pop().close()


@contextlib.contextmanager
def acquire_fork_server(wanted: bool = True) -> Iterator[ForkServer | None]:
    """Yield a fork server for a Ray of our own, the early one if there is one, and close it afterwards.

    Args:
        wanted: Whether workers will be forked; if not, the early one is closed.

    Yields:
        None where there is no forking.
    """
    if not wanted:
        _close_early()
    elif not _early:
        begin_fork_server()
    server = _early.pop() if _early else None
    try:
        yield server
    finally:
        if server:
            server.close()
