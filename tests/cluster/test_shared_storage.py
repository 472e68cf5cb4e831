"""Sweeps that join a Ray whose machines share their folder or do not: real nodes with mounts of their own."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from joined import another_machine, clean_environment, finish, needs_mounts, ray_head, start_sweep, sweep

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


@contextlib.contextmanager
def all_cpus_taken(address: str, folder: Path) -> Iterator[None]:
    """Another job that holds the CPUs that the cluster has."""
    script = folder / "holder.py"
    script.write_text(
        "import sys, time, ray\n"
        "ray.init(address=sys.argv[1], log_to_driver=False)\n"
        "cpus = ray.cluster_resources()['CPU']\n"
        "held = ray.remote(num_cpus=cpus)(lambda: time.sleep(600)).remote()\n"
        "while ray.available_resources().get('CPU', 0): time.sleep(0.1)\n"
        "print('held', flush=True)\n"
        "time.sleep(600)\n"
    )
    words = [sys.executable, str(script), address]
    holder = subprocess.Popen(words, env=clean_environment(folder, OPEN), stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        while "held" not in (line := holder.stdout.readline()):
            assert line, "the other job has ended"
        yield
    finally:
        holder.kill()
        holder.wait()


@needs_mounts
def test_a_node_without_the_shared_folder_is_refused(open_address: str, joined: tuple[Path, int, str]) -> None:
    outputs = joined[0] / "outputs"
    with another_machine(open_address, "far", hidden=outputs):
        words = (f"cluster.address={open_address}", "budget.trials=2", "name=new")
        new, resumed = sweep("run", joined[0], *words), sweep("resume", joined[0])
    for name, (code, out) in {"new": new, "toy": resumed}.items():
        assert code == 2, out
        (error,) = [line for line in out.splitlines() if line.startswith(f"error: output_dir={outputs}")]
        assert str(outputs / name) in error
        assert " far " in error, "the node"
        assert "output_dir=/shared/outputs" in out
    assert [path.name for path in outputs.iterdir()] == ["toy"]
    assert not list(outputs.glob("*/.shared-*"))


@needs_mounts
def test_a_blind_node_that_joins_later_costs_nothing(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    with ray_head(**OPEN) as address, contextlib.ExitStack() as others:
        others.enter_context(all_cpus_taken(address, tmp_path))
        typed = start_sweep("run", tmp_path, f"cluster.address={address}", "budget.trials=4")
        assert typed.stdout is not None
        begun = typed.stdout.readline()
        with another_machine(address, "far", hidden=outputs):  # the only place for the first trials
            while "node far" not in begun:
                line = typed.stdout.readline()
                assert line, begun
                begun += line
            others.close()
            code, out = finish(typed)
    assert code == 0, begun + out
    (line, *_) = [line for line in begun.splitlines() if "node far" in line]
    assert str(outputs / "toy") in line
    trials = json.loads((outputs / "toy/summary.json").read_text())["trials"]
    assert (trials["total"], trials["complete"] + trials["pruned"]) == (4, 4)
    assert len({path.parents[1] for path in outputs.glob("toy/trials/*/*/best-*")}) == 4, "all checkpoints are here"


@needs_mounts
def test_a_folder_that_a_node_loses_later_stops_the_sweep(tmp_path: Path) -> None:
    outputs = tmp_path / "outputs"
    outputs.mkdir()
    with ray_head(num_cpus=0, **OPEN) as address, another_machine(address, "far") as node:
        words = (f"cluster.address={address}", "budget.trials=2", "algo.training.seconds=0.3")
        typed = start_sweep("run", tmp_path, *words)
        wait_for(outputs, "toy/trials/*/*/best-*", typed)
        lose = ["nsenter", f"--target={node}", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(outputs)]
        subprocess.run(lose, check=True)
        code, out = finish(typed)
    assert code == 75, out
    summary = json.loads((outputs / "toy/summary.json").read_text())
    assert (summary["status"], summary["trials"]["failed"]) == ("interrupted", 0)
    # A trial that breaks on the missing folder before its next checkpoint begins anew, and sees none of the files.
    assert re.search(rf"trials/\S+ lies on node far alone|{outputs}/toy does not show", summary["reason"]), out
