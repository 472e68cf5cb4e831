"""A sweep opens with what its ledger holds, and closes whatever happens."""

from __future__ import annotations

import io
import math
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pyarrow.fs import FSSpecHandler, PyFileSystem
from saved import write_checkpoint

from rltune.checkpoints.clients import Client, StoreUnavailableError
from rltune.checkpoints.store import REPLAY, Store
from rltune.driver import open_sweep as open_sweep_module
from rltune.driver.end import SweepEnd
from rltune.driver.plan import Plan
from rltune.ledger.handover import find_successor, take
from rltune.ledger.lease import LeaseLostError
from rltune.ledger.ledger import Ledger
from rltune.ledger.storage import start_ledger
from rltune.records import TARGET_HELD, Report
from rltune.search.schedulers import Stop
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
        while not sweep.ledger.sweep().wall_s:  # Its housekeeping writes it, so that all see it while the sweep runs.
            time.sleep(0.01)
        assert sweep.ledger.trials.records() == []
        assert not SweepView.read(sweep.ledger).is_searched
        assert sweep.is_certified(), "nothing is to be certified"
        assert sweep.retraining is None


def test_a_resumed_sweep_knows_what_is_unfinished(open_mine: Callable[..., Any], begun: None) -> None:
    with open_mine() as sweep:
        assert sweep.ledger.trials.record(1).state == "RUNNING"
        assert sweep.stopper.env_steps == 1400, "the sweep's budget of steps goes on, it does not begin anew"
        assert not SweepView.read(sweep.ledger).is_searched, "two of two trials were proposed, but one has not ended"


@pytest.mark.parametrize(("error", "status"), [(ValueError, "FAILED"), (KeyboardInterrupt, "KILLED")])
def test_a_sweep_closes_whatever_happens(
    open_mine: Callable[..., Any], error: type[BaseException], status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends: list[str] = []
    monkeypatch.setattr("rltune.tracking.feed.Feeds.close", lambda self, status, *_, **__: ends.append(status))
    with pytest.raises(error), open_mine() as sweep:  # noqa: PT012
        sweep.stopper.request("broken")
        raise error
    assert set(ends) == {status}
    assert not (sweep.plan.folder / STOP_FILE).exists()


def test_a_driver_drops_nothing_once_another_machine_took_over(
    open_mine: Callable[..., Any], begun: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the ledger in a file each of them has a lease of its own, but they share the storage."""
    filesystem = PyFileSystem(FSSpecHandler(MemoryFileSystem()))

    def open_store(machine: Path) -> Store:
        machine.mkdir(exist_ok=True)
        return Store(Client(lambda: filesystem), "/taken-over", machine, address="memory://taken-over")

    other = open_store(tmp_path / "other")
    monkeypatch.setattr(Plan, "open_store", lambda plan: open_store(plan.folder))
    with open_mine("certify=off") as sweep:
        take(sweep.store, sweep.ledger.lease.id)
        sweep.ledger.lease.find_successor = partial(find_successor, sweep.store, sweep.ledger.lease.id)
        for machine, is_dropped in ((sweep.store, True), (other, False)):
            name = "trials/1/attempt/latest-000000000500/manifest.json"
            if machine is other:
                take(other, "another-driver")
            machine.write(name, b"{}")
            sweep.retention.drop_unnamed([sweep.ledger.trials.record(1)])
            sweep.retention.drop_pending()
            assert (other.read(name) is None) == is_dropped


def test_a_driver_taken_over_in_the_bucket_stops_at_once(
    open_mine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, stream: io.StringIO
) -> None:
    monkeypatch.setattr(open_sweep_module, "RENEW_S", 0.02)
    ends: list[str] = []
    monkeypatch.setattr("rltune.tracking.feed.Feeds.close", lambda *_, **__: ends.append("published"))
    monkeypatch.setattr("rltune.tracking.feed.Feeds.abandon", lambda _: ends.append("abandoned"))
    with pytest.raises(LeaseLostError) as lost, open_mine() as sweep:  # noqa: PT012
        history: list[str] = []
        sweep.ledger.lease.find_successor = lambda: next(iter(history), None)
        sweep.ledger.require_ownership()
        sweep.ledger.trials.add({}, [1])
        history.append("elsewhere")
        deadline_s = time.monotonic() + 10.0
        while not sweep.stopper.lease_lost and time.monotonic() < deadline_s:
            time.sleep(0.01)
        assert (sweep.stopper.lease_lost, sweep.stopper.stop_all()) == (True, True)
        with pytest.raises(LeaseLostError):
            sweep.ledger.trials.add({}, [2])
        SweepEnd(sweep).run()
    assert (lost.value.exit_code, "elsewhere" in lost.value.what) == (75, True)
    assert ends == ["abandoned"]
    assert not (sweep.plan.folder / "summary.json").exists()


@pytest.mark.parametrize("is_urgent", [False, True])
def test_a_bucket_that_is_away_holds_up_no_urgent_end(
    open_mine: Callable[..., Any], is_urgent: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise StoreUnavailableError("does not answer", "", "")

    monkeypatch.setattr("rltune.driver.end.publish_outcome", lambda *_: None)
    with open_mine("certify=off") as sweep:
        sweep.ledger.lease.find_successor = fail
        assert not sweep.ledger.has_lost_ownership()
        if is_urgent:
            sweep.stopper.request("a signal", 15)
            assert SweepEnd(sweep).run().status == "interrupted"
        else:
            with pytest.raises(StoreUnavailableError):
                SweepEnd(sweep).run()


ASHA = ("scheduler=asha", "budget.env_steps=1000", "budget.trials=4", "certify=off")
ASHA += ("scheduler.args.grace_fraction=0.1", "scheduler.args.reduction_factor=3")


def leave(folder: Path, *reports: tuple[int, int, float]) -> Ledger:
    """What a driver leaves that is killed after its last report was committed, and before anything followed."""
    (folder / "mine").mkdir()
    ledger = start_ledger(None, folder / "mine", new=True)
    for number in sorted({number for number, _, _ in reports}):
        ledger.trials.add({}, [number], drawn={})
    for number, nominal_steps, objective in reports:
        ledger.trials.add_report(Report(number, nominal_steps, objective))
    return ledger


def test_a_trial_that_stood_at_a_rung_at_a_kill_is_judged(open_mine: Callable[..., Any], tmp_path: Path) -> None:
    """The rung is at 100. Trial 0 was let through, being the first; the third is the first that is judged."""
    leave(tmp_path, (0, 100, 5.0), (1, 100, 9.0), (0, 150, 5.0), (2, 100, 1.0)).close()
    with open_mine(*ASHA) as sweep:
        records = sweep.ledger.trials.records()
        assert [record.state for record in records] == ["RUNNING", "RUNNING", "PRUNED"]
        assert " 100 " in records[2].stop_reason, "the rung"
        study, rule = sweep.search.study._study, sweep.search.rule
        assert [trial.state.name for trial in study.get_trials()] == ["RUNNING", "RUNNING", "PRUNED"]
        assert rule.decide(Report(3, 100, 2.0)) == Stop(100), "the fourth to come there, and not among the best"


def test_a_trial_that_held_its_target_at_a_kill_is_complete(open_mine: Callable[..., Any], tmp_path: Path) -> None:
    """Before the stopping rule is heard, which would stop it at the rung."""
    reports = [(0, 100, 9.0), (1, 100, 9.0), (2, 50, 6.0), (2, 100, 6.0), (3, 50, 1.0), (3, 100, 6.0)]
    leave(tmp_path, *reports).close()
    with open_mine(*ASHA, "budget.target=5") as sweep:
        records = sweep.ledger.trials.records()
        assert [record.state for record in records] == ["RUNNING", "RUNNING", "COMPLETE", "PRUNED"]
        assert (records[2].stop_reason, records[2].target_steps) == (TARGET_HELD, 100)


def test_a_trial_that_was_let_through_at_a_kill_goes_on(open_mine: Callable[..., Any], tmp_path: Path) -> None:
    """Two better ones came after it, and the sweep was killed before it reported again."""
    leave(tmp_path, (0, 100, 5.0), (1, 100, 9.0), (2, 100, 10.0)).close()
    with open_mine(*ASHA) as sweep:
        assert {record.state for record in sweep.ledger.trials.records()} == {"RUNNING"}


def fill_replay(draft: Path) -> None:
    (draft / REPLAY).mkdir()
    (draft / REPLAY / "rows.npy").write_text("memory")


def test_a_whole_trial_is_not_trained_again_after_a_kill(open_mine: Callable[..., Any], tmp_path: Path) -> None:
    home, state = tmp_path / "mine", {"env_steps": 1, "objective": None}
    with closing(leave(tmp_path, (0, 950, 5.0), (0, 1000, 5.0), (1, 1000, math.nan))) as ledger:
        for number in (0, 1):
            saved = write_checkpoint(home, f"trials/{number}", "latest", state, fill_replay)
            ledger.trials.change(number, latest=saved)
    unnamed = write_checkpoint(home, "trials/1", "latest", state, attempt="killed")
    with open_mine(*ASHA) as sweep:
        whole, silent = sweep.ledger.trials.records()
        assert (whole.state, whole.stop_reason) == ("COMPLETE", "whole budget")
        assert silent.state == "RUNNING", "without an episode it fails, which its worker says"
        sweep.retention.drop_pending()
        memories = [(home / str(record.latest and record.latest.path) / REPLAY).exists() for record in (whole, silent)]
        assert memories == [False, True], "only the one that goes on needs its own"
        assert not (home / unnamed.path).exists()


def test_what_is_to_be_tried_again_is_open_before_all_else(open_mine: Callable[..., Any], tmp_path: Path) -> None:
    with closing(leave(tmp_path, (0, 1000, 1.0), (1, 400, 1.0))) as ledger:
        ledger.trials.end(0, "COMPLETE", "whole budget")
        ledger.trials.end(1, "FAIL", "it broke")
        ledger.add_request("retry", {"trials": [1], "certify": []}, "maria@host")
    with open_mine("certify=off") as sweep:
        assert sweep.ledger.trials.record(1).state == "RUNNING"
        assert not SweepView.read(sweep.ledger).is_searched, "else nothing would run"
        assert sweep.search.study._study.trials[1].state.name == "RUNNING"
        (note,) = [note for note in sweep.plan.notes if "maria@host" in note]
        assert note.startswith("trial 1:")
        assert sweep.search.inbox.reopen_failed(print) == []


@pytest.mark.parametrize(("is_asked", "is_named"), [(False, True), (True, False)])
def test_a_resume_names_the_command_that_retries_what_failed(
    open_mine: Callable[..., Any], tmp_path: Path, is_asked: bool, is_named: bool
) -> None:
    with closing(leave(tmp_path, (0, 1000, 1.0), (1, 400, 1.0))) as ledger:
        ledger.trials.end(0, "COMPLETE", "whole budget")
        ledger.trials.end(1, "FAIL", "it broke")
        if is_asked:
            ledger.add_request("retry", {"trials": [1], "certify": []}, "maria@host")
    with open_mine("certify=off") as sweep:
        assert sum("retry sweep=mine" in note for note in sweep.plan.notes) == is_named
