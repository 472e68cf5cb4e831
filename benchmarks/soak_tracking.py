"""Soak: an MLflow server that goes down, errs and stalls behind a faulty proxy; see ``benchmarks/soak.py``."""

from __future__ import annotations

import contextlib
import http.client
import json
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.soak_books import books
from benchmarks.soak_storm import HERE, NAME, PATIENCE_S, start, wait_for

sys.path.insert(0, str(HERE.parent / "tests" / "support"))
STALL_S = 20.0


class Proxy(ThreadingHTTPServer):
    """Passes requests on to a port, unless ``mode`` is down, error or stall."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        self.behind, self.mode, self.seen = port, "up", 0
        super().__init__(("127.0.0.1", 0), _Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A broken connection is what this is for."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def _pass_on(self) -> None:
        proxy: Any = self.server
        proxy.seen += 1
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if proxy.mode == "down":
            self.connection.close()
            return
        if proxy.mode == "error":
            self.send_error(500)
            return
        if proxy.mode == "stall":
            time.sleep(STALL_S)  # and then it is carried out after all, its answer into the void
        link = http.client.HTTPConnection("127.0.0.1", proxy.behind, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection")}
        link.request(self.command, self.path, body, headers)
        answer = link.getresponse()
        content = answer.read()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "content-length", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _pass_on  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


def outages(folder: Path, down_s: float) -> dict[str, Any]:
    """Three outages, errors and stalls while two sweeps run, one's ledger a file, the other's in PostgreSQL."""
    import postgres
    from server import Server

    plan, up_s, trial_s = ["down", "error", "down", "stall", "down"], 5.0, 4.0
    trials = int(1.1 * len(plan) * (down_s + up_s) / trial_s)  # somewhat longer than all of it
    folder.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        storages: dict[str, str | None] = {"sqlite": None}
        if not postgres.missing():
            storages["postgres"] = postgres.database(stack.enter_context(postgres.server()), "studies")
        server = Server(folder).start().wait()
        stack.callback(server.kill)
        proxy = Proxy(server.port)
        stack.callback(proxy.shutdown)
        words = [f"budget.trials={trials}", "+space.seconds=0.2", "resources.max_concurrent=1", "cluster.num_cpus=1"]
        words += ["tracking=server", f"tracking.uri=http://127.0.0.1:{proxy.server_port}"]
        given = {name: [f"study.storage={storage}"] if storage else [] for name, storage in storages.items()}
        drivers = {
            name: start(folder / name, "soak_sweep.py", "run", f"name={name}", *words, *given[name]) for name in given
        }
        for name, driver in drivers.items():  # a server that is away from the start is refused
            wait_for(driver, folder / name, "training", 0.0, "")
        met = 0
        for mode in plan:
            _wait_up(drivers, up_s)
            proxy.mode = mode
            _wait_up(drivers, down_s)
            proxy.mode = "up"
            met += all(driver.poll() is None for driver in drivers.values())
        found: dict[str, Any] = {"outages": plan, "met_while_training": met, "seconds_each": down_s}
        for name, driver in drivers.items():
            code = driver.wait(PATIENCE_S + trials * 20)
            resumed = start(folder / name, "soak_sweep.py", "resume", name, *given[name]).wait(PATIENCE_S)
            sweep = folder / name / "outputs" / name
            counted = books(sweep, trials, 0.2, storages[name], f"sqlite:///{folder / 'mlflow.db'}")
            found[name] = {"exit": code, "resume_exit": resumed, **counted, **_waited(folder / name)}
    return found


def _wait_up(drivers: Mapping[str, Any], seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and any(driver.poll() is None for driver in drivers.values()):
        time.sleep(0.1)


def _waited(folder: Path) -> dict[str, Any]:
    """How long the driver took for the events that it records."""
    took = [float(line) for line in (folder / "steps.txt").read_text().split()]
    p99_s = statistics.quantiles(took, n=100)[98] if len(took) > 1 else took[0]
    return {"steps": len(took), "step_p99_s": round(p99_s, 4), "step_max_s": round(max(took), 4)}


def together(folder: Path, sweeps: int) -> dict[str, Any]:
    """Sweeps that start at once, their ledgers in one PostgreSQL database, their runs in one server over another."""
    import postgres

    if reason := postgres.missing():
        return {"skipped": reason}
    from server import Server

    found: Counter[str] = Counter()
    with postgres.server() as address:
        folder.mkdir(parents=True)
        server = Server(folder, postgres.database(address, "mlflow")).start()
        storage = postgres.database(address, "studies")
        try:
            server.wait()
            drivers = []
            for number in range(sweeps):
                words = [f"name={NAME}-{number}", "budget.trials=4", f"study.storage={storage}", "tracking=server"]
                words += [f"tracking.uri={server.uri}", "resources.max_concurrent=1", "cluster.num_cpus=1"]
                drivers.append(start(folder / str(number), "soak_sweep.py", "run", *words))
            codes = [driver.wait(PATIENCE_S) for driver in drivers]
            for number in range(sweeps):
                sweep = folder / str(number) / "outputs" / f"{NAME}-{number}"
                found.update(books(sweep, 4, 0.0, storage, server.uri))
        finally:
            server.kill()
    return {"sweeps": sweeps, "exits": codes, "of": sweeps * 80, **found}


if __name__ == "__main__":
    print(json.dumps(outages(Path(sys.argv[1]), float(sys.argv[2])), indent=1))
