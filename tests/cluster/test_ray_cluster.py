"""Starting Ray, without a Ray."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from rltune.cluster import ray_cluster
from rltune.cluster.ray_cluster import check_address, connect_ray, find_temp_folder, prepare_environment
from rltune.config.schema import ClusterConfig
from rltune.errors import ResourceError, UnavailableError


@pytest.mark.parametrize("dashboard", [False, True])
def test_ray_listens_on_this_machine_alone_and_shows_its_dashboard_only_when_asked(
    dashboard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    ray_arguments: dict[str, Any] = {}
    monkeypatch.setattr(ray, "init", lambda **arguments: ray_arguments.update(arguments))
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "nodes", list)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    chosen = {"dashboard": True} if dashboard else {}
    with connect_ray(ClusterConfig(num_cpus=2, num_gpus=0, **chosen)):
        assert ray_arguments["include_dashboard"] is dashboard
        assert {ray_arguments["dashboard_host"], ray_arguments["_node_ip_address"]} == {"127.0.0.1"}
        assert ray_arguments["address"] == "local", "or Ray would join one that RAY_ADDRESS names"


@pytest.mark.parametrize(
    ("address", "named", "key", "fix"),
    [
        ("ray://head:10001", "", "cluster.address", "ray job submit --address http://head:8265 "),
        ("auto", "ray://head:10001", "RAY_ADDRESS", "ray job submit --address http://head:8265 "),
        ("auto", "http://10.0.0.1:8265", "RAY_ADDRESS", "ray job submit --address http://10.0.0.1:"),
        ("head", "", "cluster.address", "cluster.address=head:6379"),
        ("local", "", "cluster.address", "cluster.address=local:6379"),
        ("", "", "cluster.address", "cluster.address=head:6379"),
    ],
)
def test_an_address_by_which_no_sweep_joins_is_refused(
    address: str, named: str, key: str, fix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", named)
    with pytest.raises(ResourceError) as refused:
        check_address(ClusterConfig(address=address))
    assert refused.value.key == key
    assert refused.value.fix.startswith(fix)


@pytest.mark.parametrize(
    ("address", "named"),
    [
        ("auto", ""),
        ("auto", "auto"),
        ("auto", "10.0.0.1:6379"),
        ("head:6379", "ray://head:10001"),
        (None, "ray://head:1"),
    ],
)
def test_an_address_that_may_be_a_rays_is_tried(
    address: str | None, named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", named)
    check_address(ClusterConfig(address=address))


def test_sigterm_means_after_rays_start_what_it_meant_before(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    def handle(number: int, frame: object) -> None:
        raise AssertionError(number)

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray_cluster, "find_logs", lambda: None)
    monkeypatch.setattr(ray_cluster, "list_nodes", tuple)
    before = signal.signal(signal.SIGTERM, handle)
    try:
        with connect_ray(ClusterConfig(num_cpus=1)):
            assert signal.getsignal(signal.SIGTERM) is handle
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_ray_that_does_not_come_up_may_be_started_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: Any) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(UnavailableError) as refused, connect_ray(ClusterConfig(num_cpus=1)):
        pass
    assert (refused.value.key, refused.value.exit_code) == ("cluster", 75)
    assert refused.value.allowed
    assert refused.value.fix


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path, and no variable that names one."""
    for name in ("RAY_TMPDIR", "TMPDIR"):
        monkeypatch.delenv(name, raising=False)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


def forbid(monkeypatch: pytest.MonkeyPatch, *folders: str) -> None:
    """Let folders be another user's, although root may write to all."""
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) not in folders and access(path, mode))


def test_ray_uses_the_folder_that_a_variable_names(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(short))
    assert find_temp_folder() == short
    monkeypatch.setenv("RAY_TMPDIR", f"{short}/new")
    assert find_temp_folder() == short / "new"
    prepare_environment(ClusterConfig())
    assert (short / "new").is_dir()


@pytest.mark.parametrize("kind", ["long", "a file", "not there", "another user's"])
def test_ray_uses_another_folder_if_tmpdir_cannot_be_used(
    kind: str, short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (short / "file").touch()
    forbid(monkeypatch, f"{short}/theirs", str(short))
    (short / "theirs").mkdir()
    folders = {"long": short / ("job_" * 25), "a file": short / "file/x", "not there": short / "gone/x"}
    monkeypatch.setenv("TMPDIR", str(folders.get(kind, short / "theirs")))
    assert find_temp_folder() == Path("/tmp")


def test_ray_uses_a_folder_of_its_own_if_another_users_is_there(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("/tmp/ray").mkdir(exist_ok=True)
    forbid(monkeypatch, "/tmp/ray")
    assert find_temp_folder() == Path(f"/tmp/rltune-{os.getuid()}")


@pytest.mark.parametrize("kind", ["long", "theirs"])
def test_a_named_folder_that_ray_cannot_use_is_refused(kind: str, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = short / {"long": "job_" * 25, "theirs": "x"}[kind]
    (folder / "ray").mkdir(parents=True)
    forbid(monkeypatch, f"{folder}/ray")
    monkeypatch.setenv("RAY_TMPDIR", str(folder))
    with pytest.raises(ResourceError) as refused:
        find_temp_folder()
    assert (refused.value.key, refused.value.value) == ("RAY_TMPDIR", str(folder))
    assert (str(len(str(folder))) if kind == "long" else f"{folder}/ray") in refused.value.what
    typed = refused.value.fix.partition(", or")[0]
    chosen = subprocess.run(["bash", "-c", f"{typed}; echo $RAY_TMPDIR"], capture_output=True, text=True).stdout.strip()
    monkeypatch.setenv("RAY_TMPDIR", chosen)
    assert find_temp_folder() == Path(chosen)
    Path(chosen).rmdir()
