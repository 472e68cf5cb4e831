"""Sweeps that join a Ray whose machines share their folder or do not: real nodes with mounts of their own."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from joined import another_machine, finish, needs_mounts, ray_head, start_sweep, sweep

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # It starts Rays of its own.

OPEN = {"RAY_AUTH_MODE": "disabled"}


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


def wait_for(folder: Path, pattern: str, typed: subprocess.Popen[str]) -> None:
    """Wait until a file is there, or the command has ended."""
    deadline = time.monotonic() + 120
    while not list(folder.glob(pattern)) and typed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)


@needs_mounts
def test_a_node_without_the_shared_folder_interrupts_the_sweep_and_fails_no_trial(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    words = ("budget.trials=2", "failures.stop_after=2")
    with ray_head(num_cpus=0, **OPEN) as address:
        with another_machine(address, "far", hidden=outputs):
            code, out = sweep("run", tmp_path, f"cluster.address={address}", *words)
        assert code == 75, out
        summary = json.loads((outputs / "toy/summary.json").read_text())
        assert (summary["status"], summary["trials"]["failed"]) == ("interrupted", 0)
        for part in ("node far", f"output_dir={outputs}"):
            assert part in summary["reason"]
        assert not list(outputs.glob("*/.shared-*"))
        with another_machine(address, "near"):
            code, out = sweep("resume", tmp_path, f"cluster.address={address}")
    assert code == 0, out
    summary = json.loads((outputs / "toy/summary.json").read_text())
    assert (summary["status"], summary["trials"]["failed"]) == ("complete", 0)


@needs_mounts
def test_a_folder_that_a_node_loses_later_stops_the_sweep(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    with ray_head(num_cpus=0, **OPEN) as address, another_machine(address, "far") as node:
        words = (f"cluster.address={address}", "budget.trials=2", "algo.training.learner_config_dict.seconds=0.3")
        typed = start_sweep("run", tmp_path, *words)
        wait_for(outputs, "toy/trials/*/*/best-*", typed)
        lose = ["nsenter", f"--target={node}", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(outputs)]
        subprocess.run(lose, check=True)
        code, out = finish(typed)
    assert code == 75, out
    summary = json.loads((outputs / "toy/summary.json").read_text())
    assert (summary["status"], summary["trials"]["failed"]) == ("interrupted", 0)
    # A trial that breaks on the missing folder before its next checkpoint begins anew, and sees none of the files.
    assert re.search(r"trials/\S+ lies on node far alone|cannot be used on node far", summary["reason"]), out
