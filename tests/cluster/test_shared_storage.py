"""Clusters whose machines do not share the sweep's folder: real nodes with mounts of their own."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest
from joined import another_machine, finish, ray_head, start_sweep, sweep

OPEN = {"RAY_AUTH_MODE": "disabled"}


def can_unshare() -> bool:
    """Whether this user may give a process mounts and a host name of its own."""
    try:
        tried = ["unshare", "--mount", "--uts", "sh", "-c", "hostname other && mount -t tmpfs tmpfs /mnt"]
        return subprocess.run(tried, capture_output=True).returncode == 0
    except OSError:
        return False


pytestmark = pytest.mark.skipif(not can_unshare(), reason="mounts of one's own need root (unshare --mount --uts)")


def test_a_node_without_the_shared_folder_is_refused(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    with ray_head(**OPEN) as address:
        words = (f"cluster.address={address}", "budget.trials=2")
        code, out = sweep("run", tmp_path, *words)
        assert code == 0, out
        with another_machine(address, "far", hidden=outputs):
            new, resumed = sweep("run", tmp_path, *words, "name=new"), sweep("resume", tmp_path)
    for name, (code, out) in {"new": new, "toy": resumed}.items():
        assert code == 2, out
        assert f"error: output_dir={outputs}: {outputs / name} cannot be seen on node far (" in out
        assert "  allowed: a folder on storage that all nodes of the cluster share" in out
        assert "  try:     output_dir=/shared/outputs" in out
    assert [path.name for path in outputs.iterdir()] == ["toy"]
    assert not list(outputs.glob("*/.shared-*"))


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
