"""The service as it is typed, with real sweeps: it is killed in the middle, and the next one goes on with them."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import postgres
import psutil
import pytest
from real import PATIENCE_S, Project, finish
from waiting import wait_until

from rltune.errors import ConfigError, StudyError
from rltune.ledger.storage import open_ledger
from rltune.service.client import Client
from rltune.service.dispatcher import ON_REQUEST
from rltune.service.folder import ADDRESS, TOKEN, ServiceFolder
from rltune.service.processes import HEADING, read_lease
from rltune.service.serving import listen, serve
from rltune.service.submissions import Submission, Submissions
from tests.service import serviced
from tests.service.serviced import run_service

# The least that is a sweep: no certification, no MLflow, trials of seconds.
TINY = ("algo=ppo", "env=cartpole", "experiment=smoke", "tracking=off", "report=false")
LONG = "budget.env_steps=60000"  # it lasts while commands are typed
# An environment whose sweep lasts until a file is gone, with short iterations, so that it can be stopped in between.
GATED = """
import time
from pathlib import Path

import gymnasium
from gymnasium.envs.classic_control.cartpole import CartPoleEnv


class Gated(CartPoleEnv):
    def step(self, action):
        if Path({gate!r}).exists():
            time.sleep(0.02)
        return super().step(action)


gymnasium.register("Gated-v0", Gated, max_episode_steps=500)
"""
SHORT = ("env.id=gated:Gated-v0", "space.train_batch_size_per_learner=256", "space.minibatch_size=64")
# A process in such a namespace sees no process outside of it, as in another container over the same folder.
ALONE = ("unshare", "--user", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")
NAMES = ("s0", "s1")
SERVE = ("-m", "sweeps.serve", "port=0")


@contextlib.contextmanager
def served(
    project: Project, *words: str, before: tuple[str, ...] = ()
) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """A service in a person's folder, once it answers; killed at the end."""
    folder = ServiceFolder(project.folder / "outputs")
    folder.clear_address()
    process = project.start(*SERVE, *words, before=before)
    try:
        wait_until(lambda: folder.read_address() is not None or process.poll() is not None, 60)
        assert process.poll() is None, process.communicate()[0]
        client = Client(output_dir=str(folder.sweeps))
        wait_until(lambda: answers(client), 60)
        yield process, client
    finally:
        process.kill()
        process.wait()


def answers(client: Client) -> bool:
    with contextlib.suppress(Exception):
        client.check()
        return True
    return False


def queue_of(project: Project) -> dict[str, Submission]:
    """The rows, by name."""
    folder = ServiceFolder(project.folder / "outputs")
    with closing(Submissions(folder.database, folder.make_id())) as queue:
        return {one.name: one for one in queue.list()}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Two sweeps, one at a time: service and first sweep are killed while the second waits, stopped and resumed."""
    project = Project(tmp_path_factory.mktemp("project"))
    gate = project.folder / "gate"
    gate.touch()
    (project.folder / "gated.py").write_text(GATED.format(gate=str(gate)))
    with served(project) as (process, client):
        client.submit(*TINY, *SHORT, name="s0", group="all")
        project.replies["s1"] = project.type("-m", "sweeps.submit", *TINY, *SHORT, "group=all", "name=s1")
        wait_until(lambda: (project.folder / "outputs" / "s0" / "ledger.db").exists())
        for command in ("list", "stop sweep=s1", "resume sweep=s1"):
            project.replies[command] = project.call(*command.split())
        wait_until(lambda: has_driver(project.folder / "outputs" / "s0"))
        driver = read_lease(project.folder / "outputs" / "s0").driver
        assert driver is not None
        process.send_signal(signal.SIGKILL)
        process.wait()
        os.kill(driver.pid, signal.SIGKILL)
    gate.unlink()
    with served(project) as (process, client):
        client.wait(*NAMES, timeout_s=PATIENCE_S)
        project.replies["logs"] = project.call("logs", "sweep=s1", "follow=true")
        project.replies["compare"] = project.call("compare", "group=all")
        process.send_signal(signal.SIGINT)
        project.replies["serve"] = finish(process)
    return project


@pytest.mark.slow
def test_a_killed_service_loses_doubles_and_overtakes_no_sweep(killed: Project) -> None:
    rows = queue_of(killed)
    assert {name: (one.state, one.reason) for name, one in rows.items()} == dict.fromkeys(NAMES, ("complete", None))
    begun = {name: one.started_s or 0.0 for name, one in rows.items()}
    assert begun["s0"] < begun["s1"], "what was lost, what waited"
    for name in NAMES:
        log = ServiceFolder(killed.folder / "outputs").log_of(name).read_text()
        assert log.count(HEADING) == (2 if name == "s0" else 1)
        with closing(open_ledger(killed.folder / "outputs" / name)) as ledger:
            assert [record.number for record in ledger.trials.records()] == [0, 1]
            assert ledger.sweep().status == "complete"


@pytest.mark.slow
def test_submit_and_list_say_where_a_sweep_stands(killed: Project) -> None:
    submitted = killed.replies["s1"]
    assert submitted.code == 0, submitted.out
    assert re.search(r"^s1:.* 1\b", submitted.out, re.MULTILINE), "its place in the queue"
    assert "sweep=s1" in submitted.out
    listed = killed.replies["list"].out
    assert re.search(r"^s0 +(running, \d+%|starting)", listed, re.MULTILINE)
    assert re.search(r"^s1 .* 1\b.* all .*algo=ppo", listed, re.MULTILINE)


@pytest.mark.slow
def test_a_waiting_sweep_is_stopped_and_resumed_by_the_usual_commands(killed: Project) -> None:
    stopped, resumed = killed.replies["stop sweep=s1"], killed.replies["resume sweep=s1"]
    assert (stopped.code, resumed.code) == (0, 0)
    assert stopped.out.startswith("s1: interrupted")
    assert re.search(r"^s1:.* \d\b", resumed.out, re.MULTILINE)


@pytest.mark.slow
def test_the_log_has_what_the_command_said_to_its_end(killed: Project) -> None:
    log = killed.replies["logs"]
    assert log.code == 0
    assert re.search(rf"^{HEADING}.*algo=ppo.* name=s1$", log.out, re.MULTILINE)
    assert "Gated-v0" in log.out
    assert "complete" in log.out or "winner" in log.out


@pytest.mark.slow
def test_a_group_is_compared_in_the_order_of_its_submission(killed: Project) -> None:
    done = killed.replies["compare"]
    assert done.code == 0, done.out
    assert re.findall(r"^\| (s\d) \|", done.out, re.MULTILINE) == [*NAMES]


@pytest.mark.slow
def test_a_service_that_ends_leaves_its_address_to_nobody(killed: Project) -> None:
    done = killed.replies["serve"]
    assert done.code == 130, done.out
    assert re.search(r"^page +http://127\.0\.0\.1:\d+/login\b", done.out, re.MULTILINE)
    assert ServiceFolder(killed.folder / "outputs").make_token() not in done.out, "a log is read by others"
    assert "s1: complete" in done.out, "the service's log has the ends of its sweeps"
    assert f"--backend-store-uri {killed.store}" in done.out
    assert ServiceFolder(killed.folder / "outputs").read_address() is None


@pytest.fixture
def project(tmp_path: Path) -> Iterator[Project]:
    """A person's folder below the test's, whose sweeps are killed at the end."""
    folder = tmp_path / "project"
    folder.mkdir()
    yield Project(folder)
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and any(str(tmp_path) in word for word in process.cmdline()):
                process.send_signal(signal.SIGKILL)


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux" or subprocess.run([*ALONE, "true"], check=False, capture_output=True).returncode != 0,
    reason="no namespace for processes can be made here",
)
def test_a_sweep_whose_process_is_not_seen_is_not_begun_twice(project: Project) -> None:
    outputs = project.folder / "outputs"
    with served(project) as (_, client):
        client.submit(*TINY, "budget.env_steps=1000000", name="one")
        wait_until(lambda: (outputs / "one" / "ledger.db").exists())
        before = client.show("one")["begun"]
    with served(project, before=ALONE) as (_, client):
        time.sleep(3)  # The queue is looked at every half second.
        after = client.show("one")
        assert (after["state"], after["begun"]) == ("running", before)
        client.stop("one")  # No signal reaches a process that is not seen.
        (stopped,) = client.wait("one", timeout_s=PATIENCE_S)
        assert (stopped["state"], stopped["reason"]) == ("interrupted", ON_REQUEST)
    assert ServiceFolder(outputs).log_of("one").read_text().count(HEADING) == 1


@pytest.mark.nightly
@pytest.mark.slow
def test_a_typed_sweep_is_adopted_and_not_begun_again(project: Project) -> None:
    folder = ServiceFolder(project.folder / "outputs")
    typed = project.start("-m", "sweeps.run", *TINY, "budget.env_steps=1000000", "name=one")
    try:
        wait_until(lambda: has_driver(folder.sweeps / "one") or typed.poll() is not None)
        with folder.hold(), closing(Submissions(folder.database, folder.make_id())) as queue:
            queue.add("one", TINY)
        with served(project) as (_, client):
            wait_until(lambda: client.show("one")["state"] == "running")
            client.stop("one")
            (stopped,) = client.wait("one", timeout_s=PATIENCE_S)
        assert (stopped["state"], stopped["reason"]) == ("interrupted", ON_REQUEST)
        assert typed.wait(PATIENCE_S) == 130
    finally:
        typed.kill()
        typed.communicate()
    assert not folder.log_of("one").exists()


def has_driver(folder: Path) -> bool:
    """Whether a driver holds a sweep's lease."""
    with contextlib.suppress(StudyError):
        return read_lease(folder).driver is not None
    return False


@pytest.mark.nightly
@pytest.mark.slow
def test_a_folder_that_was_moved_keeps_its_queue_and_sweeps(project: Project, tmp_path: Path) -> None:
    with served(project) as (_, client):
        client.submit(*TINY, "budget.env_steps=40000", name="one")
        wait_until(lambda: (client.show("one")["sweep"] or {}).get("env_steps", 0) > 0)
        client.submit(*TINY, name="two")
        client.stop("one")
        client.stop("two")
        client.wait("one", "two", timeout_s=PATIENCE_S)
    moved = Project(project.folder.rename(tmp_path / "moved"))
    with served(moved) as (_, client):
        assert {sweep["name"] for sweep in client.list()} == {"one", "two"}
        client.resume("one")
        client.resume("two")
        ended = client.wait("one", "two", timeout_s=PATIENCE_S)
    assert [sweep["state"] for sweep in ended] == ["complete", "complete"]
    assert not project.folder.exists()
    for name in ("one", "two"):
        with closing(open_ledger(moved.folder / "outputs" / name)) as ledger:
            assert [record.number for record in ledger.trials.records()] == [0, 1]


@pytest.mark.nightly
@pytest.mark.slow
@pytest.mark.skipif(bool(postgres.missing()), reason=postgres.missing())
def test_two_services_on_one_database_run_their_own_sweeps(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", postgres.PASSWORD)
    (tmp_path / "other").mkdir()
    other = Project(tmp_path / "other")
    with postgres.server() as address:
        postgres.database(address, "queues")
        storage = f"storage=postgresql+psycopg://sweeper@{address.rpartition('@')[2]}queues"
        with served(project, storage) as (process, client), served(other, storage) as (_, other_client):
            client.submit(*TINY, LONG, name="one")
            wait_until(lambda: (project.folder / "outputs" / "one" / "ledger.db").exists())
            assert other_client.list() == []
            process.kill()
            process.wait()
            other_client.submit(*TINY, name="two")
            other_client.wait("two", timeout_s=PATIENCE_S)
            assert [sweep["name"] for sweep in other_client.list()] == ["two"]
        with served(project, storage) as (_, client):
            assert [sweep["name"] for sweep in client.list()] == ["one"]
            client.wait("one", timeout_s=PATIENCE_S)
    for folder, name in ((project.folder, "one"), (other.folder, "two")):
        logs = ServiceFolder(folder / "outputs").path / "logs"
        assert [path.stem for path in logs.iterdir()] == [name]
        assert (logs / f"{name}.log").read_text().count(HEADING) == 1


def test_a_taken_port_is_told_before_anything_is_begun(tmp_path: Path) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(ConfigError) as error:
            serve(str(tmp_path), port=port)
    assert (error.value.key, f"port={port}" in error.value.what) == ("host", True)
    assert ServiceFolder(tmp_path).read_address() is None


def test_who_follows_the_link_at_once_is_not_turned_away() -> None:
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname(), timeout=10):
        pass


def test_a_host_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        serve(str(tmp_path), host="192.0.2.1", port=0)
    assert error.value.key == "host"
    assert list(tmp_path.iterdir()) == [], "nothing is left behind"


@pytest.mark.parametrize(
    ("store", "link"),
    [("http://mlflow.example:5000", "http://mlflow.example:5000"), ("sqlite:///mlflow.db", None)],
)
def test_the_page_links_to_a_tracking_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, store: str, link: str | None
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    with run_service(tmp_path / "outputs") as service:
        page = service.ask("GET", "/", headers=service.log_in()).text
    assert re.findall(r'<a href="([^"]+)"[^>]*>MLflow<', page) == ([link] if link else [])


@pytest.mark.slow
def test_several_are_submitted_as_a_group_or_none_of_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = Project(tmp_path)
    with run_service(tmp_path / "outputs") as service:
        monkeypatch.setenv(ADDRESS, service.address)
        monkeypatch.setenv(TOKEN, serviced.TOKEN)
        wrong = project.type("-m", "sweeps.submit", "-m", "env.id=CartPole-v1,Acrobot-v1", "budget.trails=3")
        assert wrong.code == 2
        assert service.queue.list() == []
        done = project.type("-m", "sweeps.submit", "-m", "env=cartpole,acrobot", "seed=7")
        rows = service.queue.list()
    assert done.code == 0, done.out
    assert [one.overrides for one in rows] == [("env=cartpole", "seed=7"), ("env=acrobot", "seed=7")]
    assert rows[0].group == rows[1].group is not None
    assert f"sweeps.compare group={rows[0].group}" in done.out
    assert [line.partition(":")[0] for line in done.out.splitlines()[:2]] == [one.name for one in rows]


@pytest.mark.nightly
def test_what_a_service_suggests_runs_on_other_machines(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    words = [sys.executable, "-m", "rltune", "serve", "port=0", f"output_dir={tmp_path}"]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: folder.read_address() is not None, 60)
        client = Client(output_dir=str(tmp_path))
        wait_until(lambda: answers(client), 60)
        with pytest.raises(StudyError) as error:
            client.show("none")
        assert error.value.fix == "rltune list"
    finally:
        process.kill()
        process.wait()
