"""Storms over a cluster of machines that share no disk: they lose power, join, and are cut off; see ``soak.py``."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

NAME, USER = "storm", "sweeper"
SETTINGS = (
    "algo=ppo", "env=cartpole", f"name={NAME}", "resume=auto", "cluster=address", "report=false",
    "checkpoint.every_s=2", "budget.env_steps=6000", "certify=on", "certify.top=1", "certify.seeds=2",
    "certify.episodes=10",
)  # fmt: skip
PATIENCE_S = 600.0
HEAD_GONE = 75  # a driver's exit code where the cluster's head is gone
LEAVE_S = 60.0  # for that, on a machine with other work: 30 s are promised
CUT_S = 60.0
# Typed on the driver's machine, which alone has the folder: the buckets and the ledger are on another one.
CHECK = f"""
import json, sys
from pathlib import Path
from whole_sweep import list_missing
print(json.dumps(list_missing(Path("outputs/{NAME}").absolute(), sys.argv[1], int(sys.argv[2]), sys.argv[3])))
"""


def storms(folder: Path, count: int, trials: int) -> dict[str, Any]:
    """Let several storms pass, each over a sweep of its own.

    Returns:
        How many sweeps came through whole, what others lack, and the seconds that drivers took to leave a lost head.
    """
    from machines import can_isolate

    if not can_isolate():
        return {"skipped": "machines need root (unshare, nsenter, ip)"}
    found = [storm(folder / str(number), trials) for number in range(count)]
    return {
        "storms": count,
        "trials": trials * count,
        "whole": sum(not one["missing"] for one in found),
        "missing": [one["missing"] for one in found if one["missing"]],
        "left_head_s": [one["left_head_s"] for one in found],
        "took_s": [one["took_s"] for one in found],
    }


def storm(folder: Path, trials: int) -> dict[str, Any]:
    """Run a sweep on three machines through one storm: power lost, a node more, a cable pulled, the head lost."""
    from nodes import cluster
    from s3 import BUCKET, CREDENTIALS

    from rltune.ledger.ledger import Ledger

    folder.mkdir(parents=True)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        made = stack.enter_context(cluster(folder, isolated=True, **CREDENTIALS))
        services = made.machine("services")
        socket = stack.enter_context(postgres_on(services))
        endpoint = stack.enter_context(bucket_on(made, services, BUCKET))
        ledger_url = f"postgresql+psycopg://{USER}@{services.address}/rl"

        def add(name: str, num_cpus: int) -> None:
            if num_cpus:  # a disk of its own where the driver has the sweep
                private = f"mkdir -p {folder}/outputs && mount -t tmpfs tmpfs {folder}/outputs"
                made.machine(name).start(["sh", "-c", private], dict(os.environ)).wait()
            made.add(name, num_cpus)

        def add_head() -> None:
            made.address = ""
            made.add("head", 0)
            made.add("drv", 0)

        add_head()
        workers = ["w1", "w2", "w3"]
        for name in workers:
            add(name, 1)
        words = [*SETTINGS, f"budget.trials={trials}", f"cluster.address={made.address}"]
        words += [f"storage='s3://{BUCKET}/sweeps?endpoint_override={endpoint}'", "study.storage=${oc.env:LEDGER}"]

        def type_it() -> subprocess.Popen[str]:
            log = folder / f"driver-{time.monotonic_ns()}.log"
            return made.type("drv", "-m", "rltune", "run", *words, log=log, LEDGER=ledger_url)

        def wait_for(share: float) -> None:
            def is_reached() -> bool:
                assert driver.poll() is None, read_logs(folder)
                return count_ended(Ledger, f"postgresql+psycopg://{USER}@/rl?host={socket}") >= share * trials

            wait_until(is_reached, folder)

        driver = type_it()
        wait_for(0.15)
        made.kill("w1")
        add("w4", 1)
        wait_for(0.35)
        made.cut("w2")
        time.sleep(CUT_S)
        made.join("w2")
        made.kill("w2")  # its Ray has been given up by the others, and is started again
        add("w2", 1)
        wait_for(0.6)
        made.kill("head")
        lost = time.monotonic()
        code = driver.wait(LEAVE_S)
        left_s = time.monotonic() - lost
        assert code == HEAD_GONE, read_logs(folder)
        for name in ("drv", "w2", "w3", "w4"):
            made.kill(name)
        add_head()
        for name in ("w2", "w3", "w4"):
            add(name, 1)
        driver = type_it()
        code = driver.wait(PATIENCE_S)
        assert code == 0, read_logs(folder)
        check = made.type("drv", "-c", CHECK, made.store, str(trials), ledger_url, PYTHONPATH=pythonpath())
        said, _ = check.communicate(timeout=PATIENCE_S)
        assert check.returncode == 0, said
        missing = json.loads(said.splitlines()[-1])
    return {"missing": missing, "left_head_s": round(left_s, 1), "took_s": round(time.monotonic() - began)}


@contextlib.contextmanager
def postgres_on(machine: Any) -> Iterator[Path]:
    """Run PostgreSQL on a machine for whoever is on its network; yield the folder of its socket for this one."""
    import postgres
    import psycopg

    home = postgres.binaries()
    assert home is not None, postgres.missing()
    nobody = pwd.getpwnam("nobody")
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    as_nobody: dict[str, Any] = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": [], "cwd": folder}
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.STDOUT}
    made = [home / "initdb", "-D", folder / "data", "-U", USER, "-A", "trust", "--no-sync"]
    subprocess.run(made, check=True, **as_nobody, **quiet)
    with (folder / "data" / "pg_hba.conf").open("a") as rules:
        rules.write("host all all samenet trust\n")
    drop = ["setpriv", f"--reuid={nobody.pw_uid}", f"--regid={nobody.pw_gid}", "--clear-groups"]
    served = [home / "postgres", "-D", folder / "data", "-h", "*", "-k", folder, "-c", "fsync=off"]
    server = machine.start([str(word) for word in (*drop, *served)], dict(os.environ), cwd=str(folder), **quiet)
    try:

        def make_database() -> bool:
            with contextlib.suppress(psycopg.OperationalError):
                with psycopg.connect(f"host={folder} user={USER} dbname=postgres", autocommit=True) as connection:
                    connection.execute("CREATE DATABASE rl")
                return True
            return False

        wait_until(make_database, folder)
        yield folder
    finally:
        server.kill()
        server.wait()
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def bucket_on(made: Any, machine: Any, bucket: str) -> Iterator[str]:
    """Run an S3 server on a machine; yield its address."""
    endpoint = f"http://{machine.address}:5000"
    log = made.folder / "moto.log"
    server = made.type(machine.name, "-m", "moto.server", "-H", "0.0.0.0", "-p", "5000", log=log)
    ask = f"import urllib.request as r; r.urlopen(r.Request('{endpoint}/{bucket}', method='PUT'), timeout=5)"
    try:
        wait_until(lambda: made.type(machine.name, "-c", ask, log=made.folder / "ask.log").wait() == 0, made.folder)
        yield endpoint
    finally:
        server.kill()
        server.wait()


def count_ended(ledger: Any, url: str) -> int:
    """Count the trials that have ended; none before there is a ledger."""
    try:
        opened = ledger(url, NAME)
    except Exception:  # not there yet
        return 0
    with contextlib.closing(opened):
        return sum(record.state != "RUNNING" for record in opened.trials.records())


def pythonpath() -> str:
    """Where the tests' support and the benchmarks are."""
    root = Path(__file__).resolve().parents[1]
    return os.pathsep.join(map(str, (root, root / "src", root / "tests" / "support", *sys.path[1:])))


def read_logs(folder: Path) -> str:
    """Return the end of what the drivers said."""
    return "\n".join(path.read_text()[-3000:] for path in sorted(folder.glob("driver-*.log")))


def wait_until(is_so: Callable[[], bool], folder: Path) -> None:
    """Ask again and again, for as long as a storm may take.

    Raises:
        TimeoutError: It is not so by then.
    """
    deadline = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(read_logs(folder))
        time.sleep(1.0)
