"""A sweep opens with what its ledger holds, and closes whatever happens."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem

from rltune.checkpoints.handover import take
from rltune.checkpoints.store import Store
from rltune.driver.context import SweepContext
from rltune.ledger.storage import start_ledger
from rltune.ledger.sweep_folder import LEDGER_COPY
from rltune.records import Report
from rltune.trial.supervisor import STOP_FILE
from rltune.views.sweep_view import SweepView


@pytest.fixture
def begun(tmp_path: Path) -> None:
    """A sweep of which a driver left a whole trial and an unfinished one."""
    (tmp_path / "mine").mkdir()
    ledger = start_ledger(None, tmp_path / "mine", new=True)
    for number, env_steps in ((0, 1000), (1, 400)):
        ledger.trials.add({}, [number], drawn={})
        ledger.trials.add_report(Report(number, env_steps, 1.0))
    ledger.trials.end(0, "COMPLETE", "whole budget")
    ledger.close()


def test_a_new_sweep_has_all_to_do(open_mine: Callable[..., Any]) -> None:
    with open_mine("certify=off") as sweep:
        assert sweep.ledger.trials.records() == []
        assert not SweepView.read(sweep.ledger).is_searched
        assert sweep.is_certified(), "nothing is to be certified"
        assert sweep.retraining is None


def test_a_resumed_sweep_knows_what_is_unfinished(open_mine: Callable[..., Any], begun: None) -> None:
    with open_mine(resumed=True) as sweep:
        assert sweep.ledger.trials.record(1).state == "RUNNING"
        assert sweep.stopper.env_steps == 1400, "the sweep's budget of steps goes on, it does not begin anew"
        assert not SweepView.read(sweep.ledger).is_searched, "two of two trials were proposed, but one has not ended"


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_sweep_closes_whatever_happens(
    open_mine: Callable[..., Any], error: type[BaseException], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr("rltune.tracking.feed.Feeds.close", lambda self, status, timeout_s: ends.append(status))
    with pytest.raises(error), open_mine() as sweep:  # noqa: PT012
        sweep.stopper.request("broken")
        raise error
    assert ends == [status]
    assert not (sweep.context.folder / STOP_FILE).exists()
    assert (sweep.context.folder / LEDGER_COPY).is_file(), "the ledger as it was at the end, to go back to"


def test_a_driver_drops_nothing_once_another_machine_took_over(
    open_mine: Callable[..., Any], begun: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the ledger in a file each of them has a lease of its own, but they share the storage."""
    filesystem = PyFileSystem(FSSpecHandler(MemoryFileSystem()))

    def open_store(machine: Path) -> Store:
        machine.mkdir(exist_ok=True)
        return Store(filesystem, "/taken-over", machine, address="memory://taken-over")

    other = open_store(tmp_path / "other")
    monkeypatch.setattr(SweepContext, "open_store", lambda context: open_store(context.folder))
    with open_mine("certify=off", resumed=True) as sweep:
        take(sweep.store, sweep.ledger.lease.id)
        for machine, is_dropped in ((sweep.store, True), (other, False)):
            name = "trials/1/attempt/latest-000000000500/manifest.json"
            if machine is other:
                take(other, "another-driver")
            machine.write(name, b"{}")
            sweep.retention.drop_unnamed([sweep.ledger.trials.record(1)])
            sweep.retention.drop_pending()
            assert (other.read(name) is None) == is_dropped
