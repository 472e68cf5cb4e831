"""Run a service: queue, REST API and page in one process, and each sweep in a process of its own."""

from __future__ import annotations

import contextlib
import gc
import logging
import shlex
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from types import FrameType

import uvicorn

from rltune.config.uris import resolve_uri
from rltune.errors import ConfigError
from rltune.formatting import spell_command, use_start
from rltune.service.access import Access
from rltune.service.admission import Admission
from rltune.service.api import make_app
from rltune.service.connections import configure_server
from rltune.service.descriptions import SweepDescriptions
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.page import Page, find_tracking_server
from rltune.service.processes import SweepProcesses, share_machine
from rltune.service.submissions import RUNNING, Submissions
from rltune.service.sweep_service import SweepService

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    output_dir: str,
    *,
    host: str = "127.0.0.1",
    port: int = 8288,
    width: int = 1,
    storage: str | None = None,
    address: str | None = None,
    names: Sequence[str] = (),
    program: Sequence[str] | None = None,
) -> int:
    """Run a service until a signal ends it; running sweeps continue.

    Args:
        output_dir: The folder of its sweeps.
        host: The address on which it listens.
        port: The port on which it listens; 0 means any free one.
        width: How many sweeps run at a time.
        storage: The address of the database that holds the queue; None is a file in the folder.
        address: The address of a running Ray that all sweeps join; None has each sweep start its own.
        names: Host names by which it may be called, besides this machine's own.
        program: The command that starts a sweep, without its settings; None is ``python -m rltune run``.

    Returns:
        The number of the signal.

    Raises:
        RltuneError: It cannot run.
    """
    folder = ServiceFolder(output_dir)
    folder.check_free()
    write_log()
    with listen(host, port) as listening, folder.hold(), contextlib.ExitStack() as stack:
        submissions = Submissions(storage or folder.database, folder.make_id())
        stack.callback(submissions.close)
        stack.callback(_print_running_sweeps, submissions)
        processes = SweepProcesses(folder, share_machine(width, address), program)
        dispatcher = Dispatcher(submissions, processes, width)
        service = SweepService(folder, submissions, dispatcher, SweepDescriptions(folder))
        port = listening.getsockname()[1]
        access = Access(folder.make_token(), port, tuple(names))
        url = f"http://{_format_host(host)}:{port}"
        folder.write_address(url)
        stack.callback(folder.clear_address)
        _print_addresses(url, access.token, host, width, folder)
        use_start("rltune ")  # Who reads an answer may be on another machine, without this one's paths.
        # The first read of many ledgers takes seconds, so it is done before the first request comes.
        threading.Thread(target=service.list, name="first-list", daemon=True).start()
        dispatcher.start()
        stack.callback(dispatcher.close)
        admission = Admission()
        app = make_app(service, access, admission)
        Page(service, access, admission).add_to(app)
        # A collection of all objects stops every thread, so it leaves out the many that the imports have made.
        gc.collect()
        gc.freeze()
        server = _Server(configure_server(app, timeout_graceful_shutdown=3), dispatcher, folder)
        server.run(sockets=[listening])
    return server.signal


class _Server(uvicorn.Server):
    """A server that stops the queue on a signal, so that sweeps which the machine's shutdown ends run again later."""

    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher, folder: ServiceFolder) -> None:
        super().__init__(config)
        self._dispatcher, self._folder, self.signal = dispatcher, folder, 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Delete the service's address on a signal, before another process can take the port, and shut down."""
        self.signal = sig
        self._folder.clear_address()
        self._dispatcher.close()
        super().handle_exit(sig, frame)


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Bind and listen on a port before anything else, so that a port in use is reported first.

    Raises:
        ConfigError: The port is taken, or the host is no address of this machine.
    """
    try:
        family, kind, _, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(socket_address)
        # From here on, a browser that opens the printed link waits until the service is ready, and is not refused.
        listening.listen()
    except OSError as error:
        raise ConfigError(
            "host", host, f"port={port}: {error.strerror or error}", "an address of this machine, a free port", "port=0"
        ) from None
    with listening:
        yield listening


def write_log() -> None:
    """Write what happens to sweeps and which requests are refused to standard error, each line with its time."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    logger = logging.getLogger("rltune.service")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)


def _print_addresses(url: str, token: str, host: str, width: int, folder: ServiceFolder) -> None:
    if sys.stdout.isatty():
        print(f"page    {url}/login#{token}")
        print(f"REST    {url}/api/sweeps, with the header 'Authorization: Bearer {token}'")
    else:  # Others read logs, too, so that a log must not have the token.
        print(f"page    {url}/login, with the token that {folder.token_file} has")
        print(f"REST    {url}/api/sweeps, with the header 'Authorization: Bearer <token>'")
    store = shlex.quote(resolve_uri(None))
    print(f"MLflow  {find_tracking_server() or f'mlflow ui --backend-store-uri {store}'}")
    submit = spell_command("submit algo=ppo env=cartpole")
    print(f"sweeps  {folder.sweeps}, {width} at a time; submit one: {submit}")
    if host not in LOOPBACK:
        print(f"host={host}: others reach it too, and nothing is encrypted; put a proxy with TLS before it")
    print("Ctrl-C ends the service; sweeps that run go on, and the next service finds them", flush=True)


def _print_running_sweeps(submissions: Submissions) -> None:
    running = [submission.name for submission in submissions.list(RUNNING)]
    print(f"the service has ended; still running: {', '.join(running) or 'none'}", flush=True)


def _format_host(host: str) -> str:
    """Format the host in the service's URL, as seen from its own machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - this stands for all addresses
    return f"[{host}]" if ":" in host else host
