"""Run a service: its queue, REST and page in one process, each sweep in a process of its own."""

from __future__ import annotations

import contextlib
import shlex
import socket
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

import uvicorn

from rltune.config.uris import redact_address, resolve_uri
from rltune.errors import ConfigError
from rltune.formatting import spell_command
from rltune.service.access import Access
from rltune.service.api import make_app
from rltune.service.desk import Desk
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.page import find_tracking_server, make_router
from rltune.service.processes import SweepProcesses, share_machine
from rltune.service.submissions import RUNNING, Submissions
from rltune.service.views import Views

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True)
class ServiceSettings:
    """What a service is to be.

    Attributes:
        output_dir: The folder of its sweeps.
        host: The address on which it listens.
        port: 0 is any free one.
        width: How many sweeps run at a time.
        storage: Where the queue is kept; None is a file in the folder.
        address: Of a running Ray that all sweeps join; None has each start its own.
        names: By which it may be called besides this machine's own.
        program: How a sweep is typed, without its settings; None is ``python -m rltune run``.
    """

    output_dir: str
    host: str = "127.0.0.1"
    port: int = 8288
    width: int = 1
    storage: str | None = None
    address: str | None = None
    names: tuple[str, ...] = ()
    program: tuple[str, ...] | None = None


def serve(settings: ServiceSettings) -> int:
    """Run a service until it is told to end; its sweeps go on.

    Returns:
        The number of the signal that has told it.

    Raises:
        RltuneError: It cannot run.
    """
    folder = ServiceFolder(settings.output_dir)
    folder.check_free()
    with listen(settings.host, settings.port) as listening, folder.hold(), contextlib.ExitStack() as stack:
        submissions = Submissions(settings.storage or folder.database, str(folder.sweeps))
        stack.callback(submissions.close)
        stack.callback(_say_goodbye, submissions)
        processes = SweepProcesses(folder, share_machine(settings.width, settings.address), settings.program)
        dispatcher = Dispatcher(submissions, processes, settings.width)
        desk = Desk(folder, submissions, dispatcher, Views(folder))
        port = listening.getsockname()[1]
        access = Access(folder.make_token(), port, settings.names)
        address = f"http://{_spell_host(settings.host)}:{port}"
        folder.write_address(address)
        stack.callback(folder.clear_address)
        _say_hello(address, access.token, settings, folder)
        # A list of many sweeps is read once before anybody asks.
        threading.Thread(target=desk.list, name="first-look", daemon=True).start()
        dispatcher.begin()
        stack.callback(dispatcher.end)
        app = make_app(desk, access)
        app.include_router(make_router(desk, access))
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=3)
        server = _Server(config, dispatcher, folder)
        server.run(sockets=[listening])
    return server.signal


class _Server(uvicorn.Server):
    """Stops the queue as soon as a signal arrives, because sweeps that end later end with the machine."""

    def __init__(self, config: uvicorn.Config, dispatcher: Dispatcher, folder: ServiceFolder) -> None:
        super().__init__(config)
        self._dispatcher, self._folder, self.signal = dispatcher, folder, 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal. The address goes first: the port is somebody else's from the moment when it is closed."""
        self.signal = sig
        self._folder.clear_address()
        self._dispatcher.end()
        super().handle_exit(sig, frame)


@contextlib.contextmanager
def listen(host: str, port: int) -> Iterator[socket.socket]:
    """Listen before anything else is begun.

    Raises:
        ConfigError: Somebody else does already, or the host is none of this machine's.
    """
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(where)
        listening.listen()  # who opens the printed link at once, waits
    except OSError as error:
        raise ConfigError(
            f"host={host} port={port}: {error.strerror or error}", "an address of this machine, a free port", "port=0"
        ) from None
    with listening:
        yield listening


def _say_hello(address: str, token: str, settings: ServiceSettings, folder: ServiceFolder) -> None:
    print(f"page    {address}/login#{token}")
    print(f"REST    {address}/api/sweeps, with the header 'Authorization: Bearer {token}'")
    store = shlex.quote(redact_address(resolve_uri(None)))
    print(f"MLflow  {find_tracking_server() or f'mlflow ui --backend-store-uri {store}'}")
    how = spell_command("submit algo=ppo env=cartpole")
    print(f"sweeps  {folder.sweeps}, {settings.width} at a time; submit one: {how}")
    if settings.host not in LOOPBACK:
        print(f"host={settings.host}: others reach it too, and nothing is encrypted; put a proxy with TLS before it")
    print("Ctrl-C ends the service; sweeps that run go on, and the next service finds them", flush=True)


def _say_goodbye(submissions: Submissions) -> None:
    running = [one.name for one in submissions.list() if one.state == RUNNING]
    print(f"the service has ended; still running: {', '.join(running) or 'none'}", flush=True)


def _spell_host(host: str) -> str:
    """Spell where a service is called from its own machine, as a URL does."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104, every address of the machine
    return f"[{host}]" if ":" in host else host
