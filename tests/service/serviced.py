"""A service that answers on a port of its own, whose sweeps are run by nobody."""

from __future__ import annotations

import contextlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import requests
import uvicorn
from ended import make_certification, write_sweep
from sqlalchemy import insert

from rltune.ledger.database import connect_ledger
from rltune.service.access import Access
from rltune.service.admission import Admission
from rltune.service.api import make_app
from rltune.service.checking import CheckedSweep
from rltune.service.client import Client
from rltune.service.connections import configure_server
from rltune.service.descriptions import SweepDescriptions
from rltune.service.dispatcher import Dispatcher
from rltune.service.folder import ServiceFolder
from rltune.service.page import Page
from rltune.service.serving import listen
from rltune.service.submissions import ENDED, EVENTS, QUEUED, RUNNING, TABLE, Submissions
from rltune.service.sweep_service import SweepService
from tests.service.queueing import FakeProcesses, check_at_once

TOKEN = "a-token"


def write_many(folder: ServiceFolder, num_ended: int, num_waiting: int) -> None:
    """Make up submissions and the sweeps of those that have ended, in seconds, in a service's folder.

    Args:
        folder: The folder, which a service may use already.
        num_ended: The submissions ``ended-0``, ``ended-1``, ..., the first of which is complete, the second failed, ...
        num_waiting: The submissions ``waiting-0``, ...
    """
    queue = Submissions(folder.database, folder.make_id())
    queue.close()
    first = write_sweep(folder.sweeps / "ended-0", 12, make_certification())
    rows, events = [], []
    for number in range(num_ended + num_waiting):
        has_ended = number < num_ended
        name = f"ended-{number}" if has_ended else f"waiting-{number - num_ended}"
        if has_ended and number:
            shutil.copytree(first, folder.sweeps / name)
            os.utime(folder.sweeps / name / "config.yaml", (1e9 + number, 1e9 + number))
        state = ENDED[number % len(ENDED)] if has_ended else QUEUED
        row = {"id": number + 1, "service": folder.make_id(), "name": name, "state": state, "position": number}
        row |= {"overrides": ["algo=ppo", "env=cartpole", f"seed={number}"], "settings": "", "group": f"g{number % 20}"}
        rows.append(row | {"submitted_s": 1e9 + number, "ended_s": 2e9 + number if has_ended else None})
        events += [{"submission": number + 1, "at_s": 1e9, "state": each} for each in (QUEUED, RUNNING, state)]
    engine = connect_ledger(folder.database)
    with engine.begin() as connection:
        connection.execute(insert(TABLE), rows)
        connection.execute(insert(EVENTS), events)
    engine.dispose()


@dataclass
class Serviced:
    """What a test needs of it."""

    address: str
    sweeps: SweepService
    processes: FakeProcesses

    def log_in(self) -> dict[str, str]:
        """Log in as a browser does; the headers that it sends from then on."""
        answer = self.ask("POST", "/login", data={"token": TOKEN}, headers={"Origin": self.address})
        return {"Cookie": answer.headers["Set-Cookie"].partition(";")[0]}

    @property
    def client(self) -> Client:
        """Who has the token."""
        return Client(self.address, TOKEN)

    @property
    def queue(self) -> Submissions:
        """Its submissions."""
        return self.sweeps.submissions

    def ask(self, method: str, path: str, **facts: Any) -> requests.Response:
        """Ask as anybody may, without a token."""
        return requests.request(method, f"{self.address}{path}", timeout=30, allow_redirects=False, **facts)


@contextlib.contextmanager
def run_service(
    outputs: Path, width: int = 1, run_check: Callable[..., CheckedSweep] = check_at_once, port: int = 0
) -> Iterator[Serviced]:
    """Run one in a thread; its queue moves only when a test lets it."""
    folder = ServiceFolder(outputs)
    with folder.hold(), listen("127.0.0.1", port) as listening:
        processes = FakeProcesses()
        queue = Submissions(folder.database, folder.make_id())
        sweeps = SweepService(folder, queue, Dispatcher(queue, processes, width), SweepDescriptions(folder), run_check)
        port = listening.getsockname()[1]
        access = Access(TOKEN, port)
        admission = Admission(2)
        app = make_app(sweeps, access, admission)
        Page(sweeps, access, admission).add_to(app)
        server = uvicorn.Server(configure_server(app))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Serviced(f"http://127.0.0.1:{port}", sweeps, processes)
        finally:
            server.should_exit = True
            thread.join(10)
            queue.close()
