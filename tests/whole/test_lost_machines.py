"""What a cluster loses costs time, and no trial and no sweep."""

from __future__ import annotations

import json
import os
import signal
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import psutil
import pytest
from joined import another_machine, finish, needs_mounts, ray_head, start_sweep, sweep

from rltune.ledger.storage import open_ledger

OPEN = {"RAY_AUTH_MODE": "disabled"}


def wait_for_checkpoints(folder: Path, typed: Any, number: int) -> None:
    """Wait until so many trials have reported."""
    deadline = time.monotonic() + 120
    while len({path.parents[1] for path in folder.glob("outputs/toy/trials/*/*/best-*")}) < number:
        assert typed.poll() is None, typed.communicate()[0]
        assert time.monotonic() < deadline
        time.sleep(0.1)


def kill_head(address: str) -> None:
    """Let a head lose power: all that `ray start` has started."""
    word = f"--port={address.rpartition(':')[2]}"
    typed = {one.pid: set(one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])}  # a zombie has none
    (head,) = [pid for pid, words in typed.items() if {word, "--head"} <= words]
    os.killpg(head, signal.SIGKILL)


SLOW = ("budget.trials=2", "+space.seconds=0.3", "scheduler=none", "failures.max_retries=0")


@pytest.mark.nightly  # Two nodes of Ray take half a minute.
@needs_mounts
def test_a_node_that_loses_power_costs_no_trial(tmp_path: Path) -> None:
    with ExitStack() as stack:
        address = stack.enter_context(ray_head(num_cpus=2, **OPEN))
        node = stack.enter_context(another_machine(address, "n1"))
        typed = start_sweep("run", tmp_path, f"cluster.address={address}", *SLOW, "resources.cpus_per_trial=2", **OPEN)
        wait_for_checkpoints(tmp_path, typed, 2)
        os.killpg(node, signal.SIGKILL)
        code, out = finish(typed)
    assert code == 0, out
    assert len([line for line in out.splitlines() if "continues from" in line]) == 1, out
    assert "Traceback" not in out
    summary = json.loads((tmp_path / "outputs/toy/summary.json").read_text())
    assert summary["trials"]["complete"] == 2


@pytest.mark.nightly  # A head that is killed, and another one take a minute.
def test_a_lost_head_ends_the_command_and_another_one_finishes_it(tmp_path: Path) -> None:
    with ray_head(num_cpus=2, **OPEN) as address:
        typed = start_sweep("run", tmp_path, f"cluster.address={address}", *SLOW, **OPEN)
        wait_for_checkpoints(tmp_path, typed, 1)
        began = time.monotonic()
        kill_head(address)
        code, out = finish(typed)
        took_s = time.monotonic() - began
    assert code == 75, out
    assert took_s < 60, "Ray itself holds whoever asks it for so long"
    assert "resume sweep=toy" in out
    assert "Traceback" not in out
    with closing(open_ledger(tmp_path / "outputs/toy")) as ledger:
        assert {record.stop_reason for record in ledger.trials.records()} == {"interrupted"}
        assert ledger.sweep().status == "interrupted"
    assert not {".driver", ".processes", ".stop", ".tune"} & {
        path.name for path in (tmp_path / "outputs/toy").iterdir()
    }
    with ray_head(num_cpus=2, **OPEN) as address:
        code, out = sweep("resume", tmp_path, f"cluster.address={address}", **OPEN)
    assert code == 0, out
    summary = json.loads((tmp_path / "outputs/toy/summary.json").read_text())
    assert summary["trials"]["complete"] == 2
