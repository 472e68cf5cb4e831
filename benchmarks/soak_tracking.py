"""Soak: an MLflow server that goes down, errs and stalls behind a faulty proxy; see ``benchmarks/soak.py``."""

from __future__ import annotations

import http.client
import json
import sqlite3
import statistics
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

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
    """Three outages, errors and stalls while a sweep runs; what arrived afterwards."""
    from server import Server

    folder.mkdir(parents=True)
    plan, up_s, trial_s = ["down", "error", "down", "stall", "down"], 5.0, 4.0
    trials = int(1.1 * len(plan) * (down_s + up_s) * 2 / trial_s)  # two at a time, somewhat longer than all of it
    server = Server(folder).start().wait()
    proxy = Proxy(server.port)
    words = [f"name={NAME}", f"budget.trials={trials}", "+space.seconds=0.2", "tracking=server"]
    words.append(f"tracking.uri=http://127.0.0.1:{proxy.server_port}")
    try:
        driver = start(folder, "soak_sweep.py", "run", *words)
        wait_for(driver, folder, "training", 0.0, "")  # a server that is away from the start is refused
        met = 0
        for mode in plan:
            _wait_up(driver, up_s)
            proxy.mode = mode
            _wait_up(driver, down_s)
            proxy.mode = "up"
            met += driver.poll() is None
        code = driver.wait(PATIENCE_S + trials * 20)
        resumed = start(folder, "soak_sweep.py", "resume", NAME).wait(PATIENCE_S)
    finally:
        server.kill()
        proxy.shutdown()
    told = {"outages": plan, "met_while_training": met, "seconds_each": down_s}
    return {**told, "exit": code, "resume_exit": resumed, **_arrived(folder, trials)}


def _wait_up(driver: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and driver.poll() is None:
        time.sleep(0.1)


def _arrived(folder: Path, trials: int) -> dict[str, Any]:
    from rltune.study.storage import open_study

    study = open_study(folder / "outputs" / NAME)
    entries = study.trials()
    study.close()
    with sqlite3.connect(folder / "mlflow.db") as store:
        runs = store.execute("select status from runs where lifecycle_stage = 'active'").fetchall()
        points = store.execute(
            "select t.value, m.key, m.step, count(*) from metrics m join tags t on t.run_uuid = m.run_uuid and t.key "
            "= 'rltune.trial' join runs r on r.run_uuid = m.run_uuid and r.lifecycle_stage = 'active' group by 1, 2, 3"
        ).fetchall()
    wanted = {(str(entry.number), step) for entry in entries for step in entry.reports}
    keys = {key for _, key, _, _ in points} - {"best_objective"}
    have = {(number, key, step) for number, key, step, _ in points}
    missing = sum((number, key, step) not in have for number, step in wanted for key in keys)
    took = [float(line) for line in (folder / "steps.txt").read_text().split()]
    return {
        "failed_trials": sum(entry.state == "FAIL" for entry in entries),
        "complete": sum(entry.state == "COMPLETE" for entry in entries),
        "runs": len(runs),
        "running": sum(status == "RUNNING" for (status,) in runs),
        "points_missing": missing,
        "points_doubled": sum(count > 1 for *_, count in points),
        "step_p99_s": round(statistics.quantiles(took, n=100)[98], 4) if len(took) > 1 else None,
        "step_max_s": round(max(took), 4),
        "steps": len(took),
        "metrics": len(keys),
    }


def together(folder: Path, sweeps: int) -> dict[str, Any]:
    """Sweeps that start at once, their studies in one PostgreSQL database, their runs in one server over another."""
    import postgres

    if reason := postgres.missing():
        return {"skipped": reason}
    from server import Server

    from rltune.study.study import Study

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
            reports = 0
            for number in range(sweeps):
                study = Study(storage, f"{NAME}-{number}")
                reports += sum(len(entry.reports) for entry in study.trials())
                study.close()
            points, running = _of_server(server.uri)
        finally:
            server.kill()
    return {
        "sweeps": sweeps,
        "exits": codes,
        "reports": reports,
        "of": sweeps * 80,
        "points": points,
        "running": running,
    }


def _of_server(uri: str) -> tuple[int, int]:
    from mlflow import MlflowClient

    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("cartpole").experiment_id], max_results=1000)
    children = [run for run in runs if "rltune.trial" in run.data.tags]
    points = sum(len(client.get_metric_history(run.info.run_id, "objective")) for run in children)
    return points, sum(run.info.status == "RUNNING" for run in runs)


if __name__ == "__main__":
    print(json.dumps(outages(Path(sys.argv[1]), float(sys.argv[2])), indent=1))
