"""A sweep as its driver leaves it on disk, and a stand-in for the driver: it holds the lease and looks for requests."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rltune.checkpoints.store import open_store
from rltune.config.schema import RunConfig
from rltune.config.settings_file import format_settings, redact_config, write_settings
from rltune.driver.housekeeping import Housekeeping
from rltune.driver.requests.inbox import Inbox
from rltune.driver.stopper import SweepStopper
from rltune.ledger.lease import take_lease
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome, count_states
from rltune.ledger.storage import set_journal, start_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import Report, TrialRecord


@dataclass
class Mine:
    """The sweep ``mine`` of four trials; its ledger is open, as its driver has it."""

    folder: Path
    config: RunConfig
    ledger: Ledger

    @property
    def ref(self) -> SweepRef:
        return SweepRef("mine", self.folder.parent)

    def make_stopper(self) -> SweepStopper:
        return SweepStopper(open_store(self.folder), self.config.budget)

    @contextlib.contextmanager
    def drive(self) -> Iterator[SweepStopper]:
        """Be its driver: claim the folder, note that it runs, look for requests."""
        stopper = self.make_stopper()
        inbox = Inbox(self.ledger, stopper)
        with take_lease(self.ledger), Housekeeping([(0.1, inbox.read)]):
            self.ledger.change_sweep(status="running", config=format_settings(redact_config(self.config)))
            yield stopper

    def begin(self, **params: Any) -> TrialRecord:
        record = self.ledger.trials.add(params or {"lr": 1e-3}, [1], drawn={})
        return self.ledger.trials.start(record.number)

    def report(self, number: int, *marks: int) -> None:
        for mark in marks:
            self.ledger.trials.add_report(Report(number, mark, float(mark), {"score": float(mark)}))

    def train(self, number: int, env_steps: int) -> None:
        """End it after so many environment steps of each seed."""
        self.ledger.trials.end(number, "COMPLETE", "whole budget", env_steps=env_steps)

    def fail(self, number: int) -> None:
        self.ledger.trials.end(number, "FAIL", "it broke", traceback="line 1", log="trials/0/failure.txt")

    def end(self, status: str) -> None:
        """End it as its driver does: the summary first."""
        records = self.ledger.trials.records()
        winner = {"trial": 0, "params": {}} if status == "complete" else None
        Outcome("mine", status, count_states(records), winner, None, {}, folder=self.folder).save()
        self.ledger.change_sweep(status=status)


@pytest.fixture
def make_mine(request_of: Callable[..., Any], tmp_path: Path) -> Iterator[Callable[..., Mine]]:
    """Make the sweep, from overrides; nobody drives it."""
    with contextlib.ExitStack() as stack:

        def make(*overrides: str) -> Mine:
            words = ("name=mine", "budget.trials=4", "budget.env_steps=1000", "certify=off", "tracking=off")
            config = request_of(*words, *overrides)
            folder = tmp_path / "outputs" / "mine"
            folder.mkdir(parents=True)
            write_settings(folder, redact_config(config))
            ledger = start_ledger(None, folder, new=True)
            set_journal(ledger, shared=False)
            stack.callback(ledger.close)
            ledger.change_sweep(status="running", config=format_settings(redact_config(config)))
            return Mine(folder, config, ledger)

        yield make


@pytest.fixture
def mine(make_mine: Callable[..., Mine]) -> Mine:
    """The sweep as plain settings make it."""
    return make_mine()
