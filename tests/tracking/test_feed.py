"""A ledger delivered to trackers that fail, hang, refuse, and are killed between a delivery and its mark."""

from __future__ import annotations

import threading
import time

import pytest
from saved import write_checkpoint

from rltune.checkpoints.store import open_store
from rltune.ledger.ledger import Ledger
from rltune.records import CERTIFY, TRIALS, Report, RunKey
from rltune.tracking import feed as module
from rltune.tracking.feed import Feeds
from rltune.tracking.tracker import SweepDescription, Tracker


class Notebook(Tracker):
    """A tracker that remembers what it got, for longer than a driver lives."""

    def __init__(self, name="notebook"):
        super().__init__(None)
        self.name = name
        self.points, self.states, self.descriptions, self.numbers, self.calls = [], [], [], [], []
        self.fails, self.refuses, self.hangs = 0, False, threading.Event()
        self.hangs.set()

    def _take(self, call):
        self.calls.append(call)
        self.hangs.wait()
        if self.fails and not (self.refuses and call == "open"):  # What is refused is refused by a server that works.
            self.fails -= 1
            raise ConnectionError("http://me:s3cret@host is away")

    def open(self):
        self._take("open")

    def write(self, trial, reports):
        self._take(trial.run_key.name)
        self.points += [(trial.run_key.name, report.nominal_steps) for report in reports]
        self.numbers += [dict(report.numbers) for report in reports]
        self.states.append((trial.run_key.name, trial.state, trial.score))

    def describe(self, key, metrics, tags):
        self._take("describe")
        self.descriptions.append((key, dict(metrics)))

    def end(self, status, outcome):
        self._take("end")
        self.states.append((status, outcome))

    def is_refusal(self, error):
        return self.refuses

    def curve(self, name="trial-000"):
        return [steps for run, steps in self.points if run == name]


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    for name, seconds in {"LINGER_S": 0.02, "FIRST_PAUSE_S": 0.01, "LONGEST_PAUSE_S": 0.05}.items():
        monkeypatch.setattr(module, name, seconds)


def open_sweep(folder, *trackers):
    path = folder / "ledger.db"
    ledger = Ledger(f"sqlite:///{path}", "first", create=not path.exists())
    sweep = SweepDescription("first", ledger.sweep().key, folder, ledger, "cartpole")
    for tracker in trackers:
        tracker.sweep = sweep
    return ledger, Feeds(ledger, open_store(folder), trackers)


def report(ledger, number, *steps, kind=TRIALS):
    for step in steps:
        ledger.table(kind).add_report(Report(number, step, float(step), {"score": float(step)}))


def wait_for(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_resumed_sweep_delivers_what_is_new(tmp_path, monkeypatch):
    monkeypatch.setattr(Notebook, "batch_size", 2)
    notebook = Notebook()
    ledger, feeds = open_sweep(tmp_path, notebook)
    for _ in range(2):
        ledger.trials.add({"lr": 0.25}, [7])
    report(ledger, 0, 1, 2, 3)
    ledger.trials.interrupt(0)
    assert feeds.close("KILLED")
    ledger, feeds = open_sweep(tmp_path, notebook)
    ledger.trials.start(0)
    report(ledger, 0, 4)
    ledger.trials.end(0, "PRUNED", "weak")
    ledger.runs.add({"lr": 0.25}, [9], key="k", of_trial=0, seed_index=0)
    report(ledger, 0, 4, kind=CERTIFY)
    feeds.describe(RunKey(0), {"certified_score": 5.0}, {})
    assert feeds.close("FINISHED")
    assert (notebook.curve(), notebook.curve("trial-000-seed-1")) == ([1, 2, 3, 4], [4])
    assert ("trial-000", "PRUNED", 4.0) in notebook.states
    assert notebook.descriptions == [(RunKey(0), {"certified_score": 5.0})]
    assert [state for state in notebook.states if len(state) == 2] == [("KILLED", None), ("FINISHED", None)]
    assert feeds.warnings() == []


def test_a_tracker_that_is_away_three_times_loses_no_point(tmp_path):
    notebook, other = Notebook(), Notebook("other")
    ledger, feeds = open_sweep(tmp_path, notebook, other)
    ledger.trials.add({"lr": 0.25}, [7])
    for outage in range(3):
        notebook.fails = 5
        report(ledger, 0, 2 * outage, 2 * outage + 1)
        feeds.wake()
        wait_for(lambda: not notebook.fails)
    assert feeds.close("FINISHED")
    assert (notebook.curve(), other.curve()) == ([*range(6)], [*range(6)])
    lines = feeds.warnings()
    assert any("ConnectionError" in line for line in lines)
    assert "s3cret" not in "".join(lines)


def test_a_tracker_that_hangs_delays_no_other_and_not_the_end(tmp_path):
    hung, notebook = Notebook("hung"), Notebook()
    hung.hangs.clear()
    ledger, feeds = open_sweep(tmp_path, hung, notebook)
    ledger.trials.add({"lr": 0.25}, [7])
    report(ledger, 0, 1, 2, 3)
    feeds.wake()
    wait_for(lambda: notebook.curve() == [1, 2, 3])
    began = time.monotonic()
    assert not feeds.close("FINISHED", 0.5)
    assert not feeds.close("KILLED", 60.0)
    assert time.monotonic() - began < 20, "a second end does not wait again"
    assert ("FINISHED", None) in notebook.states
    (line,) = feeds.warnings()
    assert "hung" in line
    assert f"sweep={tmp_path.name}" in line
    hung.hangs.set()
    wait_for(lambda: not any(thread.name == "feed-hung" for thread in threading.enumerate()))
    assert hung.curve() == [], "after the end it writes no more"
    _, feeds = open_sweep(tmp_path, hung)
    assert feeds.close("FINISHED")
    assert hung.curve() == [1, 2, 3]


def test_a_tracker_that_fails_at_the_end_delays_it_no_longer_than_one_that_failed_before(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "AWAY_S", 0.2)
    notebook = Notebook()
    ledger, feeds = open_sweep(tmp_path, notebook)
    ledger.trials.add({"lr": 0.25}, [7])
    wait_for(lambda: notebook.states)
    notebook.fails = 10**6
    began = time.monotonic()
    assert not feeds.close("FINISHED", 60.0)
    assert time.monotonic() - began < 20
    assert any("notebook" in line and f"sweep={tmp_path.name}" in line for line in feeds.warnings())


def test_what_is_refused_holds_up_nothing_and_stays_unmarked(tmp_path):
    notebook = Notebook()
    notebook.refuses = True
    ledger, feeds = open_sweep(tmp_path, notebook)
    ledger.trials.add({"lr": 0.25}, [7])
    wait_for(lambda: notebook.states)
    notebook.fails = module.MAX_ATTEMPTS
    report(ledger, 0, 1)
    feeds.wake()
    wait_for(lambda: not notebook.fails)
    report(ledger, 0, 2)
    feeds.wake()
    wait_for(lambda: notebook.curve() == [2])
    ledger.trials.end(0, "PRUNED", "weak")
    assert not feeds.close("FINISHED")
    assert [("trial-000" in line, "resume" in line) for line in feeds.warnings()] == [(True, False), (False, True)]
    assert notebook.states[-2:] == [("trial-000", "PRUNED", 2.0), ("FINISHED", None)]
    _, feeds = open_sweep(tmp_path, notebook)
    assert feeds.close("FINISHED")
    assert notebook.curve() == [2, 1, 2], "the next driver sends it, and what came after it once more"
    assert notebook.states[-2:] == [("trial-000", "PRUNED", 2.0), ("FINISHED", None)]
    assert not ledger.read_reports_after(ledger.read_delivered_report(notebook.name), 1)


@pytest.mark.parametrize("error", [TypeError, ValueError, KeyError, RuntimeError, SystemExit])
def test_a_fault_in_a_tracker_holds_up_no_other_trial(tmp_path, error):
    class Faulty(Notebook):
        is_refusal = Tracker.is_refusal

        def write(self, trial, reports):
            if trial.number == 0 and not self.is_mended:
                raise error("of the tracker's own code")
            super().write(trial, reports)

    notebook = Faulty()
    notebook.is_mended = False
    ledger, feeds = open_sweep(tmp_path, notebook)
    for number in range(2):
        ledger.trials.add({"lr": 0.25}, [7])
        report(ledger, number, 1, 2)
        ledger.trials.end(number, "PRUNED", "weak")
    feeds.wake()
    wait_for(lambda: notebook.curve("trial-001") == [1, 2])
    assert not feeds.close("FINISHED")
    assert notebook.states[-1] == ("FINISHED", None)
    assert any("trial-000" in line for line in feeds.warnings())
    notebook.is_mended = True
    _, feeds = open_sweep(tmp_path, notebook)
    assert feeds.close("FINISHED")
    assert notebook.curve() == [1, 2], "the next driver sends it"


@pytest.mark.parametrize("error", [TimeoutError, MemoryError, type("LibraryError", (Exception,), {})])
def test_what_may_be_an_outage_is_tried_until_it_succeeds(tmp_path, error):
    class Away(Notebook):
        is_refusal = Tracker.is_refusal

        def write(self, trial, reports):
            if self.num_failures:
                self.num_failures -= 1
                raise error
            super().write(trial, reports)

    notebook = Away()
    notebook.num_failures = 3 * module.MAX_ATTEMPTS
    ledger, feeds = open_sweep(tmp_path, notebook)
    ledger.trials.add({"lr": 0.25}, [7])
    report(ledger, 0, 1, 2)
    feeds.wake()
    wait_for(lambda: notebook.curve() == [1, 2])
    assert feeds.close("FINISHED")


def test_a_refused_state_of_a_trial_is_sent_by_the_next_driver(tmp_path):
    notebook = Notebook()
    notebook.refuses = True
    ledger, feeds = open_sweep(tmp_path, notebook)
    wait_for(lambda: "open" in notebook.calls)
    notebook.fails = module.MAX_ATTEMPTS
    ledger.trials.add({"lr": 0.25}, [7])
    assert not feeds.close("KILLED")
    assert notebook.states == [("KILLED", None)]
    _, feeds = open_sweep(tmp_path, notebook)
    assert feeds.close("KILLED")
    assert notebook.states[1:] == [("trial-000", "RUNNING", None), ("KILLED", None)]


def test_pages_that_are_too_large_are_sent_in_parts(tmp_path):
    class Limited(Notebook):
        def write(self, trial, reports):
            if len(reports) > 3:
                raise ConnectionError("413")
            super().write(trial, reports)

    notebook = Limited()
    ledger, feeds = open_sweep(tmp_path, notebook)
    ledger.trials.add({"lr": 0.25}, [7])
    report(ledger, 0, *range(40))
    assert feeds.close("FINISHED")
    assert notebook.curve() == [*range(40)]


def test_a_kill_between_a_delivery_and_its_mark_delivers_again(tmp_path, monkeypatch):
    notebook = Notebook()
    notebook.hangs.clear()
    ledger, feeds = open_sweep(tmp_path, notebook)
    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "mark_reports", lambda *_: feeds.abandon())
        ledger.trials.add({"lr": 0.25}, [7])
        report(ledger, 0, 1, 2)
        feeds.wake()
        notebook.hangs.set()
        wait_for(lambda: notebook.curve() == [1, 2])
        feeds.abandon()
    ledger, feeds = open_sweep(tmp_path, notebook)
    assert feeds.close("FINISHED")
    assert notebook.curve() == [1, 2, 1, 2]


def test_a_wait_covers_what_the_ledger_has_now(tmp_path):
    notebook = Notebook()
    notebook.has_registry, notebook.fails = True, 1
    ledger, feeds = open_sweep(tmp_path, notebook)
    ledger.trials.add({"lr": 0.25}, [7])
    for steps in range(1, 6):
        report(ledger, 0, steps)
        assert feeds.wait_until_sent(30.0)
        assert notebook.curve() == [*range(1, steps + 1)]
    notebook.hangs.clear()
    report(ledger, 0, 6)
    assert not feeds.wait_until_sent(0.1)
    notebook.hangs.set()
    assert feeds.close("FINISHED")
    assert not feeds.wait_until_sent(30.0), "there is no thread any more"


def test_the_tracker_is_opened_only_after_the_first_seconds(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "LINGER_S", 600.0)
    notebook = Notebook()
    _, feeds = open_sweep(tmp_path, notebook)
    feeds.wake()
    time.sleep(0.3)
    assert (feeds.opening, notebook.calls) == (True, [])
    feeds.wake(connect=True)
    wait_for(lambda: not feeds.opening)
    assert feeds.close("FINISHED")


class Curves(Tracker):
    def write_sweep(self, reports):
        self.steps = [report.nominal_steps for _, _, report in reports]


class Policies(Tracker):
    takes_reports = False

    def write_checkpoint(self, trial, folder):
        self.files = folder.is_dir(), trial.number


def test_a_tracker_of_the_sweeps_curves_or_of_checkpoints_alone_gets_them(tmp_path):
    curves, policies = Curves(None), Policies(None)
    ledger, feeds = open_sweep(tmp_path, curves, policies)
    ledger.trials.add({"lr": 0.25}, [7])
    state = {"env_steps": 1, "objective": 1.0}
    saved = write_checkpoint(tmp_path, "trials/0", "best", state, lambda folder: None)
    ledger.trials.add_report(Report(0, 1, 1.0), {"checkpoint": saved})
    ledger.trials.end(0, "COMPLETE", "whole budget")
    assert feeds.close("FINISHED")
    assert (curves.steps, policies.files) == ([1], (True, 0))
