"""A lost head is noticed, and one that is restarted soon is not."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
import ray

from rltune.cluster import head
from rltune.cluster.head import HeadWatch, OwnRayWatch, is_answering, make_lost_error, wait_for_head

pytestmark = pytest.mark.fast


@pytest.fixture
def listener() -> Any:
    """A process that accepts connections."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def losses(listener: socket.socket, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a watch of the listener has noticed."""
    monkeypatch.setattr(head, "PATIENCE_S", 0.1)
    address = "{}:{}".format(*listener.getsockname())
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address=address))
    return []


def test_a_head_that_answers_is_left_alone(losses: list[str]) -> None:
    watch = HeadWatch(lambda: losses.append("lost"))
    time.sleep(0.15)
    watch.check()
    assert not losses


def test_a_head_is_lost_only_after_a_while(losses: list[str], listener: socket.socket) -> None:
    watch = HeadWatch(lambda: losses.append("lost"))
    listener.close()
    watch.check()
    assert not losses, "it may be started again"
    time.sleep(0.15)
    watch.check()
    assert losses == ["lost"]


def test_a_head_that_is_soon_back_was_not_lost(losses: list[str], listener: socket.socket) -> None:
    host, port = listener.getsockname()
    watch = HeadWatch(lambda: losses.append("lost"))
    listener.close()
    watch.check()
    with socket.create_server((host, port)):
        wait_for_head()
        time.sleep(0.15)
        watch.check()
    watch.check()
    assert not losses


def test_nobody_answers_where_nobody_listens(listener: socket.socket) -> None:
    host, port = listener.getsockname()
    assert is_answering(host, port)
    listener.close()
    assert not is_answering(host, port)


def test_an_own_ray_is_lost_with_one_of_its_daemons(tmp_path: Path) -> None:
    losses: list[str] = []
    daemon = tmp_path / "raylet"
    shutil.copy(shutil.which("sleep") or "", daemon)
    with subprocess.Popen(["sleep", "60"]) as other, subprocess.Popen([daemon, "60"]) as raylet:
        try:
            deadline = time.monotonic() + 10
            while psutil.Process(raylet.pid).name() != "raylet" and time.monotonic() < deadline:
                time.sleep(0.01)
            watch = OwnRayWatch(lambda: losses.append("lost"))
        finally:
            other.kill()
        other.wait()
        watch.check()
        assert not losses
        raylet.kill()
        while not losses and time.monotonic() < deadline:
            watch.check()
    assert losses == ["lost"], "also while nobody has waited for it"


def test_a_lost_ray_is_named_by_what_was_typed() -> None:
    for address, key in ((None, "cluster"), ("10.0.0.1:6379", "cluster.address")):
        error = make_lost_error(address, "rltune resume sweep=x")
        assert (error.key, error.exit_code, "resume sweep=x" in error.fix) == (key, 75, True)
