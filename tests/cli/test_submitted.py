"""A command asks the service about the service's sweeps, and sends its token to nobody else."""

from __future__ import annotations

import contextlib
import http.server
import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from ended import make_certification, write_sweep

from rltune.checkpoints.store import compute_digest
from rltune.cli import submitted
from rltune.cli.application.command import RequestConfig, spell_settings
from rltune.cli.application.program import load_command
from rltune.cli.submitted import find_service, find_service_of, print_state, wait_for_start
from rltune.compose.command_settings import read_command_settings
from rltune.compose.explaining import refuse_flags
from rltune.errors import ConfigError, RltuneError, StudyError
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.records import CheckpointRecord
from rltune.service.client import Client, ServiceError, TokenError
from rltune.service.folder import ADDRESS, TOKEN, ServiceFolder
from rltune.views.comparison import compare_sweeps
from tests.policies.bundles import BOX, write_linear
from tests.service.serviced import Serviced, run_service


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serviced]:
    with run_service(tmp_path / "outputs") as service:
        monkeypatch.setenv(TOKEN, "a-token")
        yield service


def settings_of(outputs: Path, sweep: str = "mine", address: str | None = None) -> RequestConfig:
    words = [f"output_dir={outputs}", f"sweep={sweep}", f"service.address={address or 'null'}"]
    return read_command_settings("show", RequestConfig, words)


def test_a_sweep_is_the_services_only_if_it_was_submitted(service: Serviced, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    assert find_service(settings_of(outputs)) is None, "nobody said where it is"
    service.sweeps.folder.write_address(service.address)
    assert find_service_of(settings_of(outputs)) is None
    service.queue.add("mine", [])
    owner = find_service_of(settings_of(outputs))
    assert owner is not None
    assert owner.address == service.address
    assert find_service_of(settings_of(outputs, "latest")) is None
    assert find_service_of(settings_of(tmp_path / "elsewhere", address=service.address)) is not None


def type_at(service: Serviced, here: Path, name: str, *words: str) -> Any:
    """Answer a command in a folder of its own, with the service's address in the environment."""
    command = load_command(name)
    with contextlib.chdir(here):
        return command.answer([*words])


def test_sweeps_of_a_remote_service_are_read_through_it(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.setenv(ADDRESS, service.address)
    write_sweep(service.sweeps.folder.sweeps / "mine", 4)
    row = service.queue.add("mine", [])
    service.queue.change(row, state="running")
    service.queue.change(service.queue.get("mine"), state="complete", ended_s=1.0)
    service.queue.add("waits", [])
    listed = type_at(service, here, "list")
    assert [sweep["name"] for sweep in listed.data["sweeps"]] == ["mine"]
    assert [each["name"] for each in listed.data["submissions"]] == ["waits"]
    for sweep in ("mine", "latest"):
        shown = type_at(service, here, "show", f"sweep={sweep}")
        assert (shown.data["name"], len(shown.data["trials_best_first"])) == ("mine", 4)
    shown.show()
    assert "trials" in capsys.readouterr().out
    assert type_at(service, here, "show", "sweep=waits").data["state"] == "queued"
    watched = type_at(service, here, "watch", "sweep=mine")
    assert (watched.exit_code, watched.data["name"]) == (0, "mine")
    report = type_at(service, here, "report", "sweep=mine")
    assert "<html" in Path(report.data["report"]).read_text()
    assert Path(report.data["report"]).parent == here
    assert type_at(service, here, "stop", "sweep=waits").data["state"] == "interrupted"
    for name, more in (("show", ()), ("stop", ()), ("enqueue", ("space.lr=1e-3",)), ("report", ())):
        with pytest.raises(StudyError) as refused:
            type_at(service, here, name, "sweep=min", *more)
        assert "'mine'" in refused.value.allowed, "names of the service's sweeps"
    assert not (here / "outputs").exists()


def test_sweeps_of_a_remote_service_are_compared_by_it(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.setenv(ADDRESS, service.address)
    for name, above in (("one", 0.0), ("two", 38.0)):
        write_sweep(service.sweeps.folder.sweeps / name, 3, make_certification(above))
        service.queue.change(service.queue.add(name, [], "both"), state="complete", ended_s=1.0)
    local = compare_sweeps(["one", "two"], service.sweeps.folder.sweeps)
    for words in ("sweeps=[one,two]", "group=both"):
        answer = type_at(service, here, "compare", words)
        assert [(row["name"], row["score"]) for row in answer.data["sweeps"]] == [("one", 99.0), ("two", 119.0)]
        assert (here / "comparison" / "comparison.md").read_text() == local.markdown()
    for words, key in (("sweeps=[one,twoo]", "sweep"), ("sweeps=[none]", "sweeps"), ("group=none", "group")):
        with pytest.raises(RltuneError) as refused:
            type_at(service, here, "compare", words)
        assert refused.value.key == key


def test_a_named_service_is_listed_also_in_its_own_folder(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ADDRESS, service.address)
    service.sweeps.folder.write_address(service.address)
    service.queue.add("waits", ["seed=3"])
    type_at(service, tmp_path, "list").show()
    printed = capsys.readouterr().out
    assert "no sweeps" not in printed
    assert "seed=3" in printed


def test_a_policy_of_a_remote_service_is_evaluated_here(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "elsewhere"
    here.mkdir()
    monkeypatch.setenv(ADDRESS, service.address)
    sweep = write_sweep(service.sweeps.folder.sweeps / "mine", 4)
    service.queue.add("mine", [])
    with pytest.raises(StudyError):
        service.client.policy("mine", here / "policy")  # no trial has a checkpoint
    write_linear(sweep / "trials" / "0" / "best" / "policy", BOX, {"id": "CartPole-v1"})
    (sweep / "summary.json").write_text(json.dumps({"winner": {"checkpoint": "trials/0/best"}}))
    played = type_at(service, here, "evaluate", "policy=sweep:mine", "episodes=2")
    assert (played.data["policy"], played.data["episodes"], played.data["min"] > 0) == ("sweep:mine", 2, True)
    best = CheckpointRecord("trials/0/best", 100, 1.0, compute_digest(sweep / "trials" / "0" / "best"))
    with closing(open_ledger(sweep)) as ledger:
        ledger.trials.replace_checkpoint(0, best)
    file = type_at(service, here, "export", "policy=sweep:mine/0", "out=policy.pt", "format=torch").data["file"]
    file.unlink()
    with pytest.raises(StudyError):
        type_at(service, here, "export", "policy=sweep:mine/3")
    assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("typed", "spelled"),
    [
        ("show mine", "sweep=mine"),
        ("show mine --json", "sweep=mine json=true"),
        ("logs mine -f", "sweep=mine follow=true"),
        ("compare one two out=x", "sweeps=[one,two] out=x"),
        ("evaluate sweep:mine/3 --video", "policy=sweep:mine/3 video=true"),
        ("stop sweep=mine -t", "sweep=mine -t"),
        ("show one two", "sweep=one two"),
        ("run algo=ppo -m", "algo=ppo -m"),
        ("run algo=ppo --check", "algo=ppo check=true"),
        ("submit --check algo=ppo", "check=true algo=ppo"),
        ("evaluate sweep:mine --check", "policy=sweep:mine --check"),
    ],
)
def test_what_needs_no_key_is_spelled_as_a_setting(typed: str, spelled: str) -> None:
    name, *words = typed.split()
    command = load_command(name)
    assert sorted(spell_settings(words, command.usage, command.schema, command.switches)) == sorted(spelled.split())


@pytest.mark.parametrize(
    "typed",
    [
        "show --sweep mine",
        "list --limit 3",
        "list --state",
        "logs -x mine",
        "logs mine --output-dir here",
        "compare --group=five",
        "stop mine --now",
        "stop --wait mine",
        "export --out mine.pt sweep:best",
    ],
)
def test_what_is_suggested_for_a_flag_can_be_typed(typed: str) -> None:
    name, *words = typed.split()
    command = load_command(name)
    for _ in range(2):
        words = spell_settings(words, command.usage, command.schema, command.switches)
        try:
            refuse_flags(name, words, ())
        except ConfigError as refused:
            words = re.split(rf"[ .]{name} ?", refused.fix)[1].split()
    read_command_settings(name, command.schema, words)
    assert ("sweep=mine" in words) is ("mine" in typed.split())


def test_watching_waits_until_a_submitted_sweep_can_be_read(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, folder, waits = tmp_path / "outputs", tmp_path / "outputs" / "mine", 0
    service.sweeps.folder.write_address(service.address)
    service.queue.add("mine", [])

    def go_on(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            service.sweeps.dispatcher.step()
            folder.mkdir()  # Its process has made the folder, but neither the settings nor the ledger.
        elif waits == 2:
            folder.rmdir()
            write_sweep(folder)  # An earlier end is in the ledger, and no driver has taken the lease.
        elif waits == 3:
            with closing(open_ledger(folder)) as ledger:
                take_lease(ledger).release()

    monkeypatch.setattr(submitted.time, "sleep", go_on)
    begun = wait_for_start(settings_of(outputs))
    assert begun is not None
    assert (waits, begun["state"], begun["starting"]) == (3, "running", False)


def test_watching_goes_on_when_the_service_restarts(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outputs, folder, waits = tmp_path / "outputs", service.sweeps.folder, 0
    folder.write_address(service.address)
    service.queue.add("mine", [])

    def go_on(_: float) -> None:
        nonlocal waits
        waits += 1
        if waits == 1:
            folder.clear_address()
        elif waits == 3:
            folder.write_address(service.address)
            service.queue.change(service.queue.get("mine"), state="refused")

    monkeypatch.setattr(submitted.time, "sleep", go_on)
    ended = wait_for_start(settings_of(outputs))
    assert ended is not None
    assert (waits, ended["state"], ended["service"]) == (3, "refused", True)
    service.queue.change(service.queue.get("mine"), state="queued")
    monkeypatch.setattr("rltune.service.client.PATIENCE_S", 0.0)
    waits = 0
    left = wait_for_start(settings_of(outputs))
    assert left is not None
    assert (waits, left["state"], left["service"]) == (1, "queued", False)


def test_a_killed_service_is_none_but_a_named_one_has_to_answer(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.sweeps.folder.write_address("http://127.0.0.1:1")
    assert find_service(settings_of(tmp_path / "outputs")) is None
    with pytest.raises(ServiceError) as error:
        find_service(settings_of(tmp_path / "outputs", address="http://127.0.0.1:1"))
    assert error.value.exit_code == 75
    monkeypatch.setenv(ADDRESS, "http://127.0.0.1:1")
    with pytest.raises(ServiceError):
        find_service(settings_of(tmp_path / "outputs"))


# A service that is killed: it leaves its address and its token behind, and its lock ends with it.
KILLED = """
import os, signal, sys
from rltune.service.folder import ServiceFolder
folder = ServiceFolder(sys.argv[1])
with folder.hold():
    folder.make_token()
    folder.write_address(sys.argv[2])
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextlib.contextmanager
def listening_stranger() -> Iterator[tuple[str, list[str | None]]]:
    """Somebody else's server, and the Authorization headers that it was sent."""
    headers: list[str | None] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            headers.append(self.headers.get("Authorization"))
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"[]")

        def log_message(self, *words: object) -> None:
            """Stay silent."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", headers
        server.shutdown()


def test_the_port_of_a_killed_service_gets_no_token(tmp_path: Path) -> None:
    with listening_stranger() as (address, headers):
        killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path), address], check=False)
        assert killed.returncode == -signal.SIGKILL
        assert find_service(settings_of(tmp_path)) is None
        with pytest.raises(ServiceError):
            Client(output_dir=str(tmp_path))
        assert headers == []


def test_a_service_on_another_host_gets_no_token(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    with listening_stranger() as (address, headers), folder.hold():
        folder.make_token()
        (folder.path / "address.json").write_text(json.dumps({"address": address, "host": "another-login-node"}))
        assert find_service(settings_of(tmp_path)) is None
        assert headers == []


def test_an_address_that_was_typed_gets_no_token_of_a_folder(tmp_path: Path) -> None:
    folder = ServiceFolder(tmp_path)
    with listening_stranger() as (address, headers), folder.hold():
        folder.make_token()
        folder.write_address("http://127.0.0.1:1")
        with pytest.raises(ServiceError):
            Client(address, output_dir=str(tmp_path)).list()
        assert headers == [None]


def test_a_stranger_on_the_usual_port_is_no_service_of_ours(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(TOKEN)
    ours = ServiceFolder(tmp_path / "ours")
    with ours.hold():
        ours.make_token()
        ours.write_address(service.address)
        assert find_service(settings_of(ours.sweeps)) is None
        with pytest.raises(TokenError) as error:
            find_service(settings_of(ours.sweeps, address=service.address))
    assert (error.value.key, error.value.exit_code) == (TOKEN, 2)


def test_what_came_of_it_is_one_line(service: Serviced, capsys: pytest.CaptureFixture[str]) -> None:
    service.queue.add("mine", [])
    print_state(service.client.show("mine"))
    print_state(service.client.stop("mine"))
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["mine", "mine"]
    assert "interrupted" in lines[1]


def test_a_reason_changes_no_terminal(service: Serviced, capsys: pytest.CaptureFixture[str]) -> None:
    service.queue.change(service.queue.add("mine", []), state="failed", reason="error: a\x1b[2J\x07b\n  try: c")
    print_state(service.client.show("mine"))
    out = capsys.readouterr().out
    assert all(line.isprintable() for line in out.splitlines())
    assert len(out.splitlines()) == 2
