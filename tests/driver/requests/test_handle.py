"""A sweep as another process sees it."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace

import pytest

from rltune.cluster import stale_processes
from rltune.config.settings_file import read_settings
from rltune.driver.requests import handle
from rltune.driver.requests.handle import SweepHandle, open_handle
from rltune.errors import StudyError
from rltune.ledger import lease
from rltune.ledger.lease import take_lease
from rltune.ledger.storage import open_ledger
from rltune.ledger.sweep_ref import SweepRef
from rltune.records import ENQUEUE, STOP


def test_a_sweep_is_asked_by_its_name_with_all_that_it_has(mine):
    mine.begin()
    with mine.drive(), open_handle(mine.ref) as sweep:
        assert (sweep.name, sweep.read_status(), sweep.budget.trials) == ("mine", "running", 4)
        assert [record.number for record in sweep.ledger.trials.records()] == [0]
        assert "process" in sweep.require_driver()


def test_without_a_driver_it_is_said_why_and_what_to_type(mine):
    with open_handle(mine.ref) as sweep, pytest.raises(StudyError) as killed:
        sweep.require_driver()
    assert killed.value.key == "sweep"
    assert "complete" not in killed.value.what
    assert "resume sweep=mine" in killed.value.fix
    mine.end("complete")
    with open_handle(mine.ref) as sweep, pytest.raises(StudyError) as ended:
        sweep.require_driver()
    assert ended.value.key == "sweep"
    assert "(complete)" in ended.value.what
    assert "resume sweep=mine" in ended.value.fix


def test_a_name_that_is_none_is_answered_with_the_nearest(mine):
    with pytest.raises(StudyError) as refused, open_handle(replace(mine.ref, name="mien")):
        pass
    assert refused.value.key == "sweep"
    assert "'mine'" in refused.value.pretty()


def test_by_its_ledgers_address_it_needs_no_folder_here(mine, tmp_path):
    mine.ledger.close()  # with a connection open, it is two files
    shutil.copy(mine.folder / "ledger.db", tmp_path / "elsewhere.db")
    address = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    ref = SweepRef("mine", tmp_path / "none", ledger_url=address)
    with open_handle(ref) as sweep:
        assert (sweep.folder, sweep.budget.trials, sweep.read_status()) == (None, 4, "running")
        sweep.send(STOP, {})
        assert [request.kind for request in sweep.ledger.read_requests()] == [STOP]
    with (
        pytest.raises(StudyError, match="sweep=other"),
        open_handle(replace(ref, name="other")),
    ):
        pass


def test_a_file_beside_another_hosts_log_is_not_written(mine, monkeypatch):
    """SQLite's write-ahead log shares memory: written from two hosts, the ledger would be damaged."""
    with take_lease(mine.ledger), open_handle(mine.ref) as sweep:
        monkeypatch.setattr(handle, "read_boot_id", lambda: "another machine's")
        with pytest.raises(StudyError) as refused:
            sweep.send(STOP, {})
        assert refused.value.key == "sweep"
        assert "study.storage=" in refused.value.fix
        assert sweep.ledger.read_requests() == []


def test_a_ledger_whose_driver_died_with_its_machine_is_written(mine, monkeypatch):
    """A machine that was restarted cannot know the driver's process, only that its counter stands still."""
    monkeypatch.setattr(lease, "LEASE_S", 0.5)
    with take_lease(mine.ledger) as held:
        monkeypatch.setattr(lease.Lease, "_write", lambda *_: True)
        held.release()
        monkeypatch.setattr(stale_processes, "read_boot_id", lambda: "after the restart")
        monkeypatch.setattr(handle, "read_boot_id", lambda: "after the restart")
        with open_handle(mine.ref) as sweep:
            sweep.send(ENQUEUE, {"lr": 1e-3})
    assert [request.kind for request in mine.ledger.read_requests()] == [ENQUEUE]


def test_a_ledger_of_an_older_state_takes_no_request(mine, monkeypatch):
    """A driver goes on from the newer one in the storage, and the request would be gone."""
    monkeypatch.setattr("rltune.driver.requests.handle.has_newest", lambda store: False)
    with contextlib.closing(open_ledger(mine.folder)) as ledger:
        sweep = SweepHandle("mine", ledger, read_settings(mine.folder), mine.folder)
        with pytest.raises(StudyError) as refused:
            sweep.send(ENQUEUE, {"lr": 1e-3})
    assert refused.value.key == "sweep"
    assert "study.storage=" in refused.value.fix
    assert mine.ledger.read_requests() == []
