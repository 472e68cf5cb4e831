"""What the service does not do yet: each test waits for the change of design that will let it pass."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import postgres
import psutil
import pytest
from ended import write_sweep
from ledger import add_reports
from real import Project
from serviced import run_service
from sqlalchemy import event
from sqlalchemy.engine import Engine

import rltune
from rltune.study.ledger import Ledger
from rltune.study.storage import open_ledger

pytestmark = pytest.mark.slow
TINY = ("algo=ppo", "env=cartpole", "experiment=smoke", "tracking=off", "report=false", "cluster.num_cpus=1")
# A process in such a namespace sees no process outside of it, as in another container over the same folder.
ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


def wait_until(holds: Callable[[], bool], limit_s: float = 120) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@contextlib.contextmanager
def serve(project: Project, before: tuple[str, ...] = ()) -> Iterator[rltune.Client]:
    """A typed service over a folder, once it answers; it is killed at the end, and its sweeps go on."""
    outputs = project.folder / "outputs"
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [*before, sys.executable, "-m", "sweeps.serve", "port=0"]
    process = subprocess.Popen(
        command, cwd=project.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        link = next(line.split()[1] for line in lines if line.startswith("page"))
        address, _, token = link.partition("/login#")
        client = rltune.Client(address, token, output_dir=str(outputs))
        wait_until(lambda: is_answered(client))
        yield client
    finally:
        process.kill()
        process.wait()


def is_answered(client: rltune.Client) -> bool:
    with contextlib.suppress(Exception):
        client.list()
        return True
    return False


def end_sweeps(folder: Path) -> None:
    """End all processes whose command line names a folder."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(str(folder) in word for word in process.cmdline()):
                process.send_signal(signal.SIGKILL)


@pytest.mark.skipif(
    sys.platform != "linux" or subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode != 0,
    reason="no namespace for processes can be made here",
)
@pytest.mark.xfail(strict=True, reason="move 2: the service asks the sweep's lease, not a process's number")
def test_a_sweep_whose_process_is_not_seen_is_not_begun_twice(tmp_path: Path) -> None:
    project = Project(tmp_path)
    try:
        with serve(project) as client:
            client.submit(*TINY, "budget.env_steps=1000000", name="one")
            wait_until(lambda: (tmp_path / "outputs" / "one" / "ledger.db").exists())
            before = client.show("one")["begun"]
        with serve(project, ALONE) as client:
            time.sleep(3)  # The queue is looked at every half second.
            after = client.show("one")
        assert (after["state"], after["begun"]) == ("running", before)
    finally:
        end_sweeps(tmp_path)


@pytest.mark.xfail(strict=True, reason="move 2: the queue belongs to a service, not to the path of its folder")
def test_a_folder_that_was_moved_keeps_its_queue(tmp_path: Path) -> None:
    project = Project(tmp_path / "before")
    project.folder.mkdir()
    try:
        with serve(project) as client:
            client.submit(*TINY, name="one")
            client.stop("one")
            client.wait("one", timeout_s=60)
        project.folder.rename(tmp_path / "after")
        with serve(Project(tmp_path / "after")) as client:
            assert [sweep["name"] for sweep in client.list()] == ["one"]
    finally:
        end_sweeps(tmp_path)


@pytest.mark.xfail(strict=True, reason="move 5: one read model names a damaged ledger and goes on")
def test_a_damaged_ledger_leaves_all_other_sweeps_listed(tmp_path: Path) -> None:
    project = Project(tmp_path)
    with run_service(tmp_path / "outputs") as service:
        for name in ("good", "bad"):
            service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
            folder = write_sweep(tmp_path / "outputs" / name, 0)
            with closing(open_ledger(folder)) as ledger:
                for _ in range(60):
                    add_reports(ledger, ledger.trials.add({"lr": 0.1, "note": "x" * 300}, [1]).number, {200: 1.0})
        damaged = tmp_path / "outputs" / "bad" / "ledger.db"
        content = bytearray(damaged.read_bytes())
        for offset in range(4096 * 6, len(content), 4096):
            content[offset] = 0xAA  # No page of SQLite begins so.
        damaged.write_bytes(content)
        page = service.ask("GET", "/", headers=service.log_in())
        listed = project.type("-m", "sweeps.list")
    assert (page.status_code, listed.code) == (200, 0)
    assert "good" in listed.out


@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
@pytest.mark.xfail(strict=True, reason="move 5: a list reads what is new, with one query for all ledgers")
def test_a_second_list_asks_postgresql_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    statements: list[str] = []

    def note(connection: object, cursor: object, statement: str, *facts: object) -> None:
        if "psycopg" in type(cursor).__module__:
            statements.append(statement)

    num_sweeps = 12
    with postgres.server() as address, run_service(tmp_path / "outputs") as service:
        postgres.database(address, "sweeps")
        url = f"postgresql+psycopg://sweeper@{address.rpartition('@')[2]}sweeps"
        for number in range(num_sweeps):
            name = f"sweep-{number}"
            service.queue.change(service.queue.add(name, []), state="complete", ended_s=1.0)
            folder = write_sweep(tmp_path / "outputs" / name, 0, None, "complete", f"study.storage='{url}'")
            (folder / "ledger.db").unlink()
            with closing(Ledger(url, name, create=True)) as ledger:
                ledger.trials.add({"lr": 0.1}, [1])
        first = service.client.list()
        event.listen(Engine, "before_cursor_execute", note)
        try:
            second = service.client.list()
        finally:
            event.remove(Engine, "before_cursor_execute", note)
    assert len(second) == num_sweeps
    assert second == first
    assert all(sweep["trials"] for sweep in first), "the ledgers were read"
    assert len(statements) < num_sweeps
