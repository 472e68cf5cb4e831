"""Fork Ray's worker processes from one process that has already imported RLlib and torch.

To import RLlib and torch takes a process 5 s of CPU and 250 MB. Ray starts a process for each slot, and another one for
each that died, and every one would import them. Therefore Ray starts the small script `worker_entry` instead, which
asks the fork server for a worker. A forked worker is ready after 0.1 s and shares most of its memory. The fork server
also calls functions that need RLlib before there is a worker (`ForkServer.call`), so that the driver does
not import it, and forks the processes in which policies are evaluated (`ForkServer.fork_child`).

`ForkServer` runs in the driver, `fork_server_main` in a process of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from rltune.cluster.fork_server_main import CALL, CHILD, ENDED, NO_JOB, PID_BYTES, RAISED
from rltune.cluster.worker_entry import FORKED, MODULES_VARIABLE, SOCKET_VARIABLE, WORKER_VARIABLE, send_request
from rltune.compat.patching import are_replacements_on
from rltune.compat.ray_start import find_worker_script
from rltune.envs.child import describe_exit
from rltune.errors import RltuneError
from rltune.search_path import spell_python

MAX_PATH_LENGTH = 100  # The longest socket path that is used; Linux allows 107 characters.
CALL_TIMEOUT_S = 120.0  # How long a call waits, as it is queued until Ray requests its first worker.
Answer = TypeVar("Answer")


class ForkServer:
    """Starts the process that Ray's workers are forked from, and sends it requests. It ends with the driver.

    Args:
        folder: A private folder for the socket. It is removed at the end.

    Attributes:
        calls: Functions, as ``module:function``, that the fork server calls once, after its imports.
    """

    calls: Sequence[str] = ()

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "socket")
        self._folder, self._closed = folder, False
        self._has_ray_started = threading.Event()
        listening = socket.socket(socket.AF_UNIX)
        listening.bind(self.address)
        listening.listen(1024)
        with listening:
            self._process = subprocess.Popen(
                spell_python("rltune.cluster.fork_server_main", str(listening.fileno())),
                # The fork server ends when this pipe closes, which happens however the driver ends.
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[listening.fileno()],
                start_new_session=True,  # A terminal's Ctrl-C must reach only the driver.
                # A fork ends OpenBLAS's threads. A forked process would start one for each core again, which spin, and
                # keep one of them only. `set_num_threads` can still raise the number.
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
            )

    @property
    def pid(self) -> int:
        """Return the process id of the fork server."""
        return self._process.pid

    @contextlib.contextmanager
    def publish_address(self, modules: Sequence[str]) -> Iterator[str]:
        """Set the environment variables through which `worker_entry` finds the fork server, while the context is open.

        Args:
            modules: The modules that the workers need. If one cannot be imported, then the worker reports why.

        Yields:
            The script that Ray has to start instead of its own worker.
        """
        worker = str(find_worker_script())
        variables = {
            SOCKET_VARIABLE: self.address,
            WORKER_VARIABLE: worker,
            MODULES_VARIABLE: " ".join((*modules, *self.calls)),
        }
        os.environ.update(variables)
        try:
            yield str(Path(__file__).with_name("worker_entry.py"))
        finally:
            for name in variables:
                del os.environ[name]

    def prepare(self, raylet: int) -> None:
        """Start the fork server's second half of imports, which need Ray's settings, before Ray requests a worker.

        Args:
            raylet: The id of the raylet's process. Ray's library reads it from the environment when it is imported.
        """
        environment = {**os.environ, "RAY_RAYLET_PID": str(raylet), "RAY_JOB_ID": NO_JOB}
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.connect(self.address)
            send_request(connection, {"environment": environment}, [])

    def report_started_ray(self) -> None:
        """Record that Ray has started, so that `call` may run a function in the driver if no process takes it."""
        self._has_ray_started.set()

    def call(
        self,
        function: Callable[..., Answer],
        *arguments: Any,
        patience_s: float = CALL_TIMEOUT_S,
    ) -> Answer:
        """Call a function in a forked process that has RLlib imported, once Ray is starting or has started.

        If no process takes the request, then the driver itself calls the function, as soon as Ray has started. If a
        process has taken the request and dies or hangs, then the function is not called again, because the driver
        could die or hang in the same way.

        Args:
            function: A function at the top level of a module.
            arguments: Its arguments. They and the result must be picklable.
            patience_s: The longest wait for the result.

        Raises:
            Exception: The function's exception; a RuntimeError with its text if it cannot be pickled.
            RltuneError: The process ended without a result, or has none in time.
            OSError: The fork server was closed meanwhile.
        """
        taken, content = False, b""
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                # A call waits until the fork server knows Ray's settings.
                connection.settimeout(CALL_TIMEOUT_S)
                connection.connect(self.address)
                connection.sendall(CALL + pickle.dumps((function, arguments)))
                connection.shutdown(socket.SHUT_WR)
                taken = connection.recv(1) == FORKED
                connection.settimeout(patience_s)
                with connection.makefile("rb") as stream:
                    content = stream.read()
        except TimeoutError:
            if taken:
                raise RltuneError(
                    f"the process that runs {_name(function)} has not ended after {patience_s:g} s",
                    "an environment that is made, reset and stepped within failures.stall_s",
                    "failures.stall_s=3600 if the environment needs that long; otherwise find out where it hangs",
                ) from None
        except (OSError, pickle.PickleError):
            if self._closed:  # An ending sweep needs no result.
                raise
        if self._closed and not content:
            raise ConnectionAbortedError("the fork server was closed")
        if not taken:
            # Before Ray has started, calling the function here could register classes and thereby start a second Ray
            # (2.60).
            self._has_ray_started.wait()
            if self._closed:
                raise ConnectionAbortedError("the fork server was closed")
            return function(*arguments)
        try:
            outcome, answer = pickle.loads(content)  # noqa: S301 - from our own process, through a private socket
        except (EOFError, pickle.UnpicklingError):  # The fork server was killed, and the call with it.
            outcome, answer = ENDED, -signal.SIGKILL
        if outcome == ENDED:
            raise RltuneError(
                f"the process that ran {_name(function)} {describe_exit(answer)}, without an answer",
                "a process that has enough memory and does not crash in a library",
                "RLTUNE_COMPAT=off, then the same command: the check then runs in the driver and shows why it crashes",
            )
        if outcome == RAISED:
            raise answer
        return answer  # type: ignore[no-any-return]

    def fork_child(self, streams: Sequence[int]) -> int | None:
        """Fork a process that has RLlib imported, as `rltune.envs.child.Fork` describes it."""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(CALL_TIMEOUT_S)
            connection.connect(self.address)
            socket.send_fds(connection, [CHILD], streams)
            return int.from_bytes(connection.recv(PID_BYTES)) or None
        return None

    def close(self) -> None:
        """End the fork server. The workers that it has forked live on until Ray ends them."""
        self._closed = True
        self._has_ray_started.set()  # Wakes up a `call` that waits for Ray, to see that the server is closed.
        self._process.terminate()
        self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
        shutil.rmtree(self._folder, ignore_errors=True)


def _name(function: Callable[..., Any]) -> str:
    return f"{function.__module__}.{function.__qualname__}"


_early: list[ForkServer] = []  # At most one fork server, started before the command's settings are composed.


def begin_fork_server() -> None:
    """Start a fork server early, so that its imports are done when `acquire_fork_server` needs it.

    If no sweep follows, then it ends with this process. None is started outside Linux or if replacements are switched
    off.
    """
    if _early or sys.platform != "linux" or not are_replacements_on():
        return
    # mkdtemp makes the folder with mode 0700, so that only this user can connect to the socket in it.
    _early.append(ForkServer(Path(tempfile.mkdtemp(prefix="rltune-", dir=_find_short_folder()))))


def _find_short_folder() -> str:
    """Return the folder for temporary files, or ``/tmp`` if its path is too long for a socket in it."""
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(f"{folder}/rltune-12345678/socket")) <= MAX_PATH_LENGTH else "/tmp"  # noqa: S108


@atexit.register
def _close_early() -> None:
    while _early:
        _early.pop().close()


@contextlib.contextmanager
def acquire_fork_server(wanted: bool = True, calls: Sequence[str] = ()) -> Iterator[ForkServer | None]:
    """Yield a fork server for the Ray that rltune starts, if possible the one that was started early, then close it.

    Args:
        wanted: Whether workers will be forked. If not, then a fork server that was started early is closed.
        calls: Functions, as ``module:function``, that the fork server calls before it forks the first worker.

    Yields:
        The fork server; None if workers are not forked.
    """
    if not wanted:
        _close_early()
    elif not _early:
        begin_fork_server()
    server = _early.pop() if _early else None
    if server:
        server.calls = calls
    try:
        yield server
    finally:
        if server:
            server.close()
