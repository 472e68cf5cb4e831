"""The service's commands take their settings as typed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from rltune.cli.application.program import load_command
from rltune.cli.service import LogsConfig, ServeConfig, logs, serve, submit
from rltune.compose.command_settings import read_command_settings
from rltune.errors import ConfigError
from rltune.service.folder import TOKEN
from tests.service.serviced import Serviced, run_service


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Serviced]:
    with run_service(tmp_path / "outputs") as service:
        yield service


@pytest.mark.parametrize("port", [-1, 65536, 99999])
def test_a_port_that_cannot_be_is_refused(tmp_path: Path, port: int) -> None:
    with pytest.raises(ConfigError) as error:
        serve.work(read_command_settings("serve", ServeConfig, [f"port={port}", f"output_dir={tmp_path}"]))
    assert (error.value.key, error.value.exit_code) == ("port", 2)
    assert list(tmp_path.iterdir()) == []


def test_a_submission_is_checked_by_the_service_and_not_queued(
    service: Serviced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    typed = ["algo=ppo", "seed=3", "check=true", f"service.address={service.address}"]
    monkeypatch.setattr("sys.argv", ["submit", *typed])
    answer = submit.answer(typed)
    assert answer.data["sweeps"][0]["overrides"] == ["algo=ppo", "seed=3"]
    assert service.queue.list() == []


def test_a_check_is_answered_alike_here_and_by_a_service(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    answers, printed = [], []
    for name, more in (("run", f"output_dir={tmp_path / 'outputs'}"), ("submit", f"service.address={service.address}")):
        typed = ["experiment=smoke", "seed=3", more]
        monkeypatch.setattr("sys.argv", [name, *typed])
        answers.append(load_command(name).answer([*typed, "check=true"]))
        answers[-1].show()
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    ((here,), (there,)) = (answer.data["sweeps"] for answer in answers)
    assert there == json.loads(json.dumps(here)) | {"overrides": ["experiment=smoke", "seed=3"]}


def test_several_submissions_name_their_states_when_all_are_there(
    service: Serviced, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    typed = ["-m", "experiment=smoke", "seed=1,2,3", "group=three", f"service.address={service.address}"]
    monkeypatch.setattr("sys.argv", ["submit", *typed])
    answer = submit.answer(typed)
    answer.show()
    lines = capsys.readouterr().out.splitlines()
    assert len({line.partition(":")[2] for line in lines[:3]}) == 1
    for command in ("list group=three", "watch sweep=", "compare group=three"):
        assert any(command in line for line in lines[3:])


def test_a_port_that_is_no_number_is_named_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        read_command_settings("serve", ServeConfig, ["port=abc", f"output_dir={tmp_path}"])
    assert (error.value.key, error.value.problem) == ("port", "is not a whole number")


def test_the_log_of_a_waiting_sweep_says_that_it_waits(
    service: Serviced, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    service.queue.add("one", [])
    words = ["sweep=one", f"service.address={service.address}"]
    answer = logs.work(read_command_settings("logs", LogsConfig, words))
    assert (answer.exit_code, answer.data["state"], answer.data["log"]) == (0, "queued", "")
    assert capsys.readouterr().err.startswith("one:")


@pytest.mark.parametrize("is_running", [True, False])
def test_the_latest_log_is_that_of_the_sweep_begun_last(
    service: Serviced, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, is_running: bool
) -> None:
    monkeypatch.setenv(TOKEN, "a-token")
    for name in ("one", "two", "three"):
        service.queue.add(name, [])
        service.sweeps.folder.log_of(name).write_text(f"of {name}\n")
    service.queue.change(service.queue.get("one"), state="running", started_s=1e9)
    service.queue.change(service.queue.get("two"), state="running", started_s=2e9)
    service_words = [f"service.address={service.address}"] if is_running else []
    words = ["sweep=latest", f"output_dir={service.sweeps.folder.sweeps}", *service_words]
    answer = logs.work(read_command_settings("logs", LogsConfig, words))
    assert (answer.data["name"], answer.data["log"]) == ("two", "of two\n")
