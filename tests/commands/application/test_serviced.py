"""A command asks the service for what is the service's, and nobody for the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from omegaconf import DictConfig, OmegaConf
from serviced import Serviced, run_service

from rltune.commands.application.serviced import find_service, find_service_of, tell
from rltune.service.client import ServiceError
from rltune.service.folder import ADDRESS, TOKEN


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serviced]:
    with run_service(tmp_path / "outputs") as service:
        monkeypatch.setenv(TOKEN, "a-token")
        yield service


def settings_of(outputs: Path, sweep: str = "mine", address: str | None = None) -> DictConfig:
    return OmegaConf.create({"sweep": sweep, "output_dir": str(outputs), "service": {"address": address}})


def test_a_sweep_is_the_services_only_if_it_was_submitted(service: Serviced, tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    assert find_service(settings_of(outputs)) is None, "nobody said where it is"
    service.desk.folder.write_address(service.address)
    assert find_service_of(settings_of(outputs)) is None
    service.queue.add("mine", [])
    found = find_service_of(settings_of(outputs))
    assert found is not None
    assert found.address == service.address
    assert find_service_of(settings_of(outputs, "latest")) is None
    assert find_service_of(settings_of(tmp_path / "elsewhere", address=service.address)) is not None


def test_a_killed_service_is_none_but_a_named_one_has_to_answer(
    service: Serviced, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.desk.folder.write_address("http://127.0.0.1:1")
    assert find_service(settings_of(tmp_path / "outputs")) is None
    with pytest.raises(ServiceError, match="no service answers"):
        find_service(settings_of(tmp_path / "outputs", address="http://127.0.0.1:1"))
    monkeypatch.setenv(ADDRESS, "http://127.0.0.1:1")
    with pytest.raises(ServiceError, match="no service answers"):
        find_service(settings_of(tmp_path / "outputs"))


def test_what_came_of_it_is_one_line(service: Serviced, capsys: pytest.CaptureFixture[str]) -> None:
    service.queue.add("mine", [])
    tell(service.client.show("mine"))
    tell(service.client.stop("mine"))
    assert capsys.readouterr().out.splitlines() == [
        "mine: number 1 in the queue", "mine: interrupted, taken from the queue",
    ]  # fmt: skip
