"""Sweeps on clusters that grow, shrink and are shared: real nodes, toy trials."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from joined import ray_head, ray_node, start_sweep

from rltune.errors import StudyError
from rltune.ledger.storage import open_ledger
from rltune.records import TrialRecord

pytestmark = [pytest.mark.slow, pytest.mark.nightly]  # It starts Rays of its own.

OPEN = {"RAY_AUTH_MODE": "disabled"}


def node(address: str, num_cpus: int) -> contextlib.AbstractContextManager[int]:
    """One more node."""
    return ray_node((f"--address={address}", f"--num-cpus={num_cpus}"), OPEN)


class Sweep:
    """A sweep that runs, and what it has said so far."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.process = start_sweep("run", folder, *words, **OPEN)
        self.said = ""
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.said += line

    def wait_for(self, pattern: str) -> None:
        """Wait until it has said something that matches."""
        self.wait_until(lambda: re.search(pattern, self.said) is not None)

    def wait_for_running(self, num_trials: int) -> None:
        """Wait until so many trials have reported and not ended."""
        self.wait_until(lambda: len(self.running()) == num_trials)

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 120
        while not is_so():
            assert self.process.poll() is None, self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.5)

    def running(self) -> list[TrialRecord]:
        try:
            opened = open_ledger(self.folder / "outputs/toy")
        except StudyError:  # not yet there
            return []
        records = [record for record in opened.trials.records() if record.state == "RUNNING" and record.reports]
        opened.close()
        return records

    def finish(self, code: int = 0) -> dict[str, Any]:
        """Wait for its end; its summary."""
        ended = self.process.wait(120)
        self.reader.join(10)
        assert ended == code, self.said
        summary: dict[str, Any] = json.loads((self.folder / "outputs/toy/summary.json").read_text())
        return summary


def test_a_sweep_waits_for_a_node_grows_and_shrinks(tmp_path: Path) -> None:
    words = ("budget.trials=99", "resources.max_concurrent=null", "+space.seconds=0.2", "scheduler=none")
    with ray_head(num_cpus=0, **OPEN) as address:
        sweep = Sweep(tmp_path, f"cluster.address={address}", *words)
        sweep.wait_for(r"0 complete of 99 \| waiting for a node with room for a trial: 1 CPU")
        with node(address, 1):
            sweep.wait_for_running(1)
            with node(address, 2):
                sweep.wait_for("trials at once: 3, 1 before")
                sweep.wait_for_running(3)
            sweep.wait_for("trials at once: 1, 3 before")
            sweep.process.send_signal(signal.SIGTERM)
            summary = sweep.finish(143)
    assert summary["trials"]["complete"] > 1, sweep.said
    assert 1 < summary["cost"]["slots"] < 3


def test_quotas_let_sweeps_run_side_by_side_and_one_says_why_it_waits(tmp_path: Path) -> None:
    with ray_head(num_cpus=4, **OPEN) as address:
        words = (f"cluster.address={address}", "budget.trials=99", "resources.max_concurrent=2", "scheduler=none")
        first, second = (Sweep(tmp_path / name, *words, "+space.seconds=2") for name in ("a", "b"))
        for sweep in (first, second):
            sweep.wait_for_running(2)
        third = Sweep(tmp_path / "c", *words, "budget.trials=2")
        third.wait_for(r"0 complete of 2 \| waiting for 2 CPUs")
        for sweep in (first, second):
            sweep.wait_for_running(2)  # between two trials there is one less
        first.process.send_signal(signal.SIGTERM)
        assert third.finish()["trials"]["complete"] == 2
        second.process.send_signal(signal.SIGTERM)
        for sweep in (first, second):
            assert sweep.finish(143)["status"] == "interrupted"
            assert "waiting for" not in sweep.said, "its quota leaves room for another"
