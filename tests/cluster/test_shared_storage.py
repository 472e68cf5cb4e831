"""Sweeps that join a Ray whose machines share their folder or do not: real nodes with mounts of their own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from joined import another_machine, finish, ray_head, start_sweep, sweep

pytestmark = pytest.mark.slow  # Rays of its own

OPEN = {"RAY_AUTH_MODE": "disabled"}


def can_unshare() -> bool:
    """Whether this user may give a process mounts and a host name of its own."""
    try:
        tried = ["unshare", "--mount", "--uts", "sh", "-c", "hostname other && mount -t tmpfs tmpfs /mnt"]
        return subprocess.run(tried, capture_output=True).returncode == 0
    except OSError:
        return False


needs_mounts = pytest.mark.skipif(not can_unshare(), reason="mounts of one's own need root (unshare --mount --uts)")


@pytest.fixture(scope="module")
def open_address() -> Iterator[str]:
    """A cluster that asks for no token."""
    with ray_head(**OPEN) as address:
        yield address


@pytest.fixture(scope="module")
def joined(open_address: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int, str]:
    """A sweep that has joined it: its folder, its exit code and what it said."""
    folder = tmp_path_factory.mktemp("joined")
    return folder, *sweep("run", folder, f"cluster.address={open_address}", "budget.trials=3")


def test_a_sweep_joins_a_cluster_without_a_token(joined: tuple[Path, int, str]) -> None:
    folder, code, out = joined
    assert code == 0, out
    summary = json.loads((folder / "outputs/toy/summary.json").read_text())
    assert summary["status"] == "complete"
    assert summary["trials"]["failed"] == 0
    assert summary["trials"]["complete"] >= 1


@needs_mounts
def test_a_node_without_the_shared_folder_is_refused(open_address: str, joined: tuple[Path, int, str]) -> None:
    outputs = joined[0] / "outputs"
    with another_machine(open_address, "far", hidden=outputs):
        words = (f"cluster.address={open_address}", "budget.trials=2", "name=new")
        new, resumed = sweep("run", joined[0], *words), sweep("resume", joined[0])
    for name, (code, out) in {"new": new, "toy": resumed}.items():
        assert code == 2, out
        assert f"error: output_dir={outputs}: {outputs / name} cannot be seen on node far (" in out
        assert "  allowed: a folder on storage that all nodes of the cluster share" in out
        assert "  try:     output_dir=/shared/outputs" in out
    assert [path.name for path in outputs.iterdir()] == ["toy"]
    assert not list(outputs.glob("*/.shared-*"))


@needs_mounts
def test_a_folder_that_a_node_loses_later_stops_the_sweep(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    with ray_head(num_cpus=0, **OPEN) as address, another_machine(address, "far") as node:
        words = (f"cluster.address={address}", "budget.trials=2", "algo.training.seconds=0.3")
        typed = start_sweep("run", tmp_path, *words)
        deadline = time.monotonic() + 120
        while not list(outputs.glob("toy/trials/*/best-*")) and typed.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        lose = ["nsenter", f"--target={node}", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(outputs)]
        subprocess.run(lose, check=True)
        code, out = finish(typed)
    assert code == 2, out
    assert f"error: output_dir={outputs}: trials/" in out
    assert " lies on node far alone" in out
    assert not (outputs / "toy/summary.json").exists()
