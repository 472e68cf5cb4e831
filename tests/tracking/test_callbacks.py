"""A person's own code beside a sweep: what it is told, when it raises, when it is slow."""

from __future__ import annotations

import sys
import time
from types import ModuleType

import pytest

from rltune.checkpoints.store import open_store
from rltune.errors import ConfigError
from rltune.ledger.ledger import Ledger
from rltune.ledger.outcome import Outcome
from rltune.records import Report
from rltune.tracking.callbacks import CallbackTracker, import_callback
from rltune.tracking.feed import Feeds
from rltune.tracking.tracker import TrackingSettings

OUTCOME = Outcome("first", "complete", {"total": 1}, None, None, {})


@pytest.fixture
def own(monkeypatch):
    """A person's module ``own_code`` with one of each."""
    made = ModuleType("own_code")
    made.told = []

    class Listener:
        def on_report(self, trial, report):
            made.told.append(("report", trial.number, report.nominal_steps, report.objective))

        def on_trial_end(self, trial):
            made.told.append(("end", trial.number, trial.state))

        def on_sweep_end(self, outcome):
            made.told.append(("sweep", outcome.status))

    class Broken:
        def on_report(self, trial, report):
            raise ValueError("http://me:s3cret@host broke")

    class Unmade:
        def __init__(self):
            raise KeyError("TOKEN")

        def on_trial_end(self, trial):
            made.told.append("never")

    class Slow:
        def on_trial_end(self, trial):
            time.sleep(60)

        on_sweep_end = on_trial_end

    def on_trial_end(trial):
        made.told.append(("function", trial.number))

    for one in (Listener, Broken, Unmade, Slow, on_trial_end):
        setattr(made, one.__name__, one)
    made.other = lambda: None
    monkeypatch.setitem(sys.modules, "own_code", made)
    return made


def open_sweep(folder, *names):
    path = folder / "ledger.db"
    ledger = Ledger(f"sqlite:///{path}", "first", create=not path.exists())
    targets = [f"own_code:{name}" for name in names]
    settings = TrackingSettings(None, "cartpole", "first", folder)
    tracker = Feeds(ledger, open_store(folder), [CallbackTracker(settings, targets)])
    tracker.start(params={}, tags={}, texts={})
    return ledger, tracker


def report(ledger, number, *steps):
    for step in steps:
        ledger.trials.add_report(Report(number, step, float(step), {"objective": float(step)}))


def test_reports_ends_and_the_sweeps_end_are_told_in_order(tmp_path, own):
    ledger, tracker = open_sweep(tmp_path, "Listener", "on_trial_end")
    ledger.trials.add({"lr": 1e-3}, [1])
    report(ledger, 0, 100, 200)
    ledger.trials.end(0, "COMPLETE", "whole budget")
    assert tracker.close("FINISHED", outcome=OUTCOME)
    reports = [("report", 0, step, float(step)) for step in (100, 200)]
    assert own.told == [*reports, ("end", 0, "COMPLETE"), ("function", 0), ("sweep", "complete")]
    assert tracker.warnings() == []


def test_a_resumed_sweep_tells_what_is_new_and_a_second_end_again(tmp_path, own, monkeypatch):
    monkeypatch.setattr("rltune.tracking.feed.LINGER_S", 0.05)
    ledger, tracker = open_sweep(tmp_path, "Listener")
    ledger.trials.add({"lr": 1e-3}, [1])
    report(ledger, 0, 100)
    ledger.trials.end(0, "FAIL", "it broke")
    tracker.close("KILLED")
    (again,) = ledger.reopen_failed(_ask_retry(ledger))
    ledger, tracker = open_sweep(tmp_path, "Listener")
    tracker.wake()
    deadline = time.monotonic() + 30
    while ledger.read_pending_trials("callbacks"):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    report(ledger, again.number, 200)
    ledger.trials.end(again.number, "COMPLETE", "whole budget")
    tracker.close("FINISHED")
    assert own.told == [
        ("report", 0, 100, 100.0),
        ("end", 0, "FAIL"),
        ("report", 0, 200, 200.0),
        ("end", 0, "COMPLETE"),
    ]


def _ask_retry(ledger):
    ledger.add_request("retry", {"trials": [0], "certify": []}, "maria@host")
    return ledger.read_requests()[0]


def test_what_raises_is_told_once_and_keeps_nothing_from_the_others(tmp_path, own):
    ledger, tracker = open_sweep(tmp_path, "Broken", "Unmade", "Listener")
    ledger.trials.add({"lr": 1e-3}, [1])
    report(ledger, 0, 100, 200, 300)
    assert tracker.close("FINISHED")
    assert [event[2] for event in own.told] == [100, 200, 300]
    warnings = tracker.warnings()
    assert len(warnings) == 2
    assert "own_code:Unmade" in warnings[0]
    assert "KeyError: 'TOKEN'" in warnings[0]
    assert "own_code:Broken" in warnings[1]
    assert "on_report" in warnings[1]
    assert "ValueError: http://***@host" in warnings[1]


def test_what_is_slow_holds_up_neither_the_ledger_nor_the_end(tmp_path, own, monkeypatch):
    monkeypatch.setattr(CallbackTracker, "close_s", 0.3)
    ledger, tracker = open_sweep(tmp_path, "Slow")
    began = time.monotonic()
    for number in range(2):
        ledger.trials.add({"lr": 1e-3}, [1])
        report(ledger, number, 100)
        ledger.trials.end(number, "COMPLETE", "whole budget")
        tracker.wake()
    assert not tracker.close("FINISHED", 60.0, OUTCOME)
    tracker.close("KILLED")
    assert time.monotonic() - began < 30
    assert len(tracker.warnings()) == 1


def test_what_was_told_before_a_kill_is_not_told_again(tmp_path, own):
    """The marks move after each report: here the process ends in the third."""
    ledger, tracker = open_sweep(tmp_path, "Listener")
    ledger.trials.add({"lr": 1e-3}, [1])
    report(ledger, 0, 100, 200, 300)
    marks = []
    own.Listener.on_report = lambda self, trial, report: marks.append(_read_mark(tmp_path))
    tracker.close("KILLED")
    assert marks == [0, 1, 2]


def _read_mark(folder):
    return Ledger(f"sqlite:///{folder / 'ledger.db'}", "first").read_delivered_report("callbacks")


def test_code_that_exits_ends_neither_the_others_nor_the_thread(tmp_path, own):
    own.Broken.on_report = lambda self, trial, report: sys.exit(3)
    ledger, tracker = open_sweep(tmp_path, "Broken", "Listener")
    ledger.trials.add({"lr": 1e-3}, [1])
    report(ledger, 0, 100, 200)
    assert tracker.close("FINISHED")
    assert [event[2] for event in own.told] == [100, 200]
    warning = tracker.warnings()[0]
    assert "own_code:Broken" in warning
    assert "SystemExit: 3" in warning


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("own_code:other", "is no callback"),
        ("own_code:nothing", "cannot be imported"),
        ("os:system", "is no callback"),
        ("builtins:dict", "is no callback"),
        ("no_such_module:Class", "cannot be imported"),
    ],
)
def test_what_is_no_callback_is_refused(target, why, own):
    with pytest.raises(ConfigError) as refused:
        import_callback(target)
    assert why in refused.value.what
    assert "on_trial_end" in refused.value.allowed
